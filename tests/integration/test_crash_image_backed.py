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


@pytest.mark.parametrize("part", ["1/3", "2/3", "3/3"])
def test_every_step_converges_that_was_killed_or_has_failed(
    part: str, record_property: Callable[[str, object], None]
) -> None:
    """R1-31, R3-15, RC-02: the move ends where it should, the audit is clean, the server can be used.

    It is stopped, started and moved again from each distinct end; after a delete nothing of it is left instead.
    """
    faults = ("--effect", "kill", "--effect", "fail", "--phase", "after")
    assert_converged(record_property, *KINDS, *faults, "--part", part)


def test_kills_within_steps_and_of_workers_converge(record_property: Callable[[str, object], None]) -> None:
    """R1-31, R3-15: before a step, between two effects of it, once it is stored; a worker alone, in its own process."""
    faults = ("--effect", "kill", "--effect", "worker", "--phase", "before", "--phase", "during", "--phase", "stored")
    assert_converged(record_property, *KINDS, *faults, "--sample", "40", *SEED)


def test_steps_that_run_twice_or_meet_a_request_converge(record_property: Callable[[str, object], None]) -> None:
    """R1-31: a body that runs twice in a row; a cancel and a pause that arrive while a step is under way."""
    faults = ("--effect", "twice", "--effect", "cancel", "--effect", "pause", "--effect", "refuse")
    assert_converged(record_property, *KINDS, *faults, "--sample", "25", *SEED)


def test_a_delete_at_every_step_leaves_nothing(record_property: Callable[[str, object], None]) -> None:
    """R1-32, R0-24: the flow ends as it should, then the server, and nothing of it is anywhere."""
    ways = ("--direction", "execute", "--direction", "revert")
    assert_converged(record_property, *KINDS, "--effect", "delete", *ways, "--part", "2/2")
