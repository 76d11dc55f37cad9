"""The crash matrix finds what a step leaves behind, without having been told of the step."""

from __future__ import annotations

import re
import subprocess
import sys

from support import leaking_matrix


def _matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(leaking_matrix.__file__), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_whose_undo_leaks_is_reported() -> None:
    """Forward it does no harm; wherever it is undone, what it left is found, and one line runs the point again."""
    done = _matrix("--kind", "resize", "--step", "bind_anew", "--effect", "kill", "--phase", "after")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match(r"resize:execute:bind_anew:kill:after +verifying ", line) for line in lines), lines
    assert any(re.match(r"resize:revert:bind_anew:kill:after +BAD ", line) for line in lines), lines
    again = "  again:  tools/matrix --cloud three-hosts resize:revert:bind_anew:kill:after"
    assert again in lines
    found = lines[lines.index(again) - 1]
    assert "binding" in found
    assert re.fullmatch(r"crash matrix: 3 points, 1 converged, 2 leaks", lines[-1]), lines[-1]


def test_a_kill_that_never_comes_is_no_convergence() -> None:
    done = _matrix("resize:execute:no_such_step:kill:after")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the fault never fired: execute:no_such_step:kill:after" in done.stdout
    assert done.stdout.splitlines()[-1] == "crash matrix: 1 points, 0 converged, 1 leaks"
