"""Keeps the deadline of the step that this thread runs, so that no request of the step waits longer than that.

A service or a database may fall silent. It may also answer one byte at a time, and then a time-out for each read never
ends the request.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from typing import Final

from droveway.errors import StepError


class Deadline:
    """One run of a step and the moment at which it has to have ended."""

    def __init__(self, step: str, seconds: float) -> None:
        """Begin a run of ``step`` that may take ``seconds`` from now on."""
        self.step = step
        self.seconds = seconds
        self.ends = time.monotonic() + seconds

    def passed(self) -> bool:
        """Say whether the deadline has passed."""
        return time.monotonic() >= self.ends


class _Call:
    """One request and the moment at which it counts as lost."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self.ends = time.monotonic() + self._seconds


_STEP: Final[contextvars.ContextVar[Deadline | None]] = contextvars.ContextVar("step", default=None)
_CALL: Final[contextvars.ContextVar[_Call | None]] = contextvars.ContextVar("call", default=None)


@contextlib.contextmanager
def running(step: str, seconds: float) -> Iterator[None]:
    """Bound all requests of this thread to a deadline, which is ``seconds`` of elapsed time from now on.

    ``step`` is the step that this thread runs. Time within `paused` does not count.
    """
    token = _STEP.set(Deadline(step, seconds))
    try:
        yield
    finally:
        _STEP.reset(token)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Stop the step's clock while the step waits for a host: a command to a host has a deadline of its own."""
    deadline, began = _STEP.get(), time.monotonic()
    try:
        yield
    finally:
        if deadline is not None:
            deadline.ends += time.monotonic() - began


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Bound one request to ``seconds`` of elapsed time; None lets the request take as long as its step may."""
    token = _CALL.set(None if seconds is None else _Call(seconds))
    try:
        yield
    finally:
        _CALL.reset(token)


def renew() -> None:
    """Give the request that is under way all its seconds again, because it made progress, as a long upload does."""
    call = _CALL.get()
    if call is not None:
        call.renew()


def left() -> float | None:
    """Return the seconds that this thread may still wait for a service.

    The number is 0 or less when the time is over. None when the wait has no limit.
    """
    deadline, call = _STEP.get(), _CALL.get()
    ends = [each.ends for each in (deadline, call) if each is not None]
    return min(ends) - time.monotonic() if ends else None


def overdue(awaited: str) -> str | None:
    """Return a sentence that the step's deadline passed while the step waited for ``awaited``; None before that.

    ``awaited`` names a service or a database.
    """
    deadline = _STEP.get()
    if deadline is None or not deadline.passed():
        return None
    return f"step {deadline.step} waited for {awaited} until its deadline of {deadline.seconds:g} s had passed"


def require_time(service: str, *, code: str) -> None:
    """Raise `droveway.errors.StepError` with this code when the step's deadline passed in its wait for the service."""
    why = overdue(f"the {service} service")
    if why is not None:
        raise StepError(f"{why}: look at that service's log", code=code)
