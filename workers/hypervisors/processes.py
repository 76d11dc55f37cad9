"""Processes of this machine, as Linux shows them below /proc."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from droveway.workers.hypervisors.sandbox.guest import born


def age(birth: int) -> float:
    """Seconds since a process was started that was born at this clock tick after the machine's boot."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - birth / os.sysconf("SC_CLK_TCK"))


def age_of_youngest(argument: str) -> float | None:
    """The age of the youngest process that has this argument on its command line; None when there is none."""
    wanted = argument.encode()
    births = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while it was looked at
            if wanted in path.read_bytes().split(b"\0"):
                births.append(born(int(path.parent.name)))
    known = [birth for birth in births if birth is not None]
    return age(max(known)) if known else None
