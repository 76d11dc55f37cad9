"""Cells whose databases go away in the middle of a move between them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator

from support.labs.operations import Stage
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

API = "api"
"""The database that is none of a cell's, by the name that `Databases` knows it by."""


def configure(lab: Stage, **options: float) -> None:
    """Give the lab's conductors these options, before anything has read them."""
    with lab.lab.layout.configuration.open("a") as file:
        file.write("\n[conductor]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))


class Databases:
    """Cells whose databases go away at a step, and come back when they are told to."""

    def __init__(self, lab: Stage, cell: str, step: str, direction: str = "execute", phase: str = "before") -> None:
        self._lab = lab
        self._path = lab.root / ("api.sqlite" if cell == API else f"cells/{cell}.sqlite")
        self._at = (step, direction, phase)
        self.went = threading.Event()

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        """Be the conductor's probe: the cell goes once."""
        if not self.went.is_set() and (step, direction, phase) == self._at:
            self.take()

    def take(self) -> None:
        """Let the database be gone: it cannot be opened."""
        self._disconnect()
        self._path.with_suffix(".kept").hardlink_to(self._path)
        # At once: whoever connected in between would make an empty file, which is none that is away.
        nowhere = self._path.with_suffix(".nowhere")
        nowhere.symlink_to(self._path.parent, target_is_directory=True)
        nowhere.replace(self._path)
        self._disconnect()
        self.went.set()

    def bring(self) -> None:
        """Let it answer again."""
        self._path.with_suffix(".kept").replace(self._path)

    def _disconnect(self) -> None:
        for made in (self._lab.lab.api, *self._lab.lab.cell_databases.values()):
            made.close()


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


def owed(lab: Stage) -> list[tuple[str, str]]:
    """(cell, action) of each debt that stands."""
    return [(row["host"], lab.json("debt", "show", str(row["id"]))["action"]) for row in lab.json("debt", "list")]


def ask(lab: Stage, what: str) -> Callable[[], Move]:
    def asks() -> Move:
        move = lab.move("web")
        request = move_requests.confirm if what == "confirm" else move_requests.revert
        return move_requests.file_request(lab.lab, move.id, request)

    return asks
