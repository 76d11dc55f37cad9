"""The crash matrix of a server with an image, a port and a volume that goes to another host (`tools/matrix`).

A kill is a SIGKILL of the process that runs the step; that it was one is asserted by the harness.  Resize and migrate
are one graph, so that migrate is left to `tools/matrix --full`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import EVERY, assert_converged

PAIRS: Final = ("--pairs", "--kind", "resize", "--kind", "revert", "--sample", "15", "--seed", "1")
"""A failure and then a kill or a failure in an undo that follows; a kill, and a kill of who resumes."""


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(1500)
def test_a_move_converges_whatever_happens_in_it(record_property: Callable[[str, object], None]) -> None:
    """R0-24, R1-31, R1-32, R3-15, RC-02: the move ends where it should, the audit is clean, the server can be used.

    Every single fault at every step, and a sample of double ones.  The server is stopped, started and moved again from
    each distinct end; after a delete nothing of it is left instead.
    """
    assert_converged(record_property, *EVERY, "--and", *PAIRS)
