"""The alternates of a move: recorded before anything relies on them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence import moves
from droveway.persistence.database import database_time
from droveway.persistence.journal import Move, MoveAttempt
from droveway.persistence.states import State


def begin(session: orm.Session, move_id: str, number: int, chosen: dict[str, Any]) -> None:
    """Record that alternate ``number`` (a `scheduler` destination as a dict) is tried now; repeated: the same."""
    if session.get(MoveAttempt, (move_id, number)) is None:
        session.add(
            MoveAttempt(
                move_id=move_id,
                attempt=number,
                cell=chosen["cell"],
                host=chosen["host"],
                node=chosen["node"],
                provider=chosen["provider"],
                request=chosen["request"],
                created_at=database_time(session),
            )
        )
    session.execute(
        sa.update(Move)
        .where(Move.id == move_id)
        .values(attempt=number, dest_cell=chosen["cell"], dest_host=chosen["host"], updated_at=database_time(session))
    )


def current(session: orm.Session, move: Move) -> MoveAttempt | None:
    """The alternate that the move is on, or None before the first."""
    return session.get(MoveAttempt, (move.id, move.attempt)) if move.attempt else None


def hosts(session: orm.Session, move: Move) -> list[str]:
    """Every host that a command of this move may have gone to."""
    tried = session.scalars(sa.select(MoveAttempt.host).where(MoveAttempt.move_id == move.id))
    return sorted({move.source_host, *tried})


def undoing(session: orm.Session, move_id: str, state: State) -> None:
    """No alternate is left: the whole forward flow is being undone."""
    move = moves.get(session, move_id, lock=True)
    if move.state == State.RUNNING:
        moves.change_state(session, move, state)
