"""Makes of a conductor one that falls asleep: in its steps' probes, and right before calls that change a service."""

from __future__ import annotations

import threading
from typing import Any

from support.habits.sleeping.asleep import give_up, pass_by

from droveway.clients import rest
from droveway.engines.conductor import conductor, run

_here = threading.local()
_probe, _send, _dispatch = run.MoveRun.probe, rest.Rest.send, conductor.MoveConductor._dispatch_job


def probe(self: run.MoveRun, step: str, direction: str, phase: str) -> None:
    _here.server, _here.step = self.server, step if phase in ("before", "during") else None
    pass_by(self.server, f"{step} {phase}")
    _probe(self, step, direction, phase)


def send(self: rest.Rest, method: str, path: str, **options: Any) -> Any:
    step = getattr(_here, "step", None)
    if step is not None and method != "GET":
        pass_by(_here.server, f"{step} {method}")
    return _send(self, method, path, **options)


def dispatch(self: conductor.MoveConductor, job: Any) -> bool:
    try:
        return _dispatch(self, job)
    finally:
        give_up(getattr(_here, "server", ""))


run.MoveRun.probe = probe  # type: ignore[method-assign]
rest.Rest.send = send  # type: ignore[method-assign]
conductor.MoveConductor._dispatch_job = dispatch  # type: ignore[method-assign]
