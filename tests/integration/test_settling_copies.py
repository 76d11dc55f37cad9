"""A cell that was put back from a copy in a move between cells, a shelve or an unshelve gets back what was left."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.operations import Stage, stage

from droveway.lab import faults
from droveway.persistence.nova.cells import FENCE_KEY

CLOUD = """
options: {cross_cell: true}
cells: {cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""
TABLES = {
    "instances": "uuid, host, node, compute_id, availability_zone, vm_state, task_state, power_state, instance_type_id,"
    " memory_mb, vcpus, root_gb, ephemeral_gb, coalesce(hidden, 0), display_name, launched_on",
    "instance_extra": "instance_uuid, flavor, migration_context",
    "migrations": "uuid, status, source_compute, source_node, dest_compute, dest_node, dest_compute_id, dest_host,"
    " old_instance_type_id, new_instance_type_id, migration_type, hidden, cross_cell_move, user_id, project_id",
    "block_device_mapping": "instance_uuid, volume_id, CASE WHEN (SELECT hidden FROM instances WHERE uuid ="
    " instance_uuid) THEN '' ELSE attachment_id END, volume_size, guest_format",
    "instance_system_metadata": "instance_uuid, key, value",
    "instance_metadata": "instance_uuid, key, value",
    "virtual_interfaces": "instance_uuid, uuid",
    "compute_nodes": "host, vcpus_used, memory_mb_used, local_gb_used",
}
"""What is compared of the rows that are not deleted, without their own numbers and times, and without the fence."""
CELLS = ("cell1", "cell2")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def database(lab: Stage, name: str) -> Path:
    return lab.root / ("api.sqlite" if name == "api" else f"cells/{name}.sqlite")


class Copies:
    """Copies of databases, each by a name."""

    def __init__(self, lab: Stage) -> None:
        self.lab = lab
        self.made: dict[tuple[str, str], Path] = {}

    def take(self, name: str) -> None:
        for each in (*CELLS, "api"):
            self.made[each, name] = self._backup(database(self.lab, each), self.lab.root / f"{each}.{name}.copy")

    def at(self, *steps: str) -> Any:
        """A probe that makes copies before these steps, and heeds the faults that are armed for conductors."""
        heed = faults.conductor_probe(self.lab.lab.layout, lambda _move, _step: None)

        def probe(move: str, step: str, direction: str, phase: str) -> None:
            if (direction, phase) == ("execute", "before") and step in steps:
                self.take(step)
            heed(move, step, direction, phase)

        return probe

    def of(self, name: str) -> list[str]:
        """Name the copies of one database, the last one last."""
        return sorted((when for each, when in self.made if each == name), key=lambda when: when == "left")

    def put_back(self, name: str, when: str) -> None:
        self._backup(self.made[name, when], database(self.lab, name))

    @staticmethod
    def _backup(source: Path, target: Path) -> Path:
        with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)
        return target


def rows(lab: Stage, cell: str) -> dict[str, list[Any]]:
    left_out = {FENCE_KEY, "shelved_at"}
    with contextlib.closing(sqlite3.connect(database(lab, cell))) as connection:
        return {
            table: sorted(
                (
                    row
                    for row in connection.execute(f"SELECT {columns} FROM {table} WHERE deleted = 0")
                    if not left_out & set(row)
                ),
                key=repr,
            )
            for table, columns in TABLES.items()
        }


def settle(lab: Stage, move: str, cell: str) -> str:
    return lab.cli("move", "settle", move, "--cell", cell, "--reason", "last night's copy was put back")


def require_settled(lab: Stage, copies: Copies, move: str) -> None:
    """Each cell, put back to each copy, is as it was after one command."""
    copies.take("left")
    left = {cell: rows(lab, cell) for cell in CELLS}
    for cell in CELLS if lab.move("web").kind.startswith("cross") else CELLS[:1]:
        for when in copies.of(cell)[:-1]:
            copies.put_back(cell, when)
            old = rows(lab, cell)
            if (
                left[cell]["instances"]
                and not old["instances"]
                and not any(left[other]["instances"] for other in CELLS if other != cell)
            ):
                said = lab.refused("move", "settle", move, "--cell", cell, "--reason", "a copy")
                assert f"cell {cell} has no row of server web, and there is no other copy of it" in said
                copies.put_back(cell, "left")
                continue
            told = settle(lab, move, cell)
            for table, found in rows(lab, cell).items():
                assert found == left[cell][table], (cell, when, table)
            assert ("nothing differs" in told) is (old == left[cell]), (cell, when, told)
    assert {cell: rows(lab, cell) for cell in CELLS} == left


def test_where_a_move_between_cells_rests(lab: Stage) -> None:
    """While it waits, and once it is confirmed, which hides or moves nothing before the rows are right."""
    copies = Copies(lab)
    copies.take("first")
    with lab.running(copies.at("record_destination_copy", "switch_mapping")):
        lab.cli(*FORWARD)
    move = lab.move("web").id[:8]
    require_settled(lab, copies, move)
    assert all("nothing differs" in settle(lab, move, cell) for cell in CELLS)
    for cell in CELLS:
        copies.put_back(cell, "switch_mapping")
    assert f"droveway move settle {move} --cell cell2 --reason TEXT" in lab.refused("move", "confirm", move)
    settle(lab, move, "cell2")
    lab.cli("move", "confirm", move, code=4)
    shown = lab.json("move", "show", move)
    assert (shown["error_code"], shown["step"]) == ("cell-put-back", "mark_confirming")
    assert f"droveway move settle {move} --cell cell1 --reason TEXT" in shown["error"]
    settle(lab, move, "cell1")
    lab.cli("move", "retry", move)
    require_settled(lab, copies, move)
    lab.assert_balanced()


PARKS = {
    "forward, behind the switch": ("forward", [("save_request_spec", "execute")]),
    "its undo from the start": ("forward", [("switch_mapping", "revert"), ("carry_late_writes", "execute")]),
    "confirm, when it is gone": ("confirm", [("settle_records", "execute")]),
    "revert": ("revert", [("discard_destination", "execute")]),
}
THERE = ("unshelve", "--to-cell", "cell2")
FORWARD = ("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")


@pytest.mark.parametrize("where", PARKS)
def test_where_a_move_between_cells_is_parked(lab: Stage, where: str) -> None:
    flow, fail = PARKS[where]
    copies = Copies(lab)
    copies.take("first")
    if flow != "forward":
        lab.cli(*FORWARD)
        copies.take("waiting")
    for step, direction in fail:
        lab.arm(step, "fail", direction=direction, count=9)
    with lab.running(copies.at("switch_mapping")):
        lab.cli(*(FORWARD if flow == "forward" else ("server", flow, "web")), code=4)
    move = lab.move("web").id[:8]
    assert lab.json("move", "show", move)["state"] == "needs-operator"
    require_settled(lab, copies, move)
    lab.cli("lab", "fault", "clear")
    for cell in CELLS:
        left = rows(lab, cell)
        copies.put_back(cell, "waiting" if flow != "forward" else "first")
        if rows(lab, cell) == left:
            continue
        lab.cli("move", "retry", move, code=4)
        shown = lab.json("move", "show", move)
        assert (shown["error_code"], cell) == ("cell-put-back", cell)
        assert f"droveway move settle {move} --cell {cell} --reason TEXT" in shown["error"]
        settle(lab, move, cell)
    lab.cli("move", "retry", move, code=3 if flow == "forward" and fail[0][1] == "revert" else 0)
    lab.assert_balanced()


SHELVING = {
    "shelve": ((), ("shelve",), [("release_allocation", "execute")], "discard_source"),
    "unshelve there": (("shelve",), THERE, [("delete_images", "execute")], "carry_late_writes"),
}


@pytest.mark.parametrize("where", SHELVING)
def test_a_shelve_and_an_unshelve(lab: Stage, where: str) -> None:
    first, words, fail, step_of_copy = SHELVING[where]
    copies = Copies(lab)
    for word in first:
        lab.cli("server", word, "web")
    copies.take("before")
    for step, direction in fail:
        lab.arm(step, "fail", direction=direction, count=9)
    with lab.running(copies.at(step_of_copy)):
        lab.cli("server", words[0], "web", *words[1:], code=4 if fail else 0)
    move = lab.move("web").id[:8]
    require_settled(lab, copies, move)
    if fail:
        lab.cli("lab", "fault", "clear")
        copies.put_back("cell1", "before")
        lab.cli("move", "retry", move, code=4)
        shown = lab.json("move", "show", move)
        assert shown["error_code"] == "cell-put-back"
        assert f"droveway move settle {move} --cell cell1 --reason TEXT" in shown["error"]
        settle(lab, move, "cell1")
        lab.cli("move", "retry", move, code=3 if len(fail) > 1 else 0)
    lab.assert_balanced()


def rename(lab: Stage, cell: str, name: str) -> None:
    """As a user's request does that reaches the copy in that cell."""
    with contextlib.closing(sqlite3.connect(database(lab, cell))) as connection, connection:
        connection.execute("UPDATE instances SET display_description = ? WHERE uuid = ?", (name, lab.id_of("web")))


def described(lab: Stage, cell: str) -> str:
    with contextlib.closing(sqlite3.connect(database(lab, cell))) as connection:
        return str(connection.execute("SELECT display_description FROM instances").fetchone()[0])


def test_what_users_wrote_is_taken_from_the_copy_that_still_has_it(lab: Stage) -> None:
    """A copy of before the switch lacks what was written while the move went on."""
    copies = Copies(lab)

    def probe(move: str, step: str, direction: str, phase: str) -> None:
        copies.at("record_destination_copy")(move, step, direction, phase)
        if (step, phase) == ("mark_migrating", "before"):
            rename(lab, "cell1", "written in the move")

    with lab.running(probe):
        lab.cli(*FORWARD)
    move = lab.move("web").id[:8]
    assert described(lab, "cell2") == "written in the move"
    copies.take("waiting")
    copies.put_back("cell2", "record_destination_copy")
    assert described(lab, "cell2") != "written in the move"
    assert "server:description: as the other copy has it" in settle(lab, move, "cell2")
    assert described(lab, "cell2") == "written in the move"
    rename(lab, "cell2", "written since")
    assert "nothing differs" in settle(lab, move, "cell2")
    assert described(lab, "cell2") == "written since"
    copies.put_back("cell1", "record_destination_copy")
    settle(lab, move, "cell1")
    assert described(lab, "cell1") == "written since"
    lab.cli("server", "revert", "web")
    assert described(lab, "cell1") == "written since"
    lab.assert_balanced()


def test_the_mapping_in_the_api_database_is_written_too(lab: Stage) -> None:
    copies = Copies(lab)
    copies.take("first")
    lab.arm("save_request_spec", "fail", count=9)
    lab.cli(*FORWARD, code=4)
    move = lab.move("web").id[:8]
    lab.cli("lab", "fault", "clear")
    copies.put_back("api", "first")
    lab.cli("move", "retry", move, code=4)
    shown = lab.json("move", "show", move)
    assert shown["error_code"] == "cell-put-back"
    assert "is mapped to cell cell1, and this move had left it mapped to cell2" in shown["error"]
    assert f"droveway move settle {move} --cell api --reason TEXT" in shown["error"]
    assert "instance_mappings.cell_id: cell1 -> cell2" in settle(lab, move, "api")
    assert "nothing differs" in settle(lab, move, "api")
    lab.cli("move", "retry", move)
    copies.put_back("api", "first")
    told = settle(lab, move, "api")
    assert "instance_mappings.cell_id: cell1 -> cell2" in told
    assert "request_specs.spec" in told
    lab.cli("server", "revert", "web")
    lab.assert_balanced()


def test_rows_that_may_be_the_only_ones_are_not_removed(lab: Stage) -> None:
    copies = Copies(lab)
    copies.take("first")
    lab.cli(*FORWARD)
    lab.cli("server", "confirm", "web")
    move = lab.move("web").id[:8]
    copies.take("done")
    for cell in ("api", "cell2"):
        copies.put_back("cell1", "first")
        copies.put_back(cell, "first")
        before = rows(lab, "cell1")
        said = lab.refused("move", "settle", move, "--cell", "cell1", "--reason", "a copy")
        assert "may be the only ones, so they stay" in said
        assert f"settle that first, with --cell {cell}" in said
        assert rows(lab, "cell1") == before
        copies.put_back(cell, "done")
    settle(lab, move, "cell1")
    lab.assert_balanced()
