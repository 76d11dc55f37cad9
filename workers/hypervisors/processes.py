"""Finds out how long processes of this machine run, from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from droveway.workers.hypervisors.sandbox.guest import born


def age(birth: int) -> float:
    """Return the seconds since the start of a process that was born at this clock tick after the machine's boot."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - birth / os.sysconf("SC_CLK_TCK"))


def age_of_youngest(argument: str) -> float | None:
    """Return the age in seconds of the youngest process with this argument on its command line; None without one."""
    wanted = argument.encode()
    births = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process ended meanwhile
            if wanted in path.read_bytes().split(b"\0"):
                births.append(born(int(path.parent.name)))
    known = [birth for birth in births if birth is not None]
    return age(max(known)) if known else None
