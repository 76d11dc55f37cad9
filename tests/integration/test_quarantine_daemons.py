"""A move that kills each conductor that takes it: real daemons, ended by the kernel in the same step each time."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import support
from support.daemons.daemons import LONG, Installation
from support.labs.small_lab import assert_balanced, file_flow, read_move, until

from droveway.clients.zookeeper import BOARD
from droveway.engines.conductor.fencing import QUARANTINE_AFTER
from droveway.persistence.journal.states import State

DEADLY: Final = str(Path(next(iter(support.__path__))) / "habits" / "deadly")


def test_a_move_that_kills_its_conductors_is_put_aside_until_somebody_retries_it(site: Installation) -> None:
    """The next conductor after the last of them lives, runs other moves, and leaves this one alone."""
    site.workers()
    move = file_flow(site.lab, "resize")
    for number in range(QUARANTINE_AFTER + 1):
        doomed = site.conductor(f"doomed{number}", PYTHONPATH=DEADLY)
        assert doomed.process.wait(LONG) == -signal.SIGKILL, doomed.text()
    survivor = site.conductor("survivor", PYTHONPATH=DEADLY)
    until(lambda: read_move(site.lab, move).state == State.NEEDS_OPERATOR, "that it is put aside", LONG)
    until(lambda: site.session.children(BOARD) == [], "an empty board", LONG)
    assert survivor.process.poll() is None
    shown = site.told("move", "show", move)
    assert f"{QUARANTINE_AFTER} conductors in a row ended in the middle of move {move[:8]}" in shown["error"]
    assert f"droveway move retry {move[:8]}" in shown["next"]
    survivor.stop()
    healthy = site.conductor("healthy")
    site.done("move", "retry", move)
    assert site.await_rest(move) == State.VERIFYING, healthy.text()
    assert_balanced(site.lab)
