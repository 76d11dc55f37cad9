"""The hosts that a move tries: each is recorded before a step relies on it.

A move's alternates are numbered from 1.  The hosts that its reverts try in the place of a dead source are recorded in
the same table, numbered from -1 downwards.
"""

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
    """Record that the move now tries alternate ``number``; a repeated call changes nothing.

    ``chosen`` is the host, as a destination of `droveway.scheduler` that was turned into a dict.
    """
    _record(session, move_id, number, chosen)
    session.connection().execute(
        _STANDS_AT, {"move": move_id, "number": number, "in_cell": chosen["cell"], "on_host": chosen["host"]}
    )


def begin_return(session: orm.Session, move_id: str, number: int, chosen: dict[str, Any]) -> None:
    """Record that a revert now tries this host of the source's cell, as its ``number``-th one.

    The row is stored under -``number``, which no alternate has.  The move's ``attempt`` stays the alternate that the
    server is on.  A repeated call changes nothing.
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
    """Read the hosts of the source's cell that reverts have tried in the source's place, first to last."""
    return list(session.scalars(_RETURNS, {"move": move_id}))


def current(session: orm.Session, move: Move) -> MoveAttempt | None:
    """Return the alternate that the move is on; None before the first."""
    return session.scalar(_ATTEMPT, {"move": move.id, "number": move.attempt}) if move.attempt else None


def tried(session: orm.Session, move_id: str) -> list[MoveAttempt]:
    """Read all alternates that were recorded for the move, first to last."""
    return list(session.scalars(_TRIED, {"move": move_id}))


def hosts(session: orm.Session, move: Move) -> list[str]:
    """Return the names of all hosts that a command of this move may have gone to.

    The source is one of these hosts.  An unshelve has no source, because its server is on no host before.
    """
    tried = session.scalars(_HOSTS, {"move": move.id})
    return sorted({move.source_host, *tried} - {""})


def set_undoing(session: orm.Session, move_id: str) -> None:
    """Change the state of a running move to `State.UNDOING`; any other state stays.

    A forward flow calls this when no alternate is left: then the whole flow is undone.
    """
    move = moves.get(session, move_id, lock=True)
    if move.state == State.RUNNING:
        moves.change_state(session, move, State.UNDOING)
