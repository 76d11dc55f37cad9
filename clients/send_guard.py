"""Ask right before a request that changes something in a cloud service whether its sender may still send it.

Whoever slept over its claim would otherwise send what another one has sent, or taken back, meanwhile.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Final

_GUARD: Final[contextvars.ContextVar[Callable[[], object] | None]] = contextvars.ContextVar("send_guard", default=None)


@contextlib.contextmanager
def asking(guard: Callable[[], object]) -> Iterator[None]:
    """Ask ``guard`` before each such request of this thread; it raises what the request is to fail with."""
    token = _GUARD.set(guard)
    try:
        yield
    finally:
        _GUARD.reset(token)


def ask() -> None:
    """Raise what the guard of this thread raises; nothing where it has none."""
    guard = _GUARD.get()
    if guard is not None:
        guard()
