"""Commits of the journal that fail, or whose answer never comes: what was stored is read back before anything else."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from support.rigs.engine_rig import Host, Rig, embedded_rig, fault, until

from droveway.persistence import database
from droveway.persistence.database import SqliteDialect
from droveway.persistence.journal import step_runs
from droveway.persistence.journal.tables import Claim, MoveStep

Loss = Literal["before", "after"]


@dataclasses.dataclass
class Commits:
    """Counts the commits of writes, and loses one of them."""

    lost: int
    loss: Loss
    seen: int = 0

    def commit(self, dialect: SqliteDialect, connection: Any) -> None:
        """In the place of the dialect's own."""
        writes = bool(connection.info.get(database._WRITES))
        self.seen += writes
        lost = writes and self.seen == self.lost
        if not lost or self.loss == "after":
            super(SqliteDialect, dialect).do_commit(connection)
        if lost:
            raise sqlite3.OperationalError("the connection was lost")


@pytest.mark.parametrize("loss", ["before", "after"])
def test_a_commit_that_is_lost_anywhere_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Loss
) -> None:
    """Every commit of a whole move, in turn: each run of a step has one row, each row ends, and no step runs anew.

    A step runs twice only where it lost its own end, which is stored with the beginning of the next one.
    """
    with embedded_rig(tmp_path) as rig:
        host = rig.host()
        for number in itertools.count(1):
            commits = Commits(number, loss)
            rig.world.log.clear()
            rig.world.fail("x copy", fault())
            rig.world.hooks.update(dict.fromkeys(("x claim", "x copy", "r claim", "x finish"), _compare))
            move = rig.submit(server=f"server{number}")
            rig.post(move)
            with monkeypatch.context() as patched:
                patched.setattr(SqliteDialect, "do_commit", lambda self, raw, at=commits: at.commit(self, raw))
                until(lambda ours=move: _is_over(rig, host, ours))
            _assert_told_once(rig, move, f"commit {number}, lost {loss} it was made")
            if commits.seen < number:
                break
    assert number > 20


def _compare(ctx: Any) -> None:
    """What the flow knows of the move's steps is what is stored; only what has ended has a detail there."""
    with ctx.run.journal.read() as session:
        stored = step_runs.read(session, ctx.move.id)
        details = set(session.scalars(sa.text("SELECT name FROM atomdetails")))
        ended = set(session.scalars(sa.select(MoveStep.step).where(MoveStep.ended_at.is_not(None))))
    assert list(ctx.run.step_runs()) == stored
    assert details == ended


def _assert_told_once(rig: Rig, move: str, at: str) -> None:
    assert rig.move(move).state == "verifying", at
    rows = rig.history(move)
    assert [row.step for row in rows if row.ended_at is None] == [], at
    runs = collections.Counter((row.step, row.direction, row.attempt) for row in rows)
    assert [run for run, count in runs.items() if count > 1] == [], at
    log = collections.Counter(rig.world.log)
    log.subtract(["x claim", "x copy"])
    assert sum(count - 1 for count in log.values()) <= 1, (at, rig.world.log)


def _is_over(rig: Rig, host: Host, move: str) -> bool:
    # What it could not run it would leave alone for a while.
    host.conductor._shunned.clear()
    host.turn()
    with rig.journal.read() as session:
        claim = session.get(Claim, move)
    return rig.move(move).flow_uuid is None and claim is not None and claim.released_at is not None
