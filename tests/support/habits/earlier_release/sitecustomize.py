"""Make daemons of an earlier release come to a halt where a file says, one place for each server.

The file that HALTS names has, by server, the flow's kind, step, direction and phase, and whether the flow is to fail.
Whoever halts writes the server's id into the file's neighbour, and stands there until its process is killed.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from droveway.engines.run import MoveRun
from droveway.errors import StepError
from droveway.workers.daemon import Worker

HALTS = Path(os.environ["HALTS"])

_told: set[str] = set()


def _tell(server: str) -> None:
    if server not in _told:
        _told.add(server)
        with HALTS.with_suffix(".halted").open("a") as file:
            file.write(f"{server}\n")


def _place(server: str) -> list[Any]:
    """Read kind, step, direction, phase and whether the flow fails; the file may change while the daemon runs."""
    place: list[Any] = json.loads(HALTS.read_text()).get(server, ["", "", "", "", False])
    return place


def _probe(self: MoveRun, step: str, direction: str, phase: str) -> None:
    kind, *spot, fails = _place(self.server)
    if self.kind != kind:
        return
    if spot == [step, direction, phase]:
        _tell(self.server)
        threading.Event().wait()
    if (step, direction, phase) != ("start_guest", "execute", "before"):
        return
    if fails:
        # Of all that may fail there, this alone lets the flow be undone.
        raise StepError("it is to be undone", code="not-begun")
    if spot[2] == "needs-operator":
        raise StepError("it is to wait for a person", code="start-unknown")


def _begin(self: Worker, command: Any) -> None:
    _kind, *spot, _fails = _place(command.server)
    if spot == [command.step, command.direction, "unanswered"]:
        _tell(command.server)
        return
    _carry_out(self, command)


_carry_out = Worker._begin
MoveRun.probe = _probe
Worker._begin = _begin
