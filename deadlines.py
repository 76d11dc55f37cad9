"""When the step that runs in this thread has to have ended, for whoever waits for a server on its behalf.

A server may fall silent, or answer a byte at a time, which no time-out between two bytes ever ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from typing import Final

from droveway.errors import StepError


class Deadline:
    """One try of a step and the moment at which it is to have ended."""

    def __init__(self, step: str, seconds: float) -> None:
        """``seconds`` from now on."""
        self.step = step
        self.seconds = seconds
        self.ends = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether that moment is over."""
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
    """A try of the step, which may take so many seconds of this thread, those under `paused` aside."""
    token = _STEP.set(Deadline(step, seconds))
    try:
        yield
    finally:
        _STEP.reset(token)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What a host is waited for is not the step's time: a command has a deadline of its own."""
    deadline, began = _STEP.get(), time.monotonic()
    try:
        yield
    finally:
        if deadline is not None:
            deadline.ends += time.monotonic() - began


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """One request, which counts as lost after so many seconds; None for as long as its step may take."""
    token = _CALL.set(None if seconds is None else _Call(seconds))
    try:
        yield
    finally:
        _CALL.reset(token)


def renew() -> None:
    """The request that is under way got on, as a long upload does: it has all its seconds again from now on."""
    call = _CALL.get()
    if call is not None:
        call.renew()


def left() -> float | None:
    """Seconds that may still be waited for a server here, 0 or less when none are left; None without a bound."""
    deadline, call = _STEP.get(), _CALL.get()
    ends = [each.ends for each in (deadline, call) if each is not None]
    return min(ends) - time.monotonic() if ends else None


def overdue(server: str) -> str | None:
    """The sentence that the step's deadline passed while this server was waited for; None while it has not."""
    deadline = _STEP.get()
    if deadline is None or not deadline.passed():
        return None
    return f"step {deadline.step} waited for {server} until its deadline of {deadline.seconds:g} s had passed"


def require_time(service: str, *, code: str) -> None:
    """Raise `droveway.errors.StepError` with this code once the step's deadline has passed over this service."""
    why = overdue(f"the {service} service")
    if why is not None:
        raise StepError(f"{why}: look at that service's log", code=code)
