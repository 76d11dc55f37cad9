"""Cells of which a person made sure that they are gone: nothing of a move waits for one."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal.tables import CellDown

_DOWN: Final = sa.select(CellDown.name, CellDown.reason, CellDown.who, CellDown.at).order_by(CellDown.name)


def declare(session: orm.Session, name: str, *, reason: str, who: str) -> None:
    """Record that the cell is gone; repeated: with the later reason."""
    row = session.get(CellDown, name)
    if row is None:
        session.add(CellDown(name=name, reason=reason, who=who, at=database_time(session)))
    else:
        row.reason, row.who = reason, who


def lift(session: orm.Session, name: str) -> bool:
    """Record that it is back; whether anybody had declared it down."""
    row = session.get(CellDown, name)
    if row is not None:
        session.delete(row)
    return row is not None


def find(transaction: Executor) -> dict[str, str]:
    """Return the reason of each cell that is declared down."""
    return {row.name: f"declared down by {row.who}: {row.reason}" for row in transaction.execute(_DOWN)}
