"""A cell's database that was put back from an older copy gets back what a move left there, where the hosts show it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.operations import Stage, stage

from droveway.persistence.nova.cells import FENCE_KEY

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  mail: {flavor: small, host: host1, image: base, ports: [{}]}
"""
TABLES = {
    "instances": "uuid, host, node, compute_id, availability_zone, vm_state, task_state, power_state, instance_type_id,"
    " memory_mb, vcpus, root_gb, ephemeral_gb",
    "instance_extra": "instance_uuid, flavor, migration_context",
    "migrations": "uuid, status, source_compute, source_node, dest_compute, dest_node, dest_compute_id, dest_host,"
    " old_instance_type_id, new_instance_type_id, migration_type, hidden, cross_cell_move, user_id, project_id",
    "block_device_mapping": "instance_uuid, volume_id, attachment_id, volume_size, guest_format",
    "instance_system_metadata": "instance_uuid, key, value",
    "compute_nodes": "host, vcpus_used, memory_mb_used, local_gb_used",
}
"""What is compared of the rows that are not deleted, without their own numbers and times, and without the fence."""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def copy(lab: Stage, name: str, tag: str = "first") -> Path:
    target = lab.root / f"{name}.{tag}.copy"
    with (
        contextlib.closing(sqlite3.connect(lab.root / name)) as source,
        contextlib.closing(sqlite3.connect(target)) as kept,
    ):
        source.backup(kept)
    return target


def put_back(lab: Stage, kept: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(kept)) as source,
        contextlib.closing(sqlite3.connect(kept.with_name(kept.name.split(".")[0] + ".sqlite"))) as target,
    ):
        source.backup(target)


def rows(lab: Stage) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(lab.root / "cells/cell1.sqlite")) as database:
        return {
            table: sorted(
                (
                    row
                    for row in database.execute(f"SELECT {columns} FROM {table} WHERE deleted = 0")
                    if FENCE_KEY not in row
                ),
                key=repr,
            )
            for table, columns in TABLES.items()
        }


def settle(lab: Stage, cell: str = "cell1") -> str:
    move = lab.move("web").id[:8]
    return lab.cli("move", "settle", move, "--cell", cell, "--reason", "last night's copy was put back")


ENDS = {"verifying": (), "done": ("confirm",), "reverted": ("revert",)}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["resize", "migrate"])
def test_a_cell_that_was_put_back_gets_back_what_the_move_left(lab: Stage, kind: str, end: str) -> None:
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", kind, "web", *(("--flavor", "large") if kind == "resize" else ("--host", "host2")))
    for verb in ENDS[end]:
        lab.cli("server", verb, "web")
    left = rows(lab)
    assert "nothing differs" in settle(lab)
    put_back(lab, kept)
    assert rows(lab) != left
    told = settle(lab)
    assert "migrations" in told
    assert rows(lab) == left
    lab.assert_balanced()
    assert "nothing differs" in settle(lab)
    assert lab.history(lab.move("web").id)[-1].step == "settle_cell"
    if end == "verifying":
        lab.cli("server", "revert", "web")
        lab.assert_balanced()


PARKS = {
    "forward, before the switch": (False, ("resize",), [("set_aside", "revert"), ("copy_disks", "execute")]),
    "forward, after the switch": (False, ("resize",), [("save_request_spec", "execute")]),
    "its undo": (False, ("resize",), [("release_source", "revert"), ("define_guest", "execute")]),
    "its undo's end": (False, ("resize",), [("accept", "revert"), ("check_destination", "execute")]),
    "confirm": (True, ("confirm",), [("keep_copy", "execute")]),
    "revert": (True, ("revert",), [("discard_destination", "execute")]),
    "its undo too": (True, ("revert",), [("reserve_volumes", "revert"), ("release_destination", "execute")]),
}


@pytest.mark.parametrize("where", PARKS)
def test_a_move_that_is_parked_in_the_middle_gets_its_rows_back(lab: Stage, where: str) -> None:
    done, words, faults = PARKS[where]
    copies = [copy(lab, "cells/cell1.sqlite")]
    if done:
        lab.cli("server", "resize", "web", "--flavor", "large")
        copies.append(copy(lab, "cells/cell1.sqlite", "waiting"))
    for step, direction in faults:
        lab.arm(step, "fail", direction=direction, count=9)
    lab.cli("server", words[0], "web", *(("--flavor", "large") if words[0] == "resize" else ()), code=4)
    move, left = lab.move("web"), rows(lab)
    assert move.state == "needs-operator"
    for kept in copies:
        put_back(lab, kept)
        assert rows(lab) != left
        settle(lab)
        assert rows(lab) == left
        assert "nothing differs" in settle(lab)
    lab.cli("lab", "fault", "clear")
    put_back(lab, copies[0])
    lab.cli("move", "retry", move.id[:8], code=4)
    shown = lab.json("move", "show", move.id[:8])
    assert shown["error_code"] == "cell-put-back"
    assert f"droveway move settle {move.id[:8]} --cell cell1 --reason TEXT" in shown["error"]
    settle(lab)
    assert rows(lab) == left
    lab.cli("move", "retry", move.id[:8], code=3 if faults[0][1] == "revert" else 0)
    lab.assert_balanced()


@pytest.mark.parametrize(("step", "state"), [("check_source", "verifying"), ("discard_source", "needs-operator")])
def test_a_delete_that_waits_goes_on(lab: Stage, step: str, state: str) -> None:
    """The copy knows nothing of the delete, and its task is the user's."""
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", "resize", "web", "--flavor", "large")
    server = lab.id_of("web")
    lab.arm(step, "fail", count=9)
    lab.cli("lab", "server", "delete", "web", code=4)
    move, left = lab.move("web"), rows(lab)
    assert (move.state, move.delete_requested) == (state, True)
    put_back(lab, kept)
    settle(lab)
    assert rows(lab) == left
    assert lab.server("web").task_state == "deleting"
    lab.cli("lab", "fault", "clear")
    lab.cli("move", "retry", move.id[:8]) if state == "needs-operator" else lab.cli("lab", "server", "delete", server)
    assert server not in {row["id"] for row in lab.json("server", "list")}
    lab.assert_balanced()


UNDONE = {
    "failed before its mark": ("record_before", "never recorded what server web was"),
    "failed before its migration": ("record_migration", ""),
    "failed before its destination": ("claim", ""),
    "failed behind it": ("copy_disks", ""),
}


@pytest.mark.parametrize("why", UNDONE)
def test_no_migration_is_made_up_for_a_move_that_was_undone(lab: Stage, why: str) -> None:
    step, refusal = UNDONE[why]
    kept = copy(lab, "cells/cell1.sqlite")
    lab.arm(step, "fail", count=9)
    lab.cli("server", "resize", "web", "--flavor", "large", code=3)
    move, left = lab.move("web"), rows(lab)
    put_back(lab, kept)
    if refusal:
        words = ("move", "settle", move.id[:8], "--cell", "cell1", "--reason", "a copy")
        assert refusal in lab.refused(*words)
    else:
        settle(lab)
    assert rows(lab) == left
    lab.assert_balanced()


def test_the_last_move_that_wrote_anything_is_settled(lab: Stage) -> None:
    """Whatever was asked for since, and came to nothing; what the copy has of earlier ones as under way is ended."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", "confirm", "web")
    first = lab.move("web").id[:8]
    lab.cli("server", "resize", "web", "--flavor", "large")
    lab.cli("server", "confirm", "web")
    second = lab.move("web").id[:8]
    left = rows(lab)
    put_back(lab, kept)
    words = ("--cell", "cell1", "--reason", "a copy")
    assert f"settle its last move, {second}" in lab.refused("move", "settle", first, *words)
    lab.arm("record_before", "fail", count=9)
    lab.cli("move", "settle", second, *words)
    assert rows(lab) == left
    lab.cli("server", "migrate", "web", code=3)
    put_back(lab, kept)
    lab.cli("move", "settle", second, *words)
    assert rows(lab) == left
    lab.assert_balanced()


def test_a_move_that_waits_names_the_command_and_then_goes_on(lab: Stage) -> None:
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = lab.move("web").id[:8]
    put_back(lab, kept)
    command = f"droveway move settle {move} --cell cell1 --reason TEXT"
    for said in (lab.refused("server", "confirm", "web"), lab.refused("server", "revert", "web")):
        assert command in said
    assert command in lab.json("move", "show", move)["next"]
    settle(lab)
    lab.cli("server", "confirm", "web")
    lab.assert_balanced()


def test_nothing_is_written_while_the_hosts_show_something_else(lab: Stage) -> None:
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = lab.move("web").id[:8]
    put_back(lab, kept)
    old = rows(lab)
    words = ("move", "settle", move, "--cell", "cell1", "--reason", "a copy")
    lab.cli("lab", "worker", "stop", "host1")
    assert "host down host1" in lab.refused(*words)
    lab.cli("lab", "worker", "start", "host1")
    disk = lab.directory("host2", "web") / "disk"
    hidden = disk.rename(lab.root / "hidden")
    assert "host2, on which the journal left the server, does not show its disks whole" in lab.refused(*words)
    hidden.rename(disk)
    assert rows(lab) == old
    assert "is in cell cell1, not in cell7" in lab.refused(*words[:4], "cell7", *words[5:])
    assert "needs a reason" in lab.refused(*words[:5], "--reason", " ")
    assert "leave STEP and --as out" in lab.refused("move", "settle", move, "finish_records", *words[3:])
    assert "say which step" in lab.refused("move", "settle", move, "--reason", "a copy")
    assert rows(lab) == old


def test_a_cell_is_settled_by_its_id_too(lab: Stage) -> None:
    """By which other commands take it; the history has its name."""
    kept = copy(lab, "cells/cell1.sqlite")
    lab.cli("server", "migrate", "web", "--host", "host2")
    left, move = rows(lab), lab.move("web").id
    put_back(lab, kept)
    lab.cli("move", "settle", move, "--cell", lab.json("cell", "show", "cell1")["id"], "--reason", "a copy")
    assert rows(lab) == left
    assert (lab.history(move)[-1].result or {})["settled"] == "cell1"


def test_the_request_spec_in_the_api_database_is_written_too(lab: Stage) -> None:
    kept = copy(lab, "api.sqlite")
    lab.cli("server", "resize", "web", "--flavor", "large")
    put_back(lab, kept)
    assert "request_specs.spec" in settle(lab, "api")
    assert "nothing differs" in settle(lab, "api")
    lab.cli("server", "revert", "web")
    lab.assert_balanced()


@pytest.mark.parametrize("end", ENDS)
def test_an_audit_names_only_the_command_that_writes_the_cell(lab: Stage, end: str) -> None:
    """By rows of an earlier time its own guest, port, volume and disks would be left over, and its move failed."""
    copies = [copy(lab, "cells/cell1.sqlite")]
    lab.cli("server", "resize", "web", "--flavor", "large")
    move = lab.move("web")
    for verb in ENDS[end]:
        copies.append(copy(lab, "cells/cell1.sqlite", f"before-{verb}"))
        lab.cli("server", verb, "web")
    command = f"droveway move settle {move.id[:8]} --cell cell1 --reason TEXT"
    for kept in copies:
        put_back(lab, kept)
        found = json.loads(lab.cli("audit", "-f", "json", code=3))
        assert {row["mend"] for row in found if row["server"] == move.server} == {command}
        before = rows(lab)
        planned = json.loads(lab.cli("audit", "--heal", "-f", "json", code=3))
        assert {row["heal"] for row in planned} == {"leave"}
        lab.cli("audit", "--heal", "--yes", code=3)
        assert rows(lab) == before
        settle(lab)
        lab.assert_balanced()
