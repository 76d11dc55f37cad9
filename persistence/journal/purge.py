"""Removes moves that ended long ago, with everything that the journal has of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Final

import sqlalchemy as sa

from droveway.persistence.database import Database, database_time
from droveway.persistence.journal.states import ENDED
from droveway.persistence.journal.tables import Claim, Debt, Intent, Move, MoveAttempt, MoveFlow, MoveStep, Plan

_FLOWS: Final = sa.table("flowdetails", sa.column("uuid"), sa.column("parent_uuid"))
_ATOMS: Final = sa.table("atomdetails", sa.column("parent_uuid"))
_BOOKS: Final = sa.table("logbooks", sa.column("uuid"))


def purge(
    journal: Database,
    seconds: int,
    gone: list[str] | None = None,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> dict[str, int]:
    """Remove the moves that ended, and the plans that were made, more than ``seconds`` ago.

    Returns table → number of rows that were removed.  Adds the ids of the removed moves to ``gone``.  Each move is
    removed in a transaction of its own.  A move stays while somebody owes something for it, or while its last claim
    was not given back.

    ``progress`` wraps the list of the moves' ids and returns the same ids one by one.  A command passes a progress bar
    that counts them.
    """
    with journal.read() as session:
        before = database_time(session) - dt.timedelta(seconds=seconds)
        ids = list(session.scalars(_endings(before)))
    counted: dict[str, int] = {}
    for move in progress(ids):
        with journal.begin() as connection:
            # Asked again under a lock: the move may have changed since it was listed.
            if connection.scalar(_endings(before).where(Move.id == move).with_for_update()) is None:
                continue
            _remove(connection, move, counted)
        if gone is not None:
            gone.append(move)
    with journal.begin() as connection:
        counted[Plan.__tablename__] = connection.execute(sa.delete(Plan).where(Plan.created_at < before)).rowcount
    return {name: count for name, count in counted.items() if count}


def _endings(before: dt.datetime) -> sa.Select[str]:
    owed = sa.select(Debt.id).where(Debt.move_id == Move.id, Debt.settled_at.is_(None))
    claimed = sa.select(Claim.move_id).where(Claim.move_id == Move.id, Claim.released_at.is_(None))
    ended = Move.state.in_([state.value for state in ENDED])
    return sa.select(Move.id).where(ended, Move.ended_at < before, ~owed.exists(), ~claimed.exists())


def _remove(connection: sa.Connection, move: str, counted: dict[str, int]) -> None:
    flows = sa.select(_FLOWS.c.uuid).where(_FLOWS.c.parent_uuid == move)
    removals = {
        "atomdetails": sa.delete(_ATOMS).where(_ATOMS.c.parent_uuid.in_(flows)),
        "flowdetails": sa.delete(_FLOWS).where(_FLOWS.c.parent_uuid == move),
        "logbooks": sa.delete(_BOOKS).where(_BOOKS.c.uuid == move),
        **{
            table.__tablename__: sa.delete(table).where(table.move_id == move)
            for table in (MoveStep, MoveAttempt, Intent, Debt, Claim, MoveFlow)
        },
        Move.__tablename__: sa.delete(Move).where(Move.id == move),
    }
    for name, removal in removals.items():
        counted[name] = counted.get(name, 0) + connection.execute(removal).rowcount
