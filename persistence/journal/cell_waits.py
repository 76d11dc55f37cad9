"""For which cell a flow that has begun waits, and since when."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from droveway.persistence.database import database_time
from droveway.persistence.journal.states import BEGUN, State

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.persistence.journal.tables import Move


_BEGINS: Final = "the database of cell "
_ENDS: Final = ", which does not answer"


def named(waits_for: str) -> str | None:
    """Name the cell that a move says it waits for; None for another word."""
    begins, name, rest = waits_for.partition(_BEGINS)
    cell, ends, _ = rest.partition(_ENDS)
    return cell if name and ends and not begins else None


def note(session: orm.Session, move: Move, cell: str) -> dt.timedelta:
    """Let the move say that it waits for the cell's database; for how long it has by now."""
    now: dt.datetime = database_time(session)
    if State(move.state) not in BEGUN:
        return dt.timedelta()
    what = f"{_BEGINS}{cell}{_ENDS}"
    if move.waits_since is None or not (move.waits_for or "").startswith(what):
        move.waits_since = now
        move.waits_for = f"{what} (since {now:%Y-%m-%d %H:%M:%S} UTC)"
    return now - move.waits_since


def end(move: Move) -> None:
    """Let it wait no more."""
    move.waits_for = move.waits_since = None
