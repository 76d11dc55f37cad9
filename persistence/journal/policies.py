"""Keeps what the confirm policies know: the guest's last known health, and what a policy waits for."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Move

LONGEST: Final = 31536000
"""The `confirm_seconds` of a move with the policy `manual`: one year.

An older release, whose `manual` always has a deadline, may run the move after a downgrade.  A year is the longest that
it can wait.
"""


class Health(enum.StrEnum):
    """Names what the destination reports of a guest."""

    PASSED = "passed"
    FAILING = "failing"


def record_health(
    session: orm.Session, move_id: str, health: Health, reason: str, *, asked: dt.datetime, epoch: int
) -> bool:
    """Store what the destination reported of the guest.

    Returns False, and stores nothing, when the report is out of date: it was asked for under an older claim, or before
    the report that is stored.  Does the same when the move no longer waits for confirm or revert.
    """
    stands = sa.select(Claim.move_id).where(Claim.move_id == move_id, Claim.epoch == epoch)
    newest = sa.or_(Move.health_asked.is_(None), Move.health_asked <= asked)
    return _update(session, move_id, stands.exists(), newest, health=health, health_reason=reason, health_asked=asked)


def note_wait(session: orm.Session, move_id: str, why: str | None) -> bool:
    """Store what the policy waits for (None: nothing); return False when the move no longer waits for its end."""
    return _update(session, move_id, waits_for=why)


def _update(session: orm.Session, move_id: str, *conditions: sa.ColumnElement[bool], **values: object) -> bool:
    waiting = sa.update(Move).where(Move.id == move_id, Move.state == State.VERIFYING.value, *conditions)
    done = session.execute(waiting.values(**values).execution_options(synchronize_session=False))
    return bool(done.rowcount)  # type: ignore[attr-defined]
