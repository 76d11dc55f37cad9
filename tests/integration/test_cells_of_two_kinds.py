"""A server's rows cross between two cells on servers of different kinds, ten times there and back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.rows import user_writes
from support.rows.whole_server import OTHER, SERVER, TABLES, Filler, everything, live_rows, naming
from support.servers import mariadb_server, postgres_server

from droveway.persistence.database import Database
from droveway.persistence.nova import cell, copied_tables, copies, copy_removal
from droveway.persistence.nova.late_writes import Carried, carry, changes, values, write

MARKED = {"droveway_epoch": "7", "droveway_move": "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"}
CROSSINGS = 10
ORDERS = [("postgresql", "mariadb"), ("mariadb", "postgresql")]
CACHES = {
    "volume_usage_cache": "INSERT INTO volume_usage_cache (instance_uuid) VALUES ('{}')",
    "bw_usage_cache": "INSERT INTO bw_usage_cache (uuid) VALUES ('{}')",
    "shadow_instance_faults": "INSERT INTO shadow_instance_faults (instance_uuid) VALUES ('{}')",
}
"""Tables that no model has: what a copy must not need, and what stays where it is."""


@pytest.fixture(scope="module", name="cells")
def fixture_cells() -> Iterator[dict[str, Database]]:
    """A cell on each kind of server, with a server in every table that stays where it is."""
    servers = {"postgresql": postgres_server, "mariadb": mariadb_server}
    with contextlib.ExitStack() as stack:
        made = {}
        for kind, module in servers.items():
            running = stack.enter_context(module.running_server())
            running.create("cell")
            made[kind] = Database(running.url("cell"))
            stack.callback(made[kind].close)
            cell.CellBase.metadata.create_all(made[kind].engine)
            with made[kind].write() as session:
                for table in CACHES:
                    column = "uuid" if table == "bw_usage_cache" else "instance_uuid"
                    session.execute(sa.text(f"CREATE TABLE {table} ({column} VARCHAR(36))"))
                Filler(session).fill(OTHER)
        yield made


@pytest.fixture(autouse=True)
def _clean(cells: dict[str, Database]) -> Iterator[None]:
    """Leave nothing of the server to the next test."""
    yield
    for database in cells.values():
        with database.write() as session:
            while copy_removal.remove(session, SERVER, at_most=100):
                pass
            for table in ("security_group_instance_association", "security_groups", *CACHES):
                session.execute(sa.text(f"DELETE FROM {table}"))


def fill(database: Database) -> None:
    with database.write() as session:
        filler = Filler(session)
        filler.fill(SERVER)
        for name in ("web", "db"):
            filler.put_in_group(SERVER, name)
        for statement in CACHES.values():
            session.execute(sa.text(statement.format(SERVER)))


def cross(source: Database, target: Database, server: str = SERVER) -> None:
    """One crossing as a flow does it: read, insert, remove in portions of one transaction each."""
    with source.read() as session:
        copy = copies.read(session, server)
    with target.write() as session:
        copies.insert(session, copy, host="host1", node="host1", task_state="resize_migrated", markers=MARKED)
    left = True
    while left:
        with source.write() as session:
            left = copy_removal.remove(session, server, at_most=10)


def seen(database: Database, server: str = SERVER) -> dict[str, list[dict[str, Any]]]:
    with database.reading() as connection:
        return live_rows(connection, server)


def read(database: Database) -> copies.Copy:
    with database.read() as session:
        return copies.read(session, SERVER)


def bring(source: Database, target: Database, known: dict[str, str]) -> Carried:
    """Carry what was written into one copy to the other one."""
    theirs = read(source)
    with target.write() as session:
        ours = copies.read(session, SERVER)
        carried = carry(values(theirs), values(ours), known, target_is_mapped=False)
        write(session, SERVER, changes(theirs, ours, carried.takes))
    return carried


def named(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(naming(connection, SERVER))


def whole(database: Database) -> dict[str, list[dict[str, Any]]]:
    with database.reading() as connection:
        return {name: sorted(everything(connection, name), key=str) for name in TABLES}


def soft_deleted(database: Database) -> list[str]:
    """The tables in which a row of the server's is soft-deleted."""
    return [
        name
        for name, rows in whole(database).items()
        if [row for row in rows if row.get("deleted") and SERVER in row.values()]
    ]


def grouped(database: Database) -> list[str]:
    """The names of the server's groups, by the rows that name both."""
    with database.reading() as connection:
        names = {row["id"]: row["name"] for row in everything(connection, "security_groups")}
        found = everything(
            connection, "security_group_instance_association", f"instance_uuid = '{SERVER}' AND deleted = 0"
        )
    return sorted(names[row["security_group_id"]] for row in found)


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_ten_times_there_and_back_every_column_is_as_it_was(
    cells: dict[str, Database], first: str, second: str
) -> None:
    home, away = cells[first], cells[second]
    fill(home)
    before = seen(home)
    assert all(before.values()), "a table without a row would show nothing"
    others = {kind: seen(database, OTHER) for kind, database in cells.items()}
    for number in range(CROSSINGS):
        for source, target in ((home, away), (away, home)):
            cross(source, target)
            assert seen(target) == before, number
            assert grouped(target) == ["db", "web"]
            assert soft_deleted(target) == []
            left = {*CACHES} - {"shadow_instance_faults"} if source is home else set()
            assert named(source) == left, number
            assert {kind: seen(database, OTHER) for kind, database in cells.items()} == others
            # What a server's other life there leaves in its way, as a delete of users does.
            with target.write() as session:
                for name in ("instance_faults", "instance_metadata", "virtual_interfaces"):
                    Filler(session).add(name, instance_uuid=SERVER, deleted=number + 100)
    with home.reading() as connection:
        assert [len(everything(connection, table)) for table in CACHES] == [1, 1, 1]


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_an_insertion_that_breaks_off_anywhere_leaves_nothing(
    cells: dict[str, Database], first: str, second: str
) -> None:
    fill(cells[first])
    with cells[first].read() as session:
        copy = copies.read(session, SERVER)
    target, before, run, last = cells[second], whole(cells[second]), 0, 0

    def count(*_: Any) -> None:
        nonlocal run
        run += 1
        if run == last:
            raise InterruptedError

    def insert() -> None:
        with target.write() as session:
            copies.insert(session, copy, host=None, node=None, task_state=None, markers=MARKED)
            if last:
                raise InterruptedError

    event.listen(target.engine, "after_cursor_execute", count)
    try:
        broken = 0
        while True:
            broken, run, last = broken + 1, 0, broken + 1
            with contextlib.suppress(InterruptedError):
                insert()
            reached, last = run, 0
            assert whole(target) == before, f"statement {broken}"
            if reached < broken:
                break
        assert broken > len(copied_tables.COPIED)
        insert()
    finally:
        event.remove(target.engine, "after_cursor_execute", count)
    assert seen(target) == seen(cells[first])


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_what_a_user_writes_is_carried_there_and_back(cells: dict[str, Database], first: str, second: str) -> None:
    home, away = cells[first], cells[second]
    fill(home)
    copied = read(home)
    with away.write() as session:
        copies.insert(session, copied, host=None, node=None, task_state=None, markers=MARKED)
    known, others = values(copied), {kind: seen(database, OTHER) for kind, database in cells.items()}
    assert values(read(away)) == known, "a value has one digest in both databases"
    with home.write() as session:
        user_writes.write_all(session, SERVER)
    carried = bring(home, away, known)
    assert set(carried.takes) == {key for keys, _ in user_writes.WRITES.values() for key in keys}
    assert user_writes.shown(read(away)) == user_writes.shown(read(home))
    with away.write() as session:
        session.execute(sa.update(cell.Instance).where(cell.Instance.uuid == SERVER).values(locked=False))
        session.execute(sa.delete(cell.Tag).where(cell.Tag.resource_id == SERVER, cell.Tag.tag == "red"))
        of_server = cell.BlockDeviceMapping.instance_uuid == SERVER
        session.execute(sa.update(cell.BlockDeviceMapping).where(of_server).values(volume_id="once more"))
        session.execute(
            sa.update(cell.InstanceMetadata).where(cell.InstanceMetadata.instance_uuid == SERVER).values(value="")
        )
    back = bring(away, home, carried.known)
    assert back.known == values(read(home)) == values(read(away))
    assert user_writes.shown(read(home)) == user_writes.shown(read(away))
    assert bring(home, away, back.known) == Carried((), (), (), back.known)
    assert {kind: seen(database, OTHER) for kind, database in cells.items()} == others


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_removal_that_breaks_off_at_any_portion_is_repeated(cells: dict[str, Database], kind: str) -> None:
    database = cells[kind]
    fill(database)
    other, left = seen(database, OTHER), True
    while left:
        before = whole(database)
        with contextlib.suppress(InterruptedError), database.write() as session:
            copy_removal.remove(session, SERVER, at_most=3)
            raise InterruptedError
        assert whole(database) == before
        with database.write() as session:
            left = copy_removal.remove(session, SERVER, at_most=3)
        assert bool([row for row in whole(database)["instances"] if row["uuid"] == SERVER]) == left
    assert named(database) == {"volume_usage_cache", "bw_usage_cache"}
    assert seen(database, OTHER) == other
    with database.write() as session:
        assert not copy_removal.remove(session, SERVER, at_most=3)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_row_that_comes_late_finds_no_server(cells: dict[str, Database], kind: str) -> None:
    """Someone who adds a row while the last portion runs waits for its end: nothing is left that names the server."""
    database, begun = cells[kind], threading.Event()
    with database.write() as session:
        Filler(session).add("instances", uuid=SERVER, deleted=0)
    told: list[BaseException] = []

    def add() -> None:
        begun.wait()
        try:
            with database.write() as late:
                Filler(late).add("instance_metadata", instance_uuid=SERVER, deleted=0)
        except sa.exc.IntegrityError as error:
            told.append(error)

    late = threading.Thread(target=add)
    late.start()

    def meet(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UNION ALL" in statement:  # what there is was read just now
            begun.set()
            late.join(0.5)

    event.listen(database.engine, "after_cursor_execute", meet)
    try:
        with database.write() as session:
            assert not copy_removal.remove(session, SERVER, at_most=10)
    finally:
        event.remove(database.engine, "after_cursor_execute", meet)
        begun.set()
        late.join()
    assert len(told) == 1
    assert named(database) == set()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_two_copies_of_a_project_that_come_at_once_share_its_group(cells: dict[str, Database], kind: str) -> None:
    """The project's default group is made by the first; the second one waits for it, and takes it."""
    source, target = cells["mariadb" if kind == "postgresql" else "postgresql"], cells[kind]
    fill(source)
    with source.read() as session:
        copy = copies.read(session, SERVER)
    at_group, done = threading.Event(), threading.Event()

    def other() -> None:
        at_group.wait()
        with target.write() as session:
            Filler(session).add("security_groups", name="db", project_id=copy.instance["project_id"], deleted=0)
            done.set()

    beside = threading.Thread(target=other)
    beside.start()

    def meet(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM security_groups" in statement and not at_group.is_set():
            at_group.set()
            done.wait()
            beside.join()

    event.listen(target.engine, "after_cursor_execute", meet)
    try:
        with target.write() as session:
            copies.insert(session, copy, host=None, node=None, task_state=None, markers=MARKED)
    finally:
        event.remove(target.engine, "after_cursor_execute", meet)
        beside.join()
    assert grouped(target) == ["db", "web"]
    with target.reading() as connection:
        assert sorted(row["name"] for row in everything(connection, "security_groups")) == ["db", "default", "web"]
