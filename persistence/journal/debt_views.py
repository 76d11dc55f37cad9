"""Read-only views of debts: who owes what for which move, and what became of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final

import sqlalchemy as sa

from droveway.errors import NotFound
from droveway.persistence.database import Database
from droveway.persistence.journal.debts import AFTER, ERROR, PURGE, RENAME, VOID, WRITTEN_OFF
from droveway.persistence.journal.tables import Debt, JournalBase, Move

OWED: Final = "owed"
SETTLED: Final = "settled"
FORGOTTEN: Final = "written-off"
VOIDED: Final = "void"

_DEBTS: Final = JournalBase.metadata.tables[Debt.__tablename__]
_MOVES: Final = JournalBase.metadata.tables[Move.__tablename__]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebtView:
    """Holds one debt; ``sequence`` is the number of the row of the move's history in which it was made."""

    id: int
    host: str
    """The host that owes it, or the cell."""
    cell: str | None
    """The cell that owes it, in whose rows something is still to be done; None where a host owes it."""
    state: str
    """owed, settled, written-off or void."""
    move: str
    server: str
    server_name: str
    step: str
    sequence: int | None
    action: str
    error: str | None
    """Why it could not be settled when that was last tried."""
    written_off_by: str | None
    void: str | None
    """Why nothing is owed any more, although nothing was done; None for a debt that is not void."""
    after: str
    """The host that must report a whole copy of the server's disks before the debt is settled.

    Settling the debt may delete a copy of the disks on the host that owes it.  The report proves that a whole copy is
    left elsewhere.  Empty when no other host has to report.
    """
    created: dt.datetime
    due: dt.datetime
    """When the debt may be settled at the earliest; for a kept source, the end of the time for which it is kept."""
    settled: dt.datetime | None
    """When it was settled, written off or made void; None while it is owed."""

    is_undo: bool
    """Whether the undo of the step is owed, and not the step itself."""

    @property
    def is_kept(self) -> bool:
        """Tell whether the debt is to purge what a host keeps of a move's source."""
        return self.action == PURGE

    @property
    def is_rename(self) -> bool:
        """Tell whether the debt is to rename a copy that the host keeps."""
        return self.action == RENAME


def listing(
    journal: Database, *, host: str | None = None, move: str | None = None, ended: bool = False
) -> list[DebtView]:
    """Return debts in the order in which they were made; with ``ended`` also those that are no longer owed.

    ``host`` is the host or the cell that owes them.
    """
    query = sa.select(_DEBTS, _MOVES.c.server, _MOVES.c.server_name).join(_MOVES, _MOVES.c.id == _DEBTS.c.move_id)
    if host is not None:
        query = query.where(sa.or_(_DEBTS.c.host == host, _DEBTS.c.cell == host))
    if move is not None:
        query = query.where(_DEBTS.c.move_id == move)
    if not ended:
        query = query.where(_DEBTS.c.settled_at.is_(None))
    with journal.read() as session:
        return [_view(row) for row in session.execute(query.order_by(_DEBTS.c.id))]


def get(journal: Database, number: int) -> DebtView:
    """Return the debt of this number; raise `droveway.errors.NotFound` when there is none."""
    for debt in listing(journal, ended=True):
        if debt.id == number:
            return debt
    raise NotFound(f"debt {number} is unknown: droveway debt list --all shows the debts")


def _view(row: Any) -> DebtView:
    forgotten = row.details.get(WRITTEN_OFF)
    ended = FORGOTTEN if forgotten else VOIDED if row.details.get(VOID) else SETTLED
    return DebtView(
        id=row.id,
        host=row.cell or row.host,
        cell=row.cell,
        state=OWED if row.settled_at is None else ended,
        move=row.move_id,
        server=row.server,
        server_name=row.server_name,
        step=row.details.get("step", row.action),
        sequence=row.details.get("sequence"),
        action=row.action,
        error=row.details.get(ERROR),
        written_off_by=forgotten,
        void=row.details.get(VOID),
        after=row.details.get(AFTER, ""),
        created=row.created_at,
        due=row.not_before or row.created_at,
        settled=row.settled_at,
        is_undo=row.details.get("direction", "revert") == "revert",
    )
