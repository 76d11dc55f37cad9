"""Where a server is that is being deleted, by its rows and by the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, EPOCH, FLOW, MOVE, NOW, SERVER, SOURCE, Moving

from droveway.errors import StepError
from droveway.flows.run import Context
from droveway.flows.steps.records import homes
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova.cell import Instance, Migration

REFUGE = "host3"


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path, kind="delete")
    made.place(SOURCE, "deleting", "error")
    made.row.dest_host = None
    yield made
    made.close()


def context(moving: Moving, home: dict[str, str]) -> Context:
    return dataclasses.replace(moving.context("stop_guest"), inputs={"home": home})


def ran(moving: Moving, step: str, *, epoch: int = EPOCH, **columns: object) -> None:
    known = {"move_id": MOVE, "flow_uuid": FLOW, "flow": "delete", "direction": "execute", "started_at": NOW}
    with moving.journal.write() as session:
        session.add(MoveStep(step=step, epoch=epoch, **known, **columns))


def test_a_server_that_stays_has_one_home(moving: Moving) -> None:
    assert homes.hold(context(moving, {"host": SOURCE})) == homes.Homes(SOURCE)
    moving.change(host=None)
    assert homes.hold(context(moving, {"host": ""})).every == [SOURCE]


@pytest.mark.parametrize("told", [{"server": "deleted"}, {}])
def test_of_a_server_without_rows_the_journal_knows(moving: Moving, told: dict[str, str]) -> None:
    with moving.cell.write() as session:
        session.execute(sa.update(Instance).values(deleted=1))
    assert homes.hold(context(moving, told)) == homes.Homes(SOURCE)


def test_a_server_that_was_evacuated_is_marked_again_where_it_is(moving: Moving) -> None:
    moving.change(host=REFUGE, task_state=None)
    assert homes.hold(context(moving, {"host": SOURCE})) == homes.Homes(REFUGE, (SOURCE,))
    assert moving.seen()[::2] == (REFUGE, "deleting")


@pytest.mark.parametrize("task", ["rebuilding", "rebuild_block_device_mapping", "rebuild_spawning"])
def test_an_evacuation_is_waited_for_until_somebody_asks_again(moving: Moving, task: str) -> None:
    moving.change(task_state=task)
    ctx = context(moving, {"host": SOURCE})
    for epoch in (EPOCH, EPOCH - 1):
        with pytest.raises(StepError, match="move retry") as caught:
            homes.hold(ctx)
        assert (caught.value.error_code, moving.seen()[2]) == ("being-evacuated", task)
        ran(moving, "stop_guest", epoch=epoch, error=caught.value.as_dict())
    assert homes.hold(ctx) == homes.Homes(SOURCE)
    assert moving.seen()[2] == "deleting"


def test_an_evacuation_that_has_begun_may_have_built_something(moving: Moving) -> None:
    with moving.cell.write() as session:
        for uuid, status, host in (("a", "pre-migrating", REFUGE), ("b", "done", "host4"), ("c", "failed", "host5")):
            session.add(
                Migration(
                    uuid=uuid,
                    instance_uuid=SERVER,
                    migration_type="evacuation",
                    status=status,
                    dest_compute=host,
                    deleted=0,
                )
            )
    assert homes.hold(context(moving, {"host": SOURCE})) == homes.Homes(SOURCE, (REFUGE,))
    assert homes.commanded_hosts(moving.cells, moving.row) == {SOURCE, REFUGE, "host4", "host5"}


def test_what_was_cleared_is_known_by_a_release_that_noted_less(moving: Moving) -> None:
    ran(moving, "mark_deleting", result={"host": SOURCE})
    ran(moving, "remove_guest", result={})
    assert homes.cleared(moving.context("delete_ports")) == {SOURCE}
    ran(moving, "remove_guest", result={"hosts": [SOURCE, DESTINATION]})
    assert homes.cleared(moving.context("delete_ports")) == {SOURCE, DESTINATION}


@pytest.mark.parametrize(("host", "task"), [(REFUGE, "deleting"), (SOURCE, None), (SOURCE, "rebuilding")])
def test_rows_that_changed_since_are_not_removed(moving: Moving, host: str, task: str | None) -> None:
    moving.change(host=host, task_state=task)
    with moving.cell.read() as session, pytest.raises(StepError, match="changed while"):
        homes.require_cleared(session.scalars(sa.select(Instance)).one(), homes.Homes(SOURCE))
