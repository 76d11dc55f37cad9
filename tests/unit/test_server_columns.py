"""A server's columns are what its whole rows say, and it is gone by them when it is by those."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import ATTACHMENT, MOVE, SERVER, VOLUME, Moving

from droveway.errors import NotFound, ServerDeleted
from droveway.persistence.nova import evacuations, servers
from droveway.persistence.nova.cell import BlockDeviceMapping, InstanceExtra, Migration


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    yield made
    made.close()


def same(columns: Any, row: Any) -> bool:
    """Whether the columns have what the row has under their names."""
    names = [field.name for field in dataclasses.fields(columns)]
    return [getattr(columns, name) for name in names] == [getattr(row, name) for name in names]


def test_columns_are_what_the_rows_say(moving: Moving) -> None:
    with moving.cell.write() as session:
        assert same(servers.live_columns(session, SERVER), servers.live(session, SERVER))
        assert same(servers.extra_columns(session, SERVER), servers.extra_row(session, SERVER))
        assert same(servers.migration_columns(session, MOVE), servers.the_migration(session, MOVE))
        found, evacuated = evacuations.of_move(session, MOVE, None)
        assert same(found, servers.the_migration(session, MOVE))
        assert not evacuated


def test_rows_that_somebody_removed_are_not_found(moving: Moving) -> None:
    with moving.cell.write() as session:
        session.execute(sa.update(InstanceExtra).values(deleted=1))
        session.execute(sa.update(Migration).values(deleted=1))
        assert evacuations.of_move(session, MOVE, None) == (None, False)
        with pytest.raises(NotFound, match="no instance_extra row"):
            servers.extra_columns(session, SERVER)
        with pytest.raises(NotFound, match="no migration row"):
            servers.migration_columns(session, MOVE)


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"deleted": 1},
        {"vm_state": "deleted"},
        {"vm_state": "soft-delete"},
        {"task_state": "deleting"},
    ],
)
def test_a_server_is_gone_alike_however_it_is_asked_for(moving: Moving, changes: Any, deleting: bool) -> None:
    moving.change(**changes)
    # What is soft-deleted can be restored: it is not gone.
    expected = bool(changes) and "soft-delete" not in changes.values() and not (deleting and "task_state" in changes)
    for server, gone in ((SERVER, expected), ("another", True)):
        with moving.cell.write() as session:
            for ask in (servers.live, servers.live_columns):
                with pytest.raises(ServerDeleted) if gone else contextlib.nullcontext():
                    ask(session, server, deleting=deleting)
            assert servers.is_deleted_or_deleting(session.connection(), server, deleting=deleting) == gone


def test_volumes_are_told_from_no_server(moving: Moving) -> None:
    with moving.cell.begin() as connection:
        volume = servers.Attached(VOLUME, ATTACHMENT, "/dev/vdb", boot=False)
        assert servers.attached(connection, SERVER) == [volume]
        connection.execute(sa.update(BlockDeviceMapping).values(deleted=1))
        assert servers.attached(connection, SERVER) == []
    moving.change(deleted=1)
    with moving.cell.begin() as connection:
        assert servers.attached(connection, SERVER) is None
