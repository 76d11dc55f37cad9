"""A cell's database goes away in the middle of a move between cells: what waits, what goes elsewhere, what is owed."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.journal.tables import Move

CLOUD = """
options: {cross_cell: true}
cells:
  cell1: {hosts: {host1: {}}}
  cell2: {hosts: {host3: {}}}
  cell3: {hosts: {host5: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def configure(lab: Stage, **options: float) -> None:
    """Give the lab's conductors these options, before anything has read them."""
    with lab.lab.layout.configuration.open("a") as file:
        file.write("\n[conductor]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))


class Databases:
    """Cells whose databases go away at a step, and come back when they are told to."""

    def __init__(self, lab: Stage, cell: str, step: str, direction: str = "execute", phase: str = "before") -> None:
        self._lab = lab
        self._path = lab.root / "cells" / f"{cell}.sqlite"
        self._at = (step, direction, phase)
        self.went = threading.Event()

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        """Be the conductor's probe: the cell goes once."""
        if not self.went.is_set() and (step, direction, phase) == self._at:
            self.take()

    def take(self) -> None:
        """Let the database be gone: it cannot be opened."""
        for made in self._lab.lab.cell_databases.values():
            made.close()
        self._path.rename(self._path.with_suffix(".kept"))
        self._path.mkdir()
        self.went.set()

    def bring(self) -> None:
        """Let it answer again."""
        self._path.rmdir()
        self._path.with_suffix(".kept").rename(self._path)


@contextlib.contextmanager
def moving(lab: Stage, away: Databases, begin: Callable[[], Move]) -> Iterator[str]:
    """Let the move run until its cell is away; yields its id."""
    with lab.running(probe=away):
        move = begin().id
        until(away.went.is_set, "the cell is away")
        yield move


def begin(lab: Stage, cell: str | None = None) -> Callable[[], Move]:
    return lambda: submit(lab.lab, MoveSpec(server="web", flavor="large", to_cell=cell))


def shown(lab: Stage, move: str) -> Move:
    return move_requests.read_move(lab.lab, move)


def waits(lab: Stage, move: str, cell: str) -> bool:
    return f"the database of cell {cell}, which does not answer (since " in (shown(lab, move).waits_for or "")


def copies(lab: Stage) -> dict[str, int]:
    """How many rows of the server, deleted ones too, each cell has."""
    server = lab.json("server", "show", "web")["id"]
    found = {}
    for cell in ("cell1", "cell2", "cell3"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows:
            query = "SELECT count(*) FROM instances WHERE uuid = ?"
            found[cell] = int(rows.execute(query, (server,)).fetchone()[0])
    return found


def test_a_move_waits_for_its_target_cell_and_goes_on_when_it_is_back(lab: Stage) -> None:
    """R1-43: from mark_migrating on, and it says for which cell it waits and since when."""
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, begin(lab, "cell2")) as move:
        until(lambda: waits(lab, move, "cell2"), "the move says what it waits for")
        assert shown(lab, move).step == "show_target"
        away.bring()
        ended = move_requests.carry(lab.lab, move)
    assert (ended.state, ended.dest_cell, ended.waits_for) == ("verifying", "cell2", None)
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize("cell", ["cell1", "cell2"])
def test_a_move_whose_mapping_was_switched_parks_with_one_command(lab: Stage, cell: str) -> None:
    """R1-43: from switch_mapping to start_guest it neither goes on nor back."""
    configure(lab, step_deadline=1.0)
    away = Databases(lab, cell, "carry_late_writes")
    with moving(lab, away, begin(lab, "cell2")) as move:
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
        assert f"droveway move retry {move[:8]}" in (ended.error or "")
        away.bring()
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "verifying"
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()
