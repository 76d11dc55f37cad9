"""Makes moves of a conductor wait at places that a test names, while everything else in the conductor goes on.

In the folder ``PAUSER`` the file ``SERVER.place`` names the place of the server's move: step, direction and phase.  The
move that comes there renames the file to ``SERVER.there``, and goes on when that is gone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from droveway.engines.conductor import run

FOLDER = Path(os.environ["PAUSER"])

_probe = run.MoveRun.probe


def probe(self: run.MoveRun, step: str, direction: str, phase: str) -> None:
    place, there = (FOLDER / f"{self.row.server_name}.{end}" for end in ("place", "there"))
    if place.exists() and place.read_text() == f"{step} {direction} {phase}":
        place.rename(there)
        while there.exists():
            time.sleep(0.01)
    _probe(self, step, direction, phase)


run.MoveRun.probe = probe  # type: ignore[method-assign]
