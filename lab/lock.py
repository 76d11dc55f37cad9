"""The lock of a lab: whoever runs it or makes it over holds the one, and whoever only looks asks whether it is held."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from droveway.errors import Refused
from droveway.lab.layout import Layout


@contextlib.contextmanager
def tried(files: Layout) -> Iterator[bool]:
    """Try to take the lock; whether it is held for as long as the block takes.

    Raises `droveway.errors.Refused` when the lab cannot be written.
    """
    try:
        file = files.lock.open("ab")
    except OSError as error:
        raise Refused(f"the lab {files.root} cannot be written ({error.strerror}): give yourself access") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextlib.contextmanager
def taken(files: Layout) -> Iterator[None]:
    """Keep every other command out; raises `droveway.errors.Refused` when one is at work, and as `tried`."""
    with tried(files) as held:
        if not held:
            raise Refused(f"another command uses the lab {files.root}: wait for it, or stop it")
        yield


def is_held(files: Layout) -> bool:
    """Whether any command holds the lock now."""
    try:
        file = files.lock.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            # Shared, so that those who only look do not see one another.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
