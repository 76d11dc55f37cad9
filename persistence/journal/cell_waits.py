"""Records which database a flow that has begun waits for, a cell's or Nova's API database, and since when."""

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
_API: Final = f"the API database{_ENDS}"


def named(waits_for: str) -> str | None:
    """Return the cell that a move's ``waits_for`` names; None when it names no cell."""
    begins, name, rest = waits_for.partition(_BEGINS)
    cell, ends, _ = rest.partition(_ENDS)
    return cell if name and ends and not begins else None


def is_for_api(waits_for: str) -> bool:
    """Tell whether a move's ``waits_for`` names the API database."""
    return waits_for.startswith(_API)


def note(session: orm.Session, move: Move, cell: str) -> dt.timedelta:
    """Record that the move waits for the cell's database, and return how long it has waited for it so far.

    A move that is in none of the states `BEGUN` is left alone, and the answer is 0.
    """
    return _note(session, move, f"{_BEGINS}{cell}{_ENDS}")


def note_api(session: orm.Session, move: Move) -> None:
    """Record that the move waits for the API database."""
    _note(session, move, _API)


def _note(session: orm.Session, move: Move, what: str) -> dt.timedelta:
    now: dt.datetime = database_time(session)
    if State(move.state) not in BEGUN:
        return dt.timedelta()
    if move.waits_since is None or not (move.waits_for or "").startswith(what):
        move.waits_since = now
        move.waits_for = f"{what} (since {now:%Y-%m-%d %H:%M:%S}Z)"
    return now - move.waits_since


def end(move: Move) -> None:
    """Record that the move waits for nothing."""
    move.waits_for = move.waits_since = None
