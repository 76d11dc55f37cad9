"""Finds the cells that moves and debts name: a cell has to keep its name for as long as one does."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import sqlalchemy as sa

from droveway.persistence.database import Executor
from droveway.persistence.journal import cells_down
from droveway.persistence.journal.states import ENDED
from droveway.persistence.journal.tables import Debt, Move

_LIVE: Final = Move.state.not_in([state.value for state in ENDED])
_MOVES: Final = (
    sa.select(Move.source_cell.label("cell")).where(_LIVE),
    sa.select(Move.dest_cell).where(_LIVE, Move.dest_cell.is_not(None)),
)
_DEBTS: Final = sa.select(Debt.cell).where(Debt.settled_at.is_(None), Debt.cell.is_not(None))
_OF_MOVES: Final[sa.CompoundSelect[Any]] = sa.union(*_MOVES)
_OF_ALL: Final[sa.CompoundSelect[Any]] = sa.union(*_MOVES, _DEBTS)


def unknown(transaction: Executor, known: Container[str], *, of_debts: bool = True) -> dict[str, str]:
    """Return each cell that Nova does not know and a move that has not ended names, with a sentence.

    ``of_debts`` adds the cells that only a debt names.  A cell that a person declared down may be unknown to Nova.
    """
    used = transaction.scalars(_OF_ALL if of_debts else _OF_MOVES)
    gone = cells_down.find(transaction)
    return {cell: why(cell) for cell in sorted(used) if cell not in known and cell not in gone}


def why(cell: str) -> str:
    """Return the sentence against a cell that Nova does not know."""
    return (
        f"Nova has no cell of the name {cell} any more, and a move or a debt is there: nova-manage cell_v2 update_cell "
        f"--cell_uuid ID --name {cell} gives the renamed cell its name back (droveway cell list shows the ids), then "
        "restart the conductors"
    )
