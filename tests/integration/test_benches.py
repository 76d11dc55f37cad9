"""Each benchmark runs: what it measures is none of a test's business, and that it measures is.

What they are compared with is installed by ``tools/bench`` alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPY = """
import sys
from pathlib import Path
import bench_copy
bench_copy.DATA_MB = bench_copy.SIZE_MB = 8
site = bench_copy.Site(Path(sys.argv[1]))
with bench_copy.droveway(site) as copy:
    print(site.seconds(copy))
"""


def run(*words: str | Path) -> str:
    """What a Python with these words prints; whether it ended with 1, as for a goal that is missed, is left open."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("tools", "tests"))
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_whole_move_is_measured_within_a_cell_and_into_another_one() -> None:
    printed = run(ROOT / "tools" / "bench_move.py", "--rounds", "2")
    assert re.search(
        r"^(?:ok    |MISSED)  own part into another cell, times that within one: \d", printed, re.MULTILINE
    )
    assert re.fullmatch(r"bench move: 2 goals, \d missed", printed.splitlines()[-1])


def test_the_start_of_commands_of_a_lab_and_of_an_installation_is_measured() -> None:
    printed = run(ROOT / "tools" / "bench_cli.py", "--rounds", "1")
    assert re.search(r"^(?:ok    |MISSED)  move create, times the import of .*: \d", printed, re.MULTILINE)
    assert re.fullmatch(r"bench cli: 6 goals, \d missed", printed.splitlines()[-1])


def test_the_engine_runs_the_flows_that_are_measured(tmp_path: Path) -> None:
    printed = run(ROOT / "tools" / "bench_engine.py", "--run", "droveway", tmp_path / "journal.sqlite")
    times = json.loads(printed.splitlines()[-1])
    assert times
    assert all(wall > 0 and processor > 0 for wall, processor in times)


def test_a_disk_is_copied_and_that_is_timed(tmp_path: Path) -> None:
    assert float(run("-c", COPY, tmp_path)) > 0
