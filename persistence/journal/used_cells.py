"""Finds the cells that moves and debts name: a cell has to keep its name for as long as one does."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import sqlalchemy as sa

from droveway.persistence.database import Executor
from droveway.persistence.journal.states import ENDED
from droveway.persistence.journal.tables import Debt, Move

_LIVE: Final = Move.state.not_in([state.value for state in ENDED])
_USED: Final[sa.CompoundSelect[Any]] = sa.union(
    sa.select(Move.source_cell.label("cell")).where(_LIVE),
    sa.select(Move.dest_cell).where(_LIVE, Move.dest_cell.is_not(None)),
    sa.select(Debt.cell).where(Debt.settled_at.is_(None), Debt.cell.is_not(None)),
)


def unknown(transaction: Executor, known: Container[str]) -> dict[str, str]:
    """Return each cell that a move that has not ended, or a debt, names and Nova does not know, with a sentence."""
    return {cell: why(cell) for cell in sorted(transaction.scalars(_USED)) if cell not in known}


def why(cell: str) -> str:
    """Return the sentence against a cell that Nova does not know."""
    return (
        f"Nova has no cell of the name {cell} any more, and a move or a debt is there: nova-manage cell_v2 update_cell "
        f"--cell_uuid ID --name {cell} gives the renamed cell its name back (droveway cell list shows the ids), then "
        "restart the conductors"
    )
