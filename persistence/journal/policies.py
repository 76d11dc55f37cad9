"""What the journal keeps of a confirm policy: the last answer about a guest's health, and what the policy waits for."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Move

DEADLINE: Final = "deadline"
"""Confirms when its time is over, which is Nova's `resize_confirm_window`."""
MANUAL: Final = "manual"
"""Waits for a person, for ever if need be."""
AUTO: Final = "auto"
HEALTHY: Final = "healthy"

LONGEST: Final = 31536000
"""Seconds that a release which knows no `manual` but with a deadline lets such a move wait: the most that it can."""


class Health(enum.StrEnum):
    """What the destination said of a guest."""

    PASSED = "passed"
    FAILING = "failing"


def record_health(
    session: orm.Session, move_id: str, health: Health, reason: str, *, asked: dt.datetime, epoch: int
) -> bool:
    """Keep the newest answer; False for one that was asked for under an older claim or before the one that stands."""
    stands = sa.select(Claim.move_id).where(Claim.move_id == move_id, Claim.epoch == epoch)
    newest = sa.or_(Move.health_asked.is_(None), Move.health_asked <= asked)
    return _update(session, move_id, stands.exists(), newest, health=health, health_reason=reason, health_asked=asked)


def note_wait(session: orm.Session, move_id: str, why: str | None) -> bool:
    """Keep what the policy waits for (None: nothing); False when the move no longer waits for verification."""
    return _update(session, move_id, waits_for=why)


def _update(session: orm.Session, move_id: str, *conditions: sa.ColumnElement[bool], **values: object) -> bool:
    waiting = sa.update(Move).where(Move.id == move_id, Move.state == State.VERIFYING.value, *conditions)
    done = session.execute(waiting.values(**values).execution_options(synchronize_session=False))
    return bool(done.rowcount)  # type: ignore[attr-defined]
