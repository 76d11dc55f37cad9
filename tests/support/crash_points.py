"""Running crash points in a process of its own, since the harness forks and pytest has threads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Final

EVERY: Final = ("--kind", "resize", "--kind", "confirm", "--kind", "revert", "--kind", "delete")
"""Every kind of flow; resize and migrate are one graph, so that one of them will do."""


def assert_converged(record: Callable[[str, object], None], *arguments: str) -> None:
    """What `tools/matrix` runs with these arguments: some points, all of which converge; the figures are recorded."""
    done = subprocess.run(
        [sys.executable, "-m", "droveway.lab.matrix", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    counted = re.fullmatch(r"crash matrix: (\d+) points, (\d+) converged, (\d+) leaks", said[-1] if said else "")
    assert counted, done.stdout + done.stderr
    points, converged, leaks = map(int, counted.groups())
    # Before the verdict: the figure at the end counts what failed too.
    record("crash points", (points, converged, leaks))
    assert (done.returncode, leaks) == (0, 0), done.stdout + done.stderr
    assert points == converged > 0
