"""Cells that a person declared down, having made sure that they are gone: no move waits for such a cell."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal.tables import CellDown

_DOWN: Final = sa.select(CellDown.name, CellDown.reason, CellDown.who, CellDown.at).order_by(CellDown.name)


def declare(session: orm.Session, name: str, *, reason: str, who: str) -> None:
    """Declare the cell down; a repeated call replaces the reason and who gave it."""
    row = session.get(CellDown, name)
    if row is None:
        session.add(CellDown(name=name, reason=reason, who=who, at=database_time(session)))
    else:
        row.reason, row.who = reason, who


def lift(session: orm.Session, name: str) -> bool:
    """Remove the declaration that the cell is down; return False when there was none."""
    row = session.get(CellDown, name)
    if row is not None:
        session.delete(row)
    return row is not None


def find(transaction: Executor) -> dict[str, str]:
    """Return each cell that is declared down, with a sentence that says by whom and why."""
    return {row.name: f"declared down by {row.who}: {row.reason}" for row in transaction.execute(_DOWN)}
