"""Asks, right before a request that changes something in a cloud service, whether its sender may still send it.

A conductor that stood still for a while may have lost its claim. Without this check it would send a request that
another conductor has sent, or undone, meanwhile.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Final

_GUARD: Final[contextvars.ContextVar[Callable[[], object] | None]] = contextvars.ContextVar("send_guard", default=None)


@contextlib.contextmanager
def asking(guard: Callable[[], object]) -> Iterator[None]:
    """Call ``guard`` before each request of this thread that changes something in a cloud service.

    The request fails with the error that ``guard`` raises.
    """
    token = _GUARD.set(guard)
    try:
        yield
    finally:
        _GUARD.reset(token)


def ask() -> None:
    """Call the guard of this thread, if it has one, and let its error through."""
    guard = _GUARD.get()
    if guard is not None:
        guard()
