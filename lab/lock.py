"""Takes the lock of a lab, which a command holds while it runs or changes the lab."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from droveway.errors import Refused
from droveway.lab.layout import Layout


@contextlib.contextmanager
def tried(files: Layout) -> Iterator[bool]:
    """Try to take the lock for the block; yields whether it was taken.

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
    """Hold the lock for the block; raises `droveway.errors.Refused` when another command holds it, and as `tried`."""
    with tried(files) as held:
        if not held:
            raise Refused(f"another command uses the lab {files.root}: wait for it, or stop it")
        yield


def is_held(files: Layout) -> bool:
    """Say whether any command holds the lock now."""
    try:
        file = files.lock.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            # A shared lock: two commands that only ask do not take each other for the holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
