"""The crash matrix of a server with an image, a port and a volume that goes to another host: a fixed sample.

A kill is a SIGKILL of the process that runs the step; that it was one is asserted by the harness.  All points are run
by `tools/matrix --full`, migrate among them, which has the graph of resize.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import assert_converged, sample, unmet

PAIRS: Final = ("--pairs", "--kind", "resize", "--kind", "revert", "--sample", "15", "--seed", "1")
"""A failure and then a kill or a failure in an undo that follows; a kill, and a kill of who resumes."""


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(900)
def test_a_move_converges_whatever_happens_in_it(record_property: Callable[[str, object], None]) -> None:
    """R0-24, R1-31, R1-32, R3-15, RC-02: the move ends where it should, the audit is clean, the server can be used.

    Each step is killed on each way that a flow can go, all else happens to each flow, and a sample of double faults.
    The server is stopped, started and moved again from each distinct end; after a delete nothing of it is left instead.
    """
    ran = assert_converged(record_property, *sample("three-hosts"), "--and", *PAIRS)
    assert unmet(ran) == []
