"""The crash matrix finds what a step leaves behind, without having been told of the step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def _matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.leaking_matrix", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_whose_undo_leaks_is_reported() -> None:
    """Forward it does no harm; wherever it is undone, what it left is found, and one line runs the point again."""
    done = _matrix("undone", "--kind", "resize", "--step", "bind_anew", "--effect", "kill", "--phase", "after")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match(r"resize:execute:bind_anew:kill:after +verifying ", line) for line in lines), lines
    assert any(re.match(r"resize:revert:bind_anew:kill:after +BAD ", line) for line in lines), lines
    again = "  again:  tools/matrix --cloud three-hosts resize:revert:bind_anew:kill:after"
    assert again in lines
    found = lines[lines.index(again) - 1]
    assert "binding" in found
    assert re.fullmatch(r"crash matrix: 3 points, 1 converged, 2 leaks", lines[-1]), lines[-1]


def test_what_a_kill_alone_leaves_is_found_though_the_flow_goes_the_same_way() -> None:
    """What leaks only when it is done again is in no state that was met: its point is run to its end, and is bad."""
    kills = ("--kind", "resize", "--direction", "execute", "--effect", "kill")
    steps = ("--step", "check_destination", "--step", "bind_twice", "--step", "reserve_volumes")
    done = _matrix("again", *kills, *steps, "--phase", "before", "--phase", "after")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.endswith("  met")]) == 4, lines
    bad = [line.split()[0] for line in lines if "  BAD  " in line]
    assert bad == ["resize:execute:bind_twice:kill:after"], lines
    assert lines[-1] == "crash matrix: 6 points, 5 converged, 1 leaks"


def test_every_point_is_run_to_its_end_where_that_is_asked_for() -> None:
    kills = ("--kind", "resize", "--direction", "execute", "--effect", "kill")
    steps = ("--step", "check_destination", "--step", "bind_twice", "--step", "reserve_volumes")
    done = _matrix("again", *kills, *steps, "--phase", "before", "--phase", "after", "--whole")
    assert not [line for line in done.stdout.splitlines() if line.endswith("  met")], done.stdout
    assert done.stdout.splitlines()[-1] == "crash matrix: 6 points, 5 converged, 1 leaks"


def test_a_kill_that_never_comes_is_no_convergence() -> None:
    done = _matrix("undone", "resize:execute:no_such_step:kill:after")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the fault never fired: execute:no_such_step:kill:after" in done.stdout
    assert done.stdout.splitlines()[-1] == "crash matrix: 1 points, 0 converged, 1 leaks"
