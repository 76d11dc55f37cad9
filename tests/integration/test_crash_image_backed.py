"""The crash matrix of a server with an image, a port and a volume that goes to another host (`tools/matrix`).

A kill is a SIGKILL of the process that runs the step; that it was one is asserted by the harness.  Resize and migrate
are one graph, so that migrate is left to `tools/matrix --full`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import assert_converged

KINDS: Final = ("--kind", "resize", "--kind", "confirm", "--kind", "revert", "--kind", "delete")
SEED: Final = ("--seed", "1")

EVERY_STEP: Final = (*KINDS, "--effect", "kill", "--effect", "fail", "--phase", "after")
"""Every step that was killed or has failed."""

WITHIN: Final = (*KINDS, "--phase", "before", "--phase", "during", "--phase", "stored", "--sample", "40", *SEED)
"""Before a step, between two effects of it, once it is stored."""

WORKERS: Final = (*WITHIN, "--effect", "kill", "--effect", "worker")
"""The process that is everything, or a worker alone in its own."""

OTHERS: Final = ("--effect", "twice", "--effect", "cancel", "--effect", "pause", "--effect", "refuse")
REPEATS: Final = (*KINDS, *OTHERS, "--sample", "25", *SEED)
"""A body that runs twice in a row; a cancel and a pause that arrive while a step is under way."""

DELETES: Final = (*KINDS, "--effect", "delete", "--direction", "execute", "--direction", "revert", "--part", "2/2")
"""The flow ends as it should, then the server, and nothing of it is anywhere."""

PAIRS: Final = ("--pairs", "--kind", "resize", "--kind", "revert", "--sample", "25", *SEED)
"""A failure and then a kill or a failure in an undo that follows; a kill, and a kill of who resumes."""


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(1500)
def test_a_move_converges_whatever_happens_in_it(record_property: Callable[[str, object], None]) -> None:
    """R0-24, R1-31, R1-32, R3-15, RC-02: the move ends where it should, the audit is clean, the server can be used.

    It is stopped, started and moved again from each distinct end; after a delete nothing of it is left instead.
    """
    choices = (WORKERS, REPEATS, DELETES, PAIRS)
    assert_converged(record_property, *EVERY_STEP, *(word for choice in choices for word in ("--and", *choice)))
