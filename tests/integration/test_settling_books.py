"""A Placement that was put back from an older copy gets back what a move holds there, as its last step left it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""
SETTLE = ("--cell", "placement", "--reason", "last night's copy was put back")
RESIZE = ("server", "resize", "web", "--flavor", "large")


TWO_CELLS = "options: {cross_cell: true}" + CLOUD.replace(", host2: {}}}", "}}, cell2: {hosts: {host2: {}}}")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def copy(lab: Stage, tag: str = "first") -> Path:
    target = lab.root / f"placement.{tag}.copy"
    _copy(lab.root / "placement.sqlite", target)
    return target


def put_back(lab: Stage, kept: Path) -> None:
    """Put it back and take it as it is, as the documents say."""
    _copy(kept, lab.root / "placement.sqlite")
    lab.cli("db", "adopt")


def _copy(source: Path, target: Path) -> None:
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)


def settle(lab: Stage) -> str:
    return lab.cli("move", "settle", lab.move("web").id[:8], *SETTLE)


def held(lab: Stage) -> list[object]:
    move = lab.move("web")
    return [lab.held(move.server), lab.held(move.id)]


BETWEEN = {
    "while it waits": ((), []),
    "confirmed": (("confirm",), []),
    "reverted": (("revert",), []),
    "parked behind its claim": ((), [("save_request_spec", "execute")]),
    "parked in its undo": ((), [("release_source", "revert"), ("define_guest", "execute")]),
    "parked behind the source's release": (("confirm",), [("settle_records", "execute")]),
    "parked behind the return": (("revert",), [("settle_records", "execute")]),
}


@pytest.mark.parametrize("where", BETWEEN)
def test_both_consumers_of_a_move_between_cells_hold_again_what_it_left(tmp_path: Path, where: str) -> None:
    """The hosts are of two cells, and the rows that have to agree are those of the cell that it is mapped to."""
    verbs, faults = BETWEEN[where]
    with stage(tmp_path / "lab", TWO_CELLS) as lab:
        with lab.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nretry_for = 0\n")
        kept = copy(lab)
        if not verbs:
            arm(lab, faults)
        lab.cli(*RESIZE, "--to-cell", "cell2", code=4 if faults and not verbs else 0)
        for verb in verbs:
            arm(lab, faults)
            lab.cli("server", verb, "web", code=4 if faults else 0)
        left = held(lab)
        put_back(lab, kept)
        changed = held(lab) != left
        if where == "while it waits":
            command = f"droveway move settle {lab.move('web').id[:8]} --cell placement --reason TEXT"
            assert command in {row["mend"] for row in json.loads(lab.cli("audit", "-f", "json", code=3))}
        assert ("allocations of the " in settle(lab)) is changed
        assert held(lab) == left
        assert "nothing differs" in settle(lab)
        lab.cli("lab", "fault", "clear")
        if faults:
            lab.cli("move", "retry", lab.move("web").id[:8], code=3 if where == "parked in its undo" else 0)
        lab.assert_balanced()


def arm(lab: Stage, faults: list[tuple[str, str]]) -> None:
    for step, direction in faults:
        lab.arm(step, "fail", direction=direction, count=9)


PLACES = {
    "while it waits": ((), [], ()),
    "confirmed": (("confirm",), [], ()),
    "reverted": (("revert",), [], ()),
    "parked behind its claim": ((), [("save_request_spec", "execute")], ("move", "retry")),
    "parked in its undo": ((), [("release_source", "revert"), ("define_guest", "execute")], ("move", "retry")),
    "parked behind the source's release": (("confirm",), [("settle_records", "execute")], ("move", "retry")),
    "parked behind the return": (("revert",), [("restore_request_spec", "execute")], ("move", "retry")),
}


@pytest.mark.parametrize("where", PLACES)
def test_both_consumers_hold_again_what_the_move_left(lab: Stage, where: str) -> None:
    verbs, faults, after = PLACES[where]
    copies = [copy(lab)]
    if not verbs:
        for step, direction in faults:
            lab.arm(step, "fail", direction=direction, count=9)
    lab.cli(*RESIZE, code=4 if faults and not verbs else 0)
    for verb in verbs:
        copies.append(copy(lab, "waiting"))
        for step, direction in faults:
            lab.arm(step, "fail", direction=direction, count=9)
        lab.cli("server", verb, "web", code=4 if faults else 0)
    left = held(lab)
    for kept in copies:
        put_back(lab, kept)
        changed = held(lab) != left
        if where == "while it waits":
            command = f"droveway move settle {lab.move('web').id[:8]} --cell placement --reason TEXT"
            assert command in {row["mend"] for row in json.loads(lab.cli("audit", "-f", "json", code=3))}
        told = settle(lab)
        assert ("allocations of the " in told) is changed
        assert held(lab) == left
        assert "nothing differs" in settle(lab)
    lab.cli("lab", "fault", "clear")
    if after:
        lab.cli(*after, lab.move("web").id[:8], code=3 if where == "parked in its undo" else 0)
    lab.assert_balanced()


def test_what_somebody_else_did_meanwhile_stays(lab: Stage) -> None:
    kept = copy(lab)
    lab.cli(*RESIZE)
    put_back(lab, kept)
    move, before = lab.move("web"), held(lab)
    words = ("move", "settle", move.id[:8], *SETTLE)
    with contextlib.closing(sqlite3.connect(lab.root / "cells/cell1.sqlite")) as cell, cell:
        cell.execute("UPDATE instances SET host = 'host1' WHERE uuid = ?", (move.server,))
    assert "and the journal left it on host2 with large" in lab.refused(*words)
    with contextlib.closing(sqlite3.connect(lab.root / "cells/cell1.sqlite")) as cell, cell:
        cell.execute("UPDATE instances SET host = 'host2', task_state = 'rebuilding' WHERE uuid = ?", (move.server,))
    assert "has task rebuilding" in lab.refused(*words)
    with contextlib.closing(sqlite3.connect(lab.root / "cells/cell1.sqlite")) as cell, cell:
        cell.execute("UPDATE instances SET task_state = NULL WHERE uuid = ?", (move.server,))
    assert held(lab) == before
    settle(lab)
    lab.assert_balanced()
