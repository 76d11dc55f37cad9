"""`tools/bench daemons` with few moves: what it measures, it finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = {
    "conductor, MiB",
    "hand-over, s",
    "idle worker, MiB",
    "move create idle, ms",
    "move create queued, ms",
    "moves a minute, 1",
    "moves a minute, 2",
    *(
        f"{what} {when}, {figure}"
        for when in ("idle", "queued")
        for what, figure in (
            ("submit", "median ms"),
            ("submit", "p99 ms"),
            ("submit to claim", "median ms"),
            ("submit to first step", "median ms"),
        )
    ),
}


@pytest.mark.timeout(600)
def test_it_finds_every_figure() -> None:
    done = subprocess.run(
        [sys.executable, "tools/bench_daemons.py", "--rounds", "1", "--queued", "20"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = dict(re.findall(r"^(\S.*?)  +(\d+\.\d)", done.stdout, flags=re.MULTILINE))
    assert found.keys() == FIGURES, done.stdout + done.stderr
    assert all(float(figure) > 0 for figure in found.values())
    missed = done.stdout.count("MISSED")
    assert f"bench daemons: 6 goals, {missed} missed" in done.stdout
    assert done.returncode == min(missed, 1), done.stderr
