"""What two conductors write to one database at the same moment, on each server that there may be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc
from support.servers import mariadb_server, postgres_server

from droveway.flows.step import OUTAGES
from droveway.persistence.database import Database, absence
from droveway.persistence.nova.cell import CellBase, Instance, InstanceSystemMetadata
from droveway.persistence.nova.cells import FENCE_KEY, Cells

SERVER = "5d1b8d5e-3f6c-4c77-9d0c-0d7f3a6f2f10"
MEETS_WITHIN = 2.0
"""Seconds that the first waits for the second one, which a lock may keep from coming."""


@pytest.fixture(scope="module", name="kind", params=["postgresql", "mariadb"])
def fixture_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", name="cell")
def fixture_cell(kind: str) -> Iterator[Database]:
    """A cell's database with one server."""
    servers = {"postgresql": postgres_server, "mariadb": mariadb_server}
    with servers[kind].running_server() as server:
        server.create("cell")
        database = Database(server.url("cell"))
        CellBase.metadata.create_all(database.engine)
        with database.write() as session:
            session.add(Instance(uuid=SERVER, deleted=0, memory_mb=256))
        yield database
        database.close()


def test_what_was_committed_before_a_lock_was_got_is_read_behind_it(cell: Database) -> None:
    """Usage is summed up behind a node's lock: in a snapshot that is older than the lock an update would be lost."""
    memory = sa.select(Instance.memory_mb).where(Instance.uuid == SERVER)
    with cell.write() as late:
        before = late.scalar(memory)
        with cell.write() as early:
            early.execute(sa.update(Instance).values(memory_mb=(before or 0) + 1))
        assert late.scalar(memory) == (before or 0) + 1


def test_two_claims_that_raise_a_fence_at_once_leave_one(cell: Database) -> None:
    cells, both = Cells({"cell": cell}), threading.Barrier(2)

    def meet(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO instance_system_metadata"):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(MEETS_WITHIN)

    event.listen(cell.engine, "before_cursor_execute", meet)
    try:
        with futures.ThreadPoolExecutor(2) as threads:
            raised = [threads.submit(cells.raise_fence, "cell", SERVER, epoch) for epoch in (5, 5)]
            for each in raised:
                each.result()
    finally:
        event.remove(cell.engine, "before_cursor_execute", meet)
    fences = sa.select(InstanceSystemMetadata.value).where(InstanceSystemMetadata.key == FENCE_KEY)
    with cell.read() as session:
        assert session.scalars(fences).all() == ["5"]


def test_a_server_that_only_reads_is_away(kind: str, cell: Database) -> None:
    """As a primary that was demoted says it on the connections that it kept."""
    with pytest.raises(exc.DBAPIError) as told:
        _write_to_one_that_only_reads(kind, cell)
    assert isinstance(told.value, OUTAGES)
    assert absence(told.value)


def _write_to_one_that_only_reads(kind: str, cell: Database) -> None:
    """MariaDB's read_only spares its administrators, which the tests' user is: its answer is given by hand."""
    with cell.write() as session:
        if kind == "postgresql":
            session.execute(sa.text("SET TRANSACTION READ ONLY"))
            session.execute(sa.update(Instance).values(memory_mb=1))
        session.execute(sa.text("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'read-only'"))
