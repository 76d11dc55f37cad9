"""The alternates of a move: recorded before anything relies on them."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import database_time
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move, MoveAttempt

_ATTEMPT: Final = sa.select(MoveAttempt).where(
    MoveAttempt.move_id == sa.bindparam("move"), MoveAttempt.attempt == sa.bindparam("number")
)
_STANDS_AT: Final = (
    sa.update(Move)
    .where(Move.id == sa.bindparam("move"))
    .values(
        attempt=sa.bindparam("number"),
        dest_cell=sa.bindparam("in_cell"),
        dest_host=sa.bindparam("on_host"),
        updated_at=sa.func.utc_now(),
    )
)
_OF_MOVE: Final = sa.select(MoveAttempt).where(MoveAttempt.move_id == sa.bindparam("move"))
_TRIED: Final = _OF_MOVE.where(MoveAttempt.attempt > 0).order_by(MoveAttempt.attempt)
_RETURNS: Final = _OF_MOVE.where(MoveAttempt.attempt < 0).order_by(MoveAttempt.attempt.desc())
_HOSTS: Final = sa.select(MoveAttempt.host).where(MoveAttempt.move_id == sa.bindparam("move"))


def begin(session: orm.Session, move_id: str, number: int, chosen: dict[str, Any]) -> None:
    """Record that alternate ``number`` (a `scheduler` destination as a dict) is tried now; repeated: the same."""
    _record(session, move_id, number, chosen)
    session.connection().execute(
        _STANDS_AT, {"move": move_id, "number": number, "in_cell": chosen["cell"], "on_host": chosen["host"]}
    )


def begin_return(session: orm.Session, move_id: str, number: int, chosen: dict[str, Any]) -> None:
    """Record that a revert tries this host of the source's cell now, as its ``number``-th; repeated: the same.

    The move's own alternate stays the one that the server is on.  So its number is below 0, where no alternate's is.
    """
    _record(session, move_id, -number, chosen)


def _record(session: orm.Session, move_id: str, number: int, chosen: dict[str, Any]) -> None:
    if session.scalar(_ATTEMPT, {"move": move_id, "number": number}) is None:
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
    session.flush()


def returns(session: orm.Session, move_id: str) -> list[MoveAttempt]:
    """Read every host of the source's cell that reverts have tried in the source's place, first to last."""
    return list(session.scalars(_RETURNS, {"move": move_id}))


def current(session: orm.Session, move: Move) -> MoveAttempt | None:
    """The alternate that the move is on, or None before the first."""
    return session.scalar(_ATTEMPT, {"move": move.id, "number": move.attempt}) if move.attempt else None


def tried(session: orm.Session, move_id: str) -> list[MoveAttempt]:
    """Read every alternate that was recorded, first to last."""
    return list(session.scalars(_TRIED, {"move": move_id}))


def hosts(session: orm.Session, move: Move) -> list[str]:
    """Every host that a command of this move may have gone to; the source of an unshelve is none."""
    tried = session.scalars(_HOSTS, {"move": move.id})
    return sorted({move.source_host, *tried} - {""})


def undoing(session: orm.Session, move_id: str, state: State) -> None:
    """No alternate is left: the whole forward flow is being undone."""
    move = moves.get(session, move_id, lock=True)
    if move.state == State.RUNNING:
        moves.change_state(session, move, state)
