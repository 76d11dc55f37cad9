"""What of a server's rows crosses from one cell to another, in two cells with all tables of Nova's schema."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.rows import whole_server
from support.rows.whole_server import OTHER, PROJECT, SERVER, Filler, everything, live_rows, naming

from droveway.errors import NotFound
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import cell, copied_tables, copies, copy_removal
from droveway.persistence.nova.copied_tables import MARKERS

SCHEMA = Path(__file__).parent.parent / "data" / "nova" / "nova-schema-cell.sql"
MARKED = {"droveway_epoch": "7", "droveway_move": "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"}
CACHES = ["bw_usage_cache", "volume_usage_cache"]


@pytest.fixture(scope="module", name="schema")
def fixture_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell with all of Nova's tables and no row."""
    path = tmp_path_factory.mktemp("schema") / "cell.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN;{SCHEMA.read_text()};COMMIT;")
    return path


@pytest.fixture(name="there")
def fixture_there(schema: Path, tmp_path: Path) -> Iterator[Database]:
    """A cell with two servers, each in every table, and rows of the archiver."""
    database = Database(sqlite_url(shutil.copy(schema, tmp_path / "there.sqlite")))
    with database.write() as session:
        for server in (SERVER, OTHER):
            Filler(session).fill(server)
        session.execute(
            sa.text(f"INSERT INTO shadow_instance_faults (id, instance_uuid, code) VALUES (1, '{SERVER}', 5)")
        )
        session.execute(sa.text(f"INSERT INTO volume_usage_cache (instance_uuid, volume_id) VALUES ('{SERVER}', 'v')"))
        session.execute(sa.text(f"INSERT INTO bw_usage_cache (uuid, start_period) VALUES ('{SERVER}', '2026-01-01')"))
    yield database
    database.close()


@pytest.fixture(name="here")
def fixture_here(schema: Path, tmp_path: Path) -> Iterator[Database]:
    """An empty cell."""
    database = Database(sqlite_url(shutil.copy(schema, tmp_path / "here.sqlite")))
    yield database
    database.close()


def read(database: Database, server: str = SERVER) -> copies.Copy:
    with database.read() as session:
        return copies.read(session, server)


def bring(database: Database, copy: copies.Copy, *, host: str | None = "host1") -> None:
    with database.write() as session:
        copies.insert(session, copy, host=host, node=host, task_state="resize_migrated", markers=MARKED)


def seen(database: Database, server: str = SERVER) -> dict[str, list[dict[str, Any]]]:
    with database.reading() as connection:
        return live_rows(connection, server)


def whole(database: Database) -> dict[str, list[dict[str, Any]]]:
    with database.reading() as connection:
        return {name: everything(connection, name) for name in sorted(sa.inspect(connection).get_table_names())}


def test_every_live_row_crosses_column_by_column(there: Database, here: Database) -> None:
    before = seen(there)
    assert all(before.values()), "a table without a row would show nothing"
    bring(here, read(there))
    assert seen(here) == before == seen(there)


def test_soft_deleted_rows_stay_behind(there: Database, here: Database) -> None:
    with there.write() as session:
        Filler(session).put_in_group(SERVER, "web")
    bring(here, read(there))
    gone = [row for rows in whole(there).values() for row in rows if row.get("deleted")]
    assert gone, "there is nothing that could cross"
    assert [row for rows in whole(here).values() for row in rows if row.get("deleted")] == []


def test_what_is_of_a_cell_alone_is_made_anew(there: Database, here: Database) -> None:
    with here.write() as session:
        Filler(session).fill(OTHER)
    bring(here, read(there))
    with here.reading() as connection:
        (server,) = everything(connection, "instances", f"uuid = '{SERVER}'")
        assert {name: server[name] for name in sorted(whole_server.LEFT_OUT["instances"] - {"id"})} == {
            "compute_id": None,
            "hidden": 1,
            "host": "host1",
            "node": "host1",
            "power_state": 4,
            "task_state": "resize_migrated",
        }
        (extra,) = everything(connection, "instance_extra", f"instance_uuid = '{SERVER}'")
        assert extra["migration_context"] is None
        moves = everything(connection, "migrations", f"instance_uuid = '{SERVER}'")
        assert [row["dest_compute_id"] for row in moves] == [None, None]
        assert len(everything(connection, "instance_id_mappings", f"uuid = '{SERVER}'")) == 1
        metadata = everything(connection, "instance_system_metadata", f"instance_uuid = '{SERVER}'")
        assert {row["key"]: row["value"] for row in metadata if row["key"] in MARKERS} == MARKED
        assert set(naming(connection, SERVER)) == {
            *(entry.table for entry in copied_tables.COPIED if entry.table != "instance_actions_events"),
            "instance_id_mappings",
        }


def test_a_copy_may_name_no_host(there: Database, here: Database) -> None:
    bring(here, read(there), host=None)
    with here.reading() as connection:
        (server,) = everything(connection, "instances")
    assert (server["host"], server["node"]) == (None, None)


def test_our_own_rows_do_not_cross(there: Database, here: Database) -> None:
    with there.write() as session:
        for key, value in MARKED.items():
            session.add(cell.InstanceSystemMetadata(instance_uuid=SERVER, key=key, value=value, deleted=0))
    copy = read(there)
    assert not {row["key"] for row in copy.rows["instance_system_metadata"]} & set(MARKERS)
    with (
        here.write() as session,
        pytest.raises(ValueError, match="markers are droveway_epoch, droveway_move, not nova"),
    ):
        copies.insert(session, copy, host=None, node=None, task_state=None, markers={"nova": "1"})


def test_a_server_that_is_not_there_is_named(there: Database) -> None:
    with pytest.raises(NotFound, match="server absent is not in this cell"):
        read(there, "absent")
    with there.write() as session:
        session.execute(sa.update(cell.Instance).where(cell.Instance.uuid == SERVER).values(deleted=cell.Instance.id))
    with pytest.raises(NotFound):
        read(there)


def test_a_copy_does_not_show_what_it_holds(there: Database) -> None:
    assert "key-0" not in repr(read(there))


def test_a_copy_is_read_in_one_statement(there: Database) -> None:
    """Each statement of a server sees its own moment: an event could else be read without its action."""
    statements: list[str] = []
    event.listen(there.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    read(there)
    assert len(statements) == 1


def test_what_the_transaction_has_written_is_read_and_a_look_writes_nothing(there: Database) -> None:
    mine = sa.select(cell.Instance).where(cell.Instance.uuid == SERVER)
    with there.read() as session:
        session.scalars(mine).one().display_name = "looked at"
        assert copies.read(session, SERVER).instance["display_name"] != "looked at"
        assert copies.barred(session, SERVER) == ""
    with there.write() as session:
        session.scalars(mine).one().display_name = "written"
        session.add(cell.ShareMapping(instance_uuid=SERVER))
        assert copies.read(session, SERVER).instance["display_name"] == "written"
        session.add(cell.FixedIp(instance_uuid=SERVER, deleted=0))
        assert "shares and addresses" in copies.barred(session, SERVER)
    assert read(there).instance["display_name"] == "written"


def test_groups_are_found_by_name_or_made(there: Database, here: Database) -> None:
    with there.write() as session:
        for name in ("web", "db"):
            Filler(session).put_in_group(SERVER, name)
    with here.write() as session:
        kept = Filler(session).add("security_groups", name="db", project_id=PROJECT, deleted=0, deleted_at=None)
        Filler(session).add("security_groups", name="web", project_id="another", deleted=0, deleted_at=None)
    bring(here, read(there))
    with here.reading() as connection:
        groups = {row["id"]: row for row in everything(connection, "security_groups", f"project_id = '{PROJECT}'")}
        named = [row["security_group_id"] for row in everything(connection, "security_group_instance_association")]
    assert sorted(row["name"] for row in groups.values()) == ["db", "default", "web"]
    assert sorted(groups[each]["name"] for each in named) == ["db", "web"]
    assert groups[kept]["name"] == "db"


def test_the_default_group_of_a_project_is_made_once(there: Database, here: Database) -> None:
    for server in (SERVER, OTHER):
        bring(here, read(there, server))
    with here.reading() as connection:
        assert [row["name"] for row in everything(connection, "security_groups")] == ["default"]


def test_an_insertion_that_breaks_off_leaves_nothing(there: Database, here: Database) -> None:
    before, copy = whole(here), read(there)
    run, last = 0, 1000

    def count(*_: Any) -> None:
        nonlocal run
        run += 1
        if run == last:
            raise InterruptedError

    event.listen(here.engine, "before_cursor_execute", count)
    with contextlib.suppress(InterruptedError), here.write() as session:
        copies.insert(session, copy, host=None, node=None, task_state=None, markers=MARKED)
        raise InterruptedError
    statements, last = run, 0
    assert whole(here) == before
    for stop in range(1, statements + 1):
        run, last = 0, stop
        with pytest.raises(InterruptedError):
            bring(here, copy)
        last = 0
        assert whole(here) == before, f"statement {stop}"


def test_tags_that_a_late_request_left_are_no_hindrance(there: Database, here: Database) -> None:
    with here.write() as session:
        session.execute(sa.insert(cell.Tag), {"resource_id": SERVER, "tag": "blue"})
        session.execute(sa.insert(cell.Tag), {"resource_id": OTHER, "tag": "blue"})
    bring(here, read(there))
    assert seen(here) == seen(there)
    assert [row["tag"] for row in whole(here)["tags"] if row["resource_id"] == OTHER] == ["blue"]


@pytest.mark.parametrize("at_most", [1, 3, 7, 1000])
def test_a_removed_copy_leaves_no_row(there: Database, at_most: int) -> None:
    with there.write() as session:
        Filler(session).put_in_group(SERVER, "web")
        for key, value in MARKED.items():
            session.add(cell.InstanceSystemMetadata(instance_uuid=SERVER, key=key, value=value, deleted=0))
    other, kept = seen(there, OTHER), whole(there)
    left = True
    while left:
        before = rows_of(whole(there))
        with contextlib.suppress(InterruptedError), there.write() as session:
            copy_removal.remove(session, SERVER, at_most=at_most)
            raise InterruptedError
        assert rows_of(whole(there)) == before, "a portion that was not committed"
        with there.write() as session:
            left = copy_removal.remove(session, SERVER, at_most=at_most)
        after = whole(there)
        stands = [row for row in after["instances"] if row["uuid"] == SERVER]
        fences = {row["key"] for row in after["instance_system_metadata"] if row["instance_uuid"] == SERVER}
        assert bool(stands) == left
        assert (fences & set(MARKERS) == set(MARKERS)) == left
        if left:
            assert before - rows_of(after) == at_most
    with there.reading() as connection:
        assert list(naming(connection, SERVER)) == CACHES
        events = everything(connection, "instance_actions_events")
        assert {row["action_id"] for row in events} <= {row["id"] for row in everything(connection, "instance_actions")}
    assert seen(there, OTHER) == other
    for name in (*CACHES, "shadow_instance_faults", "security_groups"):
        assert whole(there)[name] == kept[name]
    with there.write() as session:
        assert not copy_removal.remove(session, SERVER, at_most=at_most)


def rows_of(tables: dict[str, list[dict[str, Any]]]) -> int:
    return sum(map(len, tables.values()))


def test_a_deleted_server_is_removed_too(there: Database) -> None:
    with there.write() as session:
        session.execute(sa.update(cell.Instance).where(cell.Instance.uuid == SERVER).values(deleted=cell.Instance.id))
    with there.write() as session:
        assert not copy_removal.remove(session, SERVER, at_most=1000)
    with there.reading() as connection:
        assert list(naming(connection, SERVER)) == CACHES


def test_a_server_without_such_rows_may_cross(there: Database) -> None:
    with there.read() as session:
        assert copies.barred(session, SERVER) == ""


@pytest.mark.parametrize(
    ("table", "values", "has"),
    [
        ("share_mapping", {}, "shares"),
        ("fixed_ips", {"deleted": 0}, "addresses of nova-network"),
        ("fixed_ips", {"deleted": 77}, "addresses of nova-network"),
        ("pci_devices", {"deleted": 0}, "PCI devices of its host"),
        ("pci_devices", {"deleted": 77}, ""),
    ],
)
def test_what_exists_only_in_its_cell_bars_a_server(
    there: Database, table: str, values: dict[str, Any], has: str
) -> None:
    with there.write() as session:
        filler = Filler(session)
        if table == "pci_devices":
            values = values | {"compute_node_id": filler.add("compute_nodes", deleted=0)}
        filler.add(table, instance_uuid=SERVER, **values)
    with there.read() as session:
        said = copies.barred(session, SERVER)
        assert copies.barred(session, OTHER) == ""
    assert said == (
        has and f"server {SERVER} has {has}, which exist only in its own cell: it cannot cross to another one"
    )
