"""Makes a conductor one in which steps fail, as `FAILS` names them: step, direction and phase, several by commas."""

from __future__ import annotations

import os

from droveway.engines.conductor import run
from droveway.errors import StepError

FAILS = {tuple(place.split()) for place in os.environ["FAILS"].split(",")}

_probe = run.MoveRun.probe


def probe(self: run.MoveRun, step: str, direction: str, phase: str) -> None:
    if (step, direction, phase) in FAILS:
        raise StepError(f"{step} was planted to fail", code="fault")
    _probe(self, step, direction, phase)


run.MoveRun.probe = probe  # type: ignore[method-assign]
