"""The workers of a crash point are processes, which are killed by what names them alone."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, cast

from droveway.lab.crash_workers import _Child

NOTHING = cast("Any", None)
"""A worker that was not told to begin asks for no lab and no probes."""


def test_a_worker_is_killed_wherever_it_is() -> None:
    child = _Child(NOTHING, "host1", NOTHING)
    child.kill()
    assert os.waitstatus_to_exitcode(os.waitpid(child._pid, 0)[1]) == -signal.SIGKILL


def test_whoever_has_the_number_of_a_worker_that_was_reaped_is_left_alone() -> None:
    child = _Child(NOTHING, "host1", NOTHING)
    child.end()
    assert os.waitstatus_to_exitcode(os.waitpid(child._pid, 0)[1]) == 0
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stranger:
        child._pid = stranger.pid
        child.kill()
        stranger.communicate()
    assert stranger.returncode == 0
