"""Moves from one cell into another: rows, user's writes, ends, and what is refused.

What stands in the cells is read by the tests' own statements.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.cells_away import configure
from support.labs.operations import Stage, stage

from droveway.errors import Fenced, StepError
from droveway.flows.steps.records import other_copy
from droveway.persistence.nova import copy_removal

CLOUD = """
options: {cross_cell: CROSS}
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
  cell2: {hosts: {host3: {}, host4: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2, ephemeral_gb: 1, swap_mb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
"""
SMALL = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}

# The tables of a cell that name a server, by the column that does.
OF_SERVER = {
    "instances": "uuid",
    "instance_extra": "instance_uuid",
    "instance_info_caches": "instance_uuid",
    "instance_metadata": "instance_uuid",
    "instance_system_metadata": "instance_uuid",
    "instance_actions": "instance_uuid",
    "instance_faults": "instance_uuid",
    "block_device_mapping": "instance_uuid",
    "virtual_interfaces": "instance_uuid",
    "instance_id_mappings": "uuid",
    "migrations": "instance_uuid",
    "tags": "resource_id",
}
# What differs from one cell to the other by its nature.
OWN = {"id", "updated_at", "compute_id", "dest_compute_id", "action_id"}


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD.replace("CROSS", "true")) as made:
        yield made


def rows(lab: Stage, cell: str, server: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of the server in the cell, soft-deleted ones too, by table; of no table without one."""
    path = lab.root / "cells" / f"{cell}.sqlite"
    found = {}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        for table, column in OF_SERVER.items():
            query = f'SELECT * FROM "{table}" WHERE {column} = ? ORDER BY rowid'
            if here := [dict(row) for row in connection.execute(query, (lab.id_of(server),))]:
                found[table] = here
    return found


def write(lab: Stage, cell: str, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as connection, connection:
        connection.execute(statement, values)


def write_api(lab: Stage, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "api.sqlite")) as connection, connection:
        connection.execute(statement, values)


def mapped(lab: Stage, server: str) -> str:
    with contextlib.closing(sqlite3.connect(lab.root / "api.sqlite")) as api:
        query = (
            "SELECT name FROM instance_mappings JOIN cell_mappings ON cell_mappings.id = cell_id"
            " WHERE instance_uuid = ?"
        )
        return str(api.execute(query, (lab.id_of(server),)).fetchone()[0])


DELETE = "UPDATE instances SET task_state = 'deleting' WHERE uuid = ?"


def once(step: str, phase: str, then: Callable[[], None], way: str = "execute") -> Callable[[str, str, str, str], None]:
    """A probe that does something the first time that the step, or its undo, is there."""
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, phase) and todo:
            todo.pop()()

    return probe


def test_a_server_waits_in_the_other_cell_and_its_own_keeps_a_hidden_copy(lab: Stage) -> None:
    """R1-06, R1-11, R1-12: the copy is hidden until the switch, the source's afterwards; quota counts one."""
    before, was = lab.standing("web"), rows(lab, "cell1", "web")
    assert rows(lab, "cell2", "web") == {}
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    move = lab.move("web")
    assert (move.kind, move.state, move.dest_cell) == ("cross_cell_migrate", "verifying", "cell2")
    assert mapped(lab, "web") == "cell2"
    assert lab.standing("web") == before.verifying(str(move.dest_host), "small", SMALL)
    (there,), (here,) = rows(lab, "cell2", "web")["instances"], rows(lab, "cell1", "web")["instances"]
    assert (there["hidden"], there["host"], there["vm_state"], there["task_state"]) == (
        0,
        move.dest_host,
        "resized",
        None,
    )
    assert (here["hidden"], here["host"], here["compute_id"], here["power_state"]) == (1, move.dest_host, None, 4)
    assert (here["vm_state"], here["task_state"]) == ("active", "resize_migrated")
    for table in ("block_device_mapping", "virtual_interfaces", "instance_info_caches"):
        kept = [{name: row[name] for name in row.keys() - OWN} for row in rows(lab, "cell2", "web").get(table, [])]
        own = [{name: row[name] for name in row.keys() - OWN} for row in rows(lab, "cell1", "web").get(table, [])]
        assert kept == own
    assert [row["uuid"] for row in rows(lab, "cell2", "web")["block_device_mapping"]] == [
        row["uuid"] for row in was["block_device_mapping"]
    ]
    assert [row["name"] for row in lab.json("server", "list")] == ["idle", "web"]
    lab.assert_balanced()


def test_a_confirm_removes_every_row_of_the_cell_that_was_left(lab: Stage) -> None:
    """R1-12, R1-21: physically, since a soft-deleted row would have the archiver take the mapping."""
    before = lab.standing("web")
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    lab.cli("server", "confirm", "web")
    move = lab.move("web")
    assert move.state == "done"
    assert rows(lab, "cell1", "web") == {}
    assert lab.standing("web") == before.confirmed(str(move.dest_host), "small", SMALL)
    assert [
        row["key"] for row in rows(lab, "cell2", "web")["instance_system_metadata"] if "droveway" in row["key"]
    ] == []
    lab.assert_balanced()


def test_a_revert_leaves_the_server_as_it_was_and_nothing_in_the_other_cell(lab: Stage) -> None:
    before = lab.standing("web")
    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    assert lab.server("web").flavor == "large"
    lab.cli("server", "revert", "web")
    assert lab.move("web").state == "reverted"
    assert mapped(lab, "web") == "cell1"
    assert lab.standing("web") == before
    (row,) = rows(lab, "cell1", "web")["instances"]
    assert (row["hidden"], row["vm_state"], row["task_state"]) == (0, "active", None)
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / "cell2.sqlite")) as other:
        left = {
            table
            for table, column in OF_SERVER.items()
            if other.execute(f'SELECT 1 FROM "{table}" WHERE {column} = ?', (lab.id_of("web"),)).fetchone()
        }
    assert left == set()
    lab.assert_balanced()


def test_a_removal_that_breaks_off_takes_nothing_from_the_copy_that_stays(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a half removed copy lacks no user has removed."""
    server, remove, calls = lab.id_of("web"), copy_removal.remove, list[int]()

    def broken(session: Any, of: str, *, at_most: int) -> bool:
        calls.append(at_most)
        if len(calls) in (20, 21):
            raise RuntimeError("the database went away")
        return remove(session, of, at_most=1)

    for name in ("first", "second"):
        write(lab, "cell1", "INSERT INTO tags (resource_id, tag) VALUES (?, ?)", server, name)
        row = "INSERT INTO instance_metadata (instance_uuid, key, value, deleted) VALUES (?, ?, 'kept', 0)"
        write(lab, "cell1", row, server, name)
    monkeypatch.setattr(other_copy.copy_removal, "remove", broken)
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    lab.cli("server", "confirm", "web")
    assert len(calls) > 25
    assert rows(lab, "cell1", "web") == {}
    left = rows(lab, "cell2", "web")
    assert sorted(row["tag"] for row in left["tags"]) == ["first", "second"]
    assert sorted(row["key"] for row in left["instance_metadata"] if row["value"] == "kept") == ["first", "second"]
    lab.assert_balanced()


def test_the_rights_to_a_console_of_the_host_that_was_left_go(lab: Stage) -> None:
    row = (
        "INSERT INTO console_auth_tokens (token_hash, console_type, host, port, instance_uuid, expires)"
        " VALUES ('h', 'novnc', 'host1', 5900, ?, 4000000000)"
    )
    write(lab, "cell1", row, lab.id_of("idle"))
    lab.cli("server", "migrate", "idle", "--to-cell", "cell2")
    for cell in ("cell1", "cell2"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as of_cell:
            assert of_cell.execute("SELECT count(*) FROM console_auth_tokens").fetchone() == (0,)


def test_a_copy_that_is_missing_tells_of_no_delete(lab: Stage) -> None:
    """As after a copy of before the move was put back: the server that runs in the other cell stays."""
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    there = lab.standing("web")
    for table, column in OF_SERVER.items():
        if table != "instance_actions":
            write(lab, "cell1", f'DELETE FROM "{table}" WHERE {column} = ?', lab.id_of("web"))
    lab.cli("server", "revert", "web", code=4)
    move = lab.move("web")
    assert (move.state, move.error_code, move.delete_requested) == ("needs-operator", "cell-put-back", False)
    assert f"droveway move settle {move.id[:8]} --cell cell1 --reason TEXT" in str(move.error)
    assert lab.standing("web") == there


def test_a_copy_that_the_mapping_names_is_not_removed(lab: Stage) -> None:
    """Somebody mapped the server back by hand, in the middle of a confirm."""
    with lab.lab.layout.configuration.open("a") as file:
        file.write("[conductor]\nretry_for = 0.2\n")

    def map_back() -> None:
        with contextlib.closing(sqlite3.connect(lab.root / "api.sqlite")) as api, api:
            api.execute(
                "UPDATE instance_mappings SET cell_id = (SELECT id FROM cell_mappings WHERE name = 'cell1')"
                " WHERE instance_uuid = ?",
                (server,),
            )

    server = lab.id_of("web")
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    with lab.running(probe=once("remove_source_records", "before", map_back)):
        lab.cli("server", "confirm", "web", code=4)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("needs-operator", "last-copy")
    assert rows(lab, "cell1", "web")["instances"][0]["hidden"] == 1
    assert "block_device_mapping" in rows(lab, "cell1", "web")
    assert not [row for row in rows(lab, "cell1", "web")["instance_system_metadata"] if row["key"] == "droveway_move"]


def test_a_stopped_server_stays_off(lab: Stage) -> None:
    lab.cli("server", "migrate", "idle", "--to-cell", "cell2", "--confirm", "auto")
    server = lab.server("idle")
    assert (server.cell, server.vm_state, server.power_state) == ("cell2", "stopped", "SHUTDOWN")
    assert lab.standing("idle").runs == []
    lab.assert_balanced()


def test_what_a_user_writes_meanwhile_goes_along_there_and_back(lab: Stage) -> None:
    """What he wrote before the switch is in the copy; what he wrote while the server waited comes back."""

    def rename(cell: str, name: str) -> Callable[[], None]:
        return lambda: write(lab, cell, "UPDATE instances SET display_description = ?", name)

    server = lab.id_of("web")
    tag = ("INSERT INTO tags (resource_id, tag) VALUES (?, ?)", server)
    with lab.running(probe=once("stop_guest", "before", rename("cell1", "on its way"))):
        lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    assert rows(lab, "cell2", "web")["instances"][0]["display_description"] == "on its way"
    write(lab, "cell2", *tag, "seen there")
    write(lab, "cell2", "UPDATE instances SET display_description = 'waits' WHERE uuid = ?", server)
    with lab.running(probe=once("switch_mapping", "after", lambda: write(lab, "cell2", *tag, "late"))):
        lab.cli("server", "revert", "web")
    assert rows(lab, "cell1", "web")["instances"][0]["display_description"] == "waits"
    assert sorted(row["tag"] for row in rows(lab, "cell1", "web")["tags"]) == ["late", "seen there"]
    lab.assert_balanced()


def test_what_a_user_writes_between_a_copy_and_its_journal_goes_along(lab: Stage) -> None:
    """A conductor that lost its claim had made the copy: what is written before the next one takes it is a change."""

    def give_up() -> None:
        write(lab, "cell1", "UPDATE instances SET display_description = 'behind the copy'")
        raise Fenced("another conductor has the claim")

    with lab.running(probe=once("copy_records", "after", give_up)):
        lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    assert rows(lab, "cell2", "web")["instances"][0]["display_description"] == "behind the copy"
    lab.assert_balanced()


def test_there_and_back_ten_times(lab: Stage) -> None:
    """R1-34: soft-deleted and archived children, and finished migrations of earlier crossings, are in nobody's way."""
    before, server = lab.standing("web"), lab.id_of("web")
    left, taken = {"cell1": 0, "cell2": 0}, 0
    for turn in range(10):
        home, other = ("cell1", "cell2") if turn % 2 == 0 else ("cell2", "cell1")
        write(lab, home, "INSERT INTO instance_metadata (instance_uuid, key, deleted) VALUES (?, 'gone', 7)", server)
        write(lab, home, "INSERT INTO instance_faults (instance_uuid, code, deleted) VALUES (?, 500, 7)", server)
        if turn % 3:
            taken += archive(lab, home)
            left[home] += 2
        lab.cli("server", "migrate", "web", "--host", "host3" if other == "cell2" else "host1")
        if turn == 4:
            lab.cli("server", "revert", "web")
            assert rows(lab, other, "web") == {}
            lab.cli("server", "migrate", "web", "--host", "host3")
        lab.cli("server", "confirm", "web")
        # A soft-deleted row of an instance would have the archiver take its mapping.
        taken += archive(lab, home) + archive(lab, other)
        assert (mapped(lab, "web"), rows(lab, home, "web")) == (other, {})
        assert archived(lab, server) == left
    assert lab.standing("web") == before
    assert taken == sum(left.values())
    assert len(rows(lab, "cell1", "web")["migrations"]) == 11
    lab.assert_balanced()


def archive(lab: Stage, cell: str) -> int:
    """Do what ``nova-manage db archive_deleted_rows`` does in a cell and to the mapping; how many rows it took."""
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as connection, connection:
        for (gone,) in connection.execute("SELECT uuid FROM instances WHERE deleted != 0").fetchall():
            write_api(lab, "DELETE FROM instance_mappings WHERE instance_uuid = ?", gone)
        taken = 0
        for table in OF_SERVER.keys() - {"tags"}:
            connection.execute(f'CREATE TABLE IF NOT EXISTS "shadow_{table}" AS SELECT * FROM "{table}" WHERE 0')
            connection.execute(f'INSERT INTO "shadow_{table}" SELECT * FROM "{table}" WHERE deleted != 0')
            taken += connection.execute(f'DELETE FROM "{table}" WHERE deleted != 0').rowcount
    return taken


def archived(lab: Stage, server: str) -> dict[str, int]:
    """How many rows of the server each cell's archive has."""
    found = {}
    for cell in ("cell1", "cell2"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as connection:
            tables = [
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'shadow_%'")
            ]
            found[cell] = sum(
                connection.execute(
                    f'SELECT count(*) FROM "{table}" WHERE {OF_SERVER[table[7:]]} = ?', (server,)
                ).fetchone()[0]
                for table in tables
            )
    return found


@pytest.mark.parametrize("step", ["copy_records", "copy_disks", "show_target", "switch_mapping", "hide_source"])
def test_a_cancel_leaves_nothing_in_the_other_cell(lab: Stage, step: str) -> None:
    before, was = lab.standing("web"), rows(lab, "cell1", "web")
    with lab.running(probe=once(step, "after", lambda: lab.cli("move", "cancel", lab.move("web").id, code=0))):
        lab.cli("server", "migrate", "web", "--to-cell", "cell2", code=3)
    assert lab.move("web").state == "cancelled"
    assert lab.standing("web") == before
    assert rows(lab, "cell2", "web") == {}
    assert rows(lab, "cell1", "web")["block_device_mapping"][0]["uuid"] == was["block_device_mapping"][0]["uuid"]
    lab.assert_balanced()


def test_a_delete_while_it_waits_leaves_nothing_in_either_cell(lab: Stage) -> None:
    """R1-33: the move is confirmed first."""
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    server = lab.id_of("web")
    lab.cli("lab", "server", "delete", "web")
    for cell in ("cell1", "cell2"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows_of:
            query = "SELECT count(*) FROM instances WHERE uuid = ? AND deleted = 0"
            assert rows_of.execute(query, (server,)).fetchone() == (0,)
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / "cell1.sqlite")) as rows_of:
        assert rows_of.execute("SELECT count(*) FROM instances WHERE uuid = ?", (server,)).fetchone() == (0,)
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["switch_mapping", "show_target", "stop_guest", "copy_records"])
def test_a_delete_of_a_late_request_counts_when_the_move_is_undone(lab: Stage, step: str) -> None:
    """Rule 23: it read the mapping between the switch and its undo, and wrote in the cell that is left again."""
    server = lab.id_of("web")
    late = once(step, "before", lambda: write(lab, "cell2", DELETE, server), "revert")

    def probe(move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == ("hide_source", "execute", "after"):
            raise StepError("it fails", code="test")
        late(move, at, way, phase)

    with lab.running(probe=probe):
        lab.cli("server", "migrate", "web", "--to-cell", "cell2", code=3)
    lab.cli("move", "resume")
    live = "SELECT count(*) FROM instances WHERE uuid = ? AND deleted = 0"
    for cell in ("cell1", "cell2"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows_of:
            assert rows_of.execute(live, (server,)).fetchone() == (0,)
    assert lab.held(server) == {}
    lab.cli("audit")


def test_a_copy_by_which_nova_evacuates_is_not_removed(lab: Stage) -> None:
    """Rule 10: Nova had read the mapping before its switch was undone, and compares nothing that it overwrites."""
    server = lab.id_of("web")

    def evacuate() -> None:
        values = ("a2f1ad1c-6d4b-4f0b-9a55-3f2b2f0f2a11", server)
        write(
            lab,
            "cell2",
            "INSERT INTO migrations (uuid, instance_uuid, migration_type, status, source_compute, deleted, hidden,"
            " cross_cell_move) VALUES (?, ?, 'evacuation', 'accepted', 'host3', 0, 0, 0)",
            *values,
        )

    lands = once("copy_records", "before", evacuate, "revert")

    def probe(move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == ("hide_source", "execute", "after"):
            raise StepError("it fails", code="test")
        lands(move, at, way, phase)

    configure(lab, retry_for=0.1)
    with lab.running(probe=probe):
        said = lab.cli("server", "migrate", "web", "--to-cell", "cell2", code=4)
    assert "Nova evacuates server web by its rows in cell cell2" in said
    assert len(rows(lab, "cell2", "web")["instances"]) == 1
    write(lab, "cell2", "DELETE FROM migrations WHERE migration_type = 'evacuation'")
    lab.cli("move", "retry", lab.move("web").id, code=3)
    assert "instances" not in rows(lab, "cell2", "web")
    lab.assert_balanced()


def test_rows_of_another_copy_in_the_way_are_told_and_left_alone(lab: Stage) -> None:
    def insert() -> None:
        strange = "INSERT INTO instances (uuid, display_name, hidden, deleted) VALUES (?, 'strange', 0, 0)"
        write(lab, "cell2", strange, server)

    before, server = lab.standing("idle"), lab.id_of("idle")
    with lab.running(probe=once("claim", "after", insert)):
        lab.cli("server", "migrate", "idle", "--to-cell", "cell2", "--wait", code=3)
    move = lab.move("idle")
    assert (move.state, move.error_code) == ("failed", "second-copy")
    assert "cell cell2 has rows of server idle already, visible" in str(move.error)
    assert lab.standing("idle") == before
    assert [row["display_name"] for row in rows(lab, "cell2", "idle")["instances"]] == ["strange"]
    assert "rows of server" in lab.refused("server", "migrate", "idle", "--to-cell", "cell2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--to-cell", "cell9"), "cell cell9 is unknown"),
        (("--to-cell", "cell1", "--host", "host3"), "host host3 is in cell cell2 and not in cell cell1"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(lab: Stage, words: tuple[str, ...], told: str) -> None:
    assert told in lab.refused("server", "migrate", "idle", *words)


def test_a_disabled_cell_takes_no_server(lab: Stage) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "api.sqlite")) as api, api:
        api.execute("UPDATE cell_mappings SET disabled = 1 WHERE name = 'cell2'")
    assert "cell cell2, which is disabled" in lab.refused("server", "migrate", "idle", "--to-cell", "cell2")


def test_the_servers_own_cell_keeps_it_there(lab: Stage) -> None:
    lab.cli("server", "migrate", "idle", "--to-cell", "cell1", "--confirm", "auto")
    move = lab.move("idle")
    assert (move.kind, move.dest_cell, move.dest_host) == ("migrate", "cell1", "host2")


def test_nobody_leaves_a_cell_without_permission(tmp_path: Path) -> None:
    """R1-03: the default is nobody."""
    with stage(tmp_path / "lab", CLOUD.replace("CROSS", "false")) as lab:
        assert "may not leave it: set [cross_cell] allowed" in lab.refused(
            "server", "migrate", "idle", "--to-cell", "cell2"
        )
        assert "a move stays in its cell" in lab.refused("server", "migrate", "idle", "--host", "host3")
        assert "a move stays in its cell" in lab.refused("move", "plan", "idle", "--to-host", "host3")


def test_a_plan_for_another_cell_is_kept_to(lab: Stage) -> None:
    plan = lab.json("move", "plan", "idle", "--to-cell", "cell2")
    assert (plan["kind"], plan["destination"]) == ("cross_cell_migrate", "host3")
    lab.cli("move", "create", "idle", "--from-plan", plan["id"])
    assert lab.move("idle").kind == "cross_cell_migrate"
