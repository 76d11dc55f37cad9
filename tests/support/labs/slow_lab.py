"""The command line, with workers that dawdle over a disk's later chunks while a file is missing: FILE WORDS..."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from droveway.cli import main
from droveway.lab import faults
from droveway.lab.layout import Layout
from droveway.wire.values import Direction

AT_ONCE = 6
"""The chunks of a worker's life that are not waited for: enough of them that a time left can be told."""
CHUNK_SECONDS = 4.0
"""At most; a copy that is watched must not end before its watcher looked, however slow the machine is."""

Probe = Callable[[str, Direction, str, str], None]


class Make(Protocol):
    """Makes the probe of one host's worker."""

    def __call__(self, files: Layout, host: str) -> Probe: ...


def slowed(make: Make, go: Path) -> Make:
    """Workers' probes that wait before each chunk but the first ones."""
    pause = threading.Event()
    passed = itertools.count(1)

    def probe(files: Layout, host: str) -> Probe:
        fire = make(files, host)

        def slow(step: str, direction: Direction, phase: str, effect: str) -> None:
            if effect == "chunk" and next(passed) > AT_ONCE:
                ends = time.monotonic() + CHUNK_SECONDS
                while not go.exists() and time.monotonic() < ends:
                    pause.wait(0.02)
            fire(step, direction, phase, effect)

        return slow

    return probe


if __name__ == "__main__":
    faults.worker_probe = slowed(faults.worker_probe, Path(sys.argv[1]))
    sys.exit(main.main(sys.argv[2:]))
