"""The workers of a crash point are processes: they can ask all that a worker asks, and are killed by a handle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, cast

from proofs.crash.workers import _Child, _Remote

from droveway.clients.zookeeper import Coordination

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


def test_a_worker_can_ask_of_its_session_all_that_a_worker_asks() -> None:
    """What it could not ask would be asked of no client at all, and fail in the middle of its loop."""
    files = (Path(__file__).parents[2] / "workers").rglob("*.py")
    asked = {name for path in files for name in re.findall(r"\bcoordination\.(\w+)", path.read_text(encoding="utf-8"))}
    assert {"watch", "put", "born"} <= asked
    assert (asked & {*vars(Coordination)}) - {*vars(_Remote)} == set()
