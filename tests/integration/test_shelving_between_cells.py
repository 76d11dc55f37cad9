"""Servers that are unshelved in another cell: what is left in both cells, and what others do meanwhile.

What stands in the cells is read, and written, by the tests' own statements.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.operations import Stage, changes, photograph, stage

CLOUD = """
options: {cross_cell: true}
cells:
  cell1: {hosts: {host1: {}, host4: {}}}
  cell2: {hosts: {host2: {}, host3: {}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 0}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, cell: cell1, image: base, ports: [{}], volumes: [{size_gb: 1}], state: shelved_offloaded}
  booted: {flavor: small, cell: cell1, ports: [{}], volumes: [{size_gb: 1, boot: true}], state: shelved_offloaded}
"""
SHELVED_KEYS = ("shelved_at", "shelved_host", "shelved_image_id")
# What an unshelve changes in the server's own row; the ids of a cell stay in it.
CHANGED = {
    *("id", "vm_state", "power_state", "host", "node", "compute_id", "launched_on", "launched_at"),
    *("availability_zone", "updated_at"),
}


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def ask(lab: Stage, database: str, query: str, *values: Any) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(lab.root / database)) as connection, connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]


def rows(lab: Stage, cell: str, server: str) -> list[dict[str, Any]]:
    return ask(lab, f"cells/{cell}.sqlite", "SELECT * FROM instances WHERE uuid = ?", lab.id_of(server))


def metadata(lab: Stage, cell: str, server: str) -> dict[str, str]:
    query = "SELECT key, value FROM instance_system_metadata WHERE instance_uuid = ?"
    return {each["key"]: each["value"] for each in ask(lab, f"cells/{cell}.sqlite", query, lab.id_of(server))}


def left_in(lab: Stage, cell: str, server: str) -> dict[str, int]:
    """The tables that have rows of the server, with how many; what names it as history only is left out."""
    found = {}
    path = lab.root / "cells" / f"{cell}.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            key = next((name for name in ("instance_uuid", "resource_id", "uuid") if name in columns), None)
            if key is not None:
                count = connection.execute(f"SELECT count(*) FROM {table} WHERE {key} = ?", (lab.id_of(server),))
                found[table] = count.fetchone()[0]
    return {table: count for table, count in found.items() if count}


def once(step: str, then: Callable[[], object], way: str = "execute") -> Callable[[str, str, str, str], None]:
    """A probe that does something the first time that the step, or its undo, begins."""
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, "before") and todo:
            todo.pop()()

    return probe


def write(lab: Stage, cell: str, query: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as connection, connection:
        assert connection.execute(query, values).rowcount == 1


@pytest.mark.parametrize("server", ["web", "booted"])
def test_the_server_lives_in_the_other_cell_alone(lab: Stage, server: str) -> None:
    """RC-09: its rows are as an unshelve leaves them, and the cell that it left has none of it."""
    (before,) = rows(lab, "cell1", server)
    known = metadata(lab, "cell1", server)
    assert {"instances", "instance_extra", "instance_info_caches"} <= set(left_in(lab, "cell1", server))
    assert f"cross_cell_unshelve {server}  - → host2  done" in lab.cli(
        "server", "unshelve", server, "--to-cell", "cell2", "--host", "host2"
    )
    assert left_in(lab, "cell1", server) == {}
    (after,) = rows(lab, "cell2", server)
    assert {name for name in after if after[name] != before[name]} <= CHANGED
    told = {name: after[name] for name in ("vm_state", "task_state", "power_state", "host", "launched_on", "hidden")}
    assert told == {
        "vm_state": "active",
        "task_state": None,
        "power_state": 1,
        "host": "host2",
        "launched_on": "host2",
        "hidden": 0,
    }
    # Neither the move's marks nor what told that it was shelved.
    assert metadata(lab, "cell2", server) == {key: known[key] for key in known if key not in SHELVED_KEYS}
    mapped = "SELECT cells.name FROM instance_mappings JOIN cell_mappings AS cells ON cells.id = cell_id"
    assert ask(lab, "api.sqlite", f"{mapped} WHERE instance_uuid = ?", lab.id_of(server)) == [{"name": "cell2"}]
    events = (
        "SELECT actions.action, events.event, events.result FROM instance_actions_events AS events"
        " JOIN instance_actions AS actions ON actions.id = events.action_id WHERE actions.instance_uuid = ?"
        " AND actions.action = 'unshelve' ORDER BY events.id"
    )
    wanted = ["get_image_info", "schedule_instances", "compute_unshelve_instance"][server == "booted" :]
    found = [tuple(each.values()) for each in ask(lab, "cells/cell2.sqlite", events, lab.id_of(server))]
    assert found == [("unshelve", event, "Success") for event in wanted]
    lab.cli("audit")
    # It is an ordinary server there: shelved and unshelved again, back in its first cell.
    lab.cli("server", "shelve", server)
    lab.cli("server", "unshelve", server, "--to-cell", "cell1")
    assert left_in(lab, "cell2", server) == {}
    lab.cli("audit")


@pytest.mark.parametrize("step", ["copy_records", "copy_disks", "show_target", "hide_source"])
def test_one_that_is_cancelled_leaves_the_server_shelved(lab: Stage, step: str) -> None:
    before = rows(lab, "cell1", "web")
    with lab.running(probe=once(step, lambda: lab.cli("move", "cancel", lab.move("web").id))):
        lab.cli("server", "unshelve", "web", "--to-cell", "cell2", code=3)
    assert left_in(lab, "cell2", "web") == {}
    (after,) = rows(lab, "cell1", "web")
    assert [{**after, "updated_at": None}] == [{**each, "updated_at": None} for each in before]
    lab.cli("audit")
    lab.cli("server", "unshelve", "web", "--to-cell", "cell2")


@pytest.mark.parametrize("step", ["show_target", "switch_mapping", "carry_late_writes", "hide_source", "start_guest"])
def test_what_a_user_writes_meanwhile_is_kept(lab: Stage, step: str) -> None:
    """Where the mapping names its first cell, or a request read it while it did."""
    rename = "UPDATE instances SET display_name = 'renamed' WHERE uuid = ?"
    server = lab.id_of("web")
    with lab.running(probe=once(step, lambda: write(lab, "cell1", rename, server))):
        lab.cli("server", "unshelve", "web", "--to-cell", "cell2")
    query = "SELECT display_name FROM instances WHERE uuid = ?"
    assert ask(lab, "cells/cell2.sqlite", query, server) == [{"display_name": "renamed"}]


def test_a_copy_of_unknown_reason_stays_and_bars_the_way(lab: Stage) -> None:
    """One that stands there is told when the move is asked for, one that comes later undoes it."""
    server = lab.id_of("web")
    query = "INSERT INTO instances (uuid, display_name, vm_state, hidden, deleted) VALUES (?, 'other', 'active', 0, 0)"
    with lab.running(probe=once("copy_records", lambda: write(lab, "cell2", query, server))):
        lab.cli("server", "unshelve", "web", "--to-cell", "cell2", code=3)
    assert "has rows of server web already, visible" in str(lab.move("web").error)
    assert "it has rows of server" in lab.refused("server", "unshelve", "web", "--to-cell", "cell2")
    assert [each["display_name"] for each in rows(lab, "cell2", "web")] == ["other"]
    (row,) = rows(lab, "cell1", "web")
    assert (row["vm_state"], row["task_state"], row["host"]) == ("shelved_offloaded", None, None)


def test_a_cell_without_permission_or_room_changes_nothing(tmp_path: Path) -> None:
    with stage(tmp_path / "lab", CLOUD.replace("cross_cell: true", "cross_cell: false")) as lab:
        before = photograph(lab.root)
        assert "may not leave it" in lab.refused("server", "unshelve", "web", "--to-cell", "cell2")
        assert "a move stays in its cell" in lab.refused("server", "unshelve", "web", "--host", "host2")
        assert "name one of the two" in lab.refused(
            "server", "unshelve", "web", "--host", "host2", "--to-cell", "cell1"
        )
        assert changes(before, photograph(lab.root)) == []


DELETES = {
    "marked": "UPDATE instances SET task_state = 'deleting' WHERE uuid = ?",
    "gone": "UPDATE instances SET task_state = 'deleting', vm_state = 'deleted', deleted = id WHERE uuid = ?",
}


@pytest.mark.parametrize("late", DELETES)
@pytest.mark.parametrize("step", ["switch_mapping", "hide_source", "start_guest", "remove_source_records"])
def test_a_delete_of_a_late_request_is_carried_out(lab: Stage, step: str, late: str) -> None:
    """Rule 23: it read the mapping before the switch, and wrote in the cell that the server has left.

    No copy lives on in either cell, and nothing of the server stays.
    """
    server = lab.id_of("web")
    with lab.running(probe=once(step, lambda: write(lab, "cell1", DELETES[late], server))):
        lab.cli("server", "unshelve", "web", "--to-cell", "cell2", code=3)
    lab.cli("move", "resume")
    live = "SELECT count(*) AS live FROM instances WHERE uuid = ? AND deleted = 0"
    assert [ask(lab, f"cells/{cell}.sqlite", live, server) for cell in ("cell1", "cell2")] == [[{"live": 0}]] * 2
    assert ask(lab, "services.sqlite", "SELECT id FROM ports WHERE server = ?", server) == []
    assert lab.held(server) == {}
    lab.cli("audit")
