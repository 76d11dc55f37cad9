"""Whether a lab is being run: asked by whoever only looks."""

from __future__ import annotations

import fcntl

from droveway.lab.layout import Layout


def is_run(files: Layout) -> bool:
    """Whether any command holds the lock of `droveway.lab.runner` now."""
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
