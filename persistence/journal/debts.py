"""Debts: what hosts and cells still owe for a move.

A host that was away owes the action, or the undo, that it could not be asked for.  A host that keeps a move's source
owes its removal, from a date on.  A cell whose database was away owes changes of its rows.

If a debt has a date (`Debt.not_before`), its move may end and its host takes servers before the debt is settled.  If it
has none, its move does not end and its host takes no servers until the debt is settled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import database_time
from droveway.persistence.journal.tables import COLLECTOR, Claim, Debt, Move
from droveway.printable import SHORT

ERROR = "error"
"""The key of a debt's details that holds the reason why it could not be settled when that was last tried."""

WRITTEN_OFF = "written_off"
"""The key of a debt's details that names who wrote the debt off; such a debt counts as settled."""

VOID = "void"
"""The key of a debt's details that says why the debt is void; such a debt counts as settled."""

AFTER = "after"
"""The key of a debt's details that names the host which must report a whole copy of the disks before it is settled.

An empty name says the same as a missing key: no other host has to report.  `PURGE` debts may have an empty name.  When
a host pays a debt by keeping the source's disks, the keeper makes the `PURGE` debt from the details of the paid one.
The paid debt may have named another host, but that host has reported by then, so the keeper empties the name.
"""

PURGE: Final = "purge_kept"
"""The action of a debt whose host keeps a move's source until the debt's date, and purges it then."""

RENAME: Final = "rename_copy"
"""The action of a debt whose host is to rename a copy of the disks, so that the copy is kept."""

# The actions of debts that cells owe, since their databases were away.
HIDE: Final = "hide"
"""Set `hidden` in the cell's copy of the server's rows: the mapping names the other copy."""
SHOW: Final = "show"
"""Clear `hidden` in the cell's copy."""
UNMARK: Final = "unmark"
"""Take back the status and the task_state by which the destination cell's copy says that a revert has begun.

It undoes the step `mark_reverting`.  The row that marks a copy as made by a move is something else.
"""
REMOVE: Final = "remove"
"""Delete the cell's copy."""
CLOSE_EVENTS: Final = "close events"
"""Close the events of the server's instance action in the cell."""
FINISH: Final = "finish"
"""Write in the destination cell's copy that the forward flow is done."""
DROP_FENCE: Final = "drop fence"
"""Remove the fence of a flow that has ended (`droveway.persistence.nova.cells`)."""

DUE: Final = sa.and_(Debt.settled_at.is_(None), sa.or_(Debt.not_before.is_(None), Debt.not_before <= sa.func.utc_now()))
"""The condition that a debt may be settled now."""

# Built once: to build a statement takes far longer than to run it.
_OUTSTANDING: Final = (
    sa.select(Debt.id)
    .where(Debt.move_id == sa.bindparam("move"), Debt.settled_at.is_(None), Debt.not_before.is_(None))
    .limit(1)
)
_OUTSTANDING_OF_HOST: Final = _OUTSTANDING.where(Debt.host == sa.bindparam("host"))
_OWING: Final = (
    sa.select(Debt.host).where(Debt.settled_at.is_(None), Debt.not_before.is_(None), Debt.cell.is_(None)).distinct()
)
_OWING_CELLS: Final = (
    sa.select(Debt.cell, Debt.id, Debt.move_id)
    .join(Move, Move.id == Debt.move_id)
    .where(
        Move.server == sa.bindparam("server"),
        Debt.cell.is_not(None),
        Debt.settled_at.is_(None),
        Debt.action.in_((HIDE, SHOW, REMOVE)),
    )
    .order_by(Debt.id.desc())
)
_OF_COPIES: Final = (
    sa.select(Debt)
    .where(
        Debt.move_id == sa.bindparam("move"),
        Debt.cell.is_not(None),
        Debt.settled_at.is_(None),
        Debt.action.in_((HIDE, SHOW, REMOVE)),
    )
    .order_by(Debt.id)
)
_KEPT: Final = sa.select(Debt).where(
    Debt.move_id == sa.bindparam("move"), Debt.action == PURGE, Debt.settled_at.is_(None)
)
_COLLECTABLE: Final = (
    sa.select(Debt)
    .join(Move, Move.id == Debt.move_id)
    .join(Claim, Claim.move_id == Debt.move_id)
    .where(
        DUE,
        Move.flow_uuid.is_(None),
        sa.or_(Claim.released_at.is_not(None), Claim.owner == COLLECTOR),
    )
    .order_by(Debt.id)
)


def owe(
    session: orm.Session, *, move_id: str, host: str, action: str, details: dict[str, Any], waits: bool = False
) -> None:
    """Record that the host still has to carry out the action, or its undo; a repeated call changes nothing.

    If the debt ``waits`` for another host's report (`AFTER`), it gets a date.  With a date it keeps neither its move
    from ending nor its own host from taking servers.
    """
    known = session.scalars(
        sa.select(Debt).where(
            Debt.move_id == move_id, Debt.host == host, Debt.action == action, Debt.settled_at.is_(None)
        )
    )
    if not any(debt.details == details for debt in known):
        now = database_time(session)
        made = Debt(host=host, move_id=move_id, action=action, details=details, created_at=now)
        made.not_before = now if waits else None
        session.add(made)


def owe_rows(session: orm.Session, *, move_id: str, cell: str, action: str, details: dict[str, Any]) -> None:
    """Record that this is still to be done in the cell's rows; a repeated call changes nothing."""
    known = session.scalars(
        sa.select(Debt).where(
            Debt.move_id == move_id, Debt.cell == cell, Debt.action == action, Debt.settled_at.is_(None)
        )
    )
    if not any(debt.details == details for debt in known):
        now = database_time(session)
        session.add(Debt(host="", cell=cell, move_id=move_id, action=action, details=details, created_at=now))


def settle(session: orm.Session, number: int) -> None:
    """Record that what was owed is done."""
    session.get_one(Debt, number).settled_at = database_time(session)


def owing_cells(session: orm.Session, server: str) -> dict[str, str]:
    """Return each cell that still owes something for the server's copy there, with a reason.

    No move of the server may go into such a cell before the debt is settled.
    """
    found = session.execute(_OWING_CELLS, {"server": server})
    return {
        row.cell: f"it still owes the clean-up of move {row.move_id[:SHORT]}: droveway debt show {row.id}"
        for row in found
    }


def of_copies(session: orm.Session, move_id: str) -> list[Debt]:
    """Return the unsettled debts of cells to hide, show or remove a copy of the move's server, oldest debt first."""
    return list(session.scalars(_OF_COPIES, {"move": move_id}))


def unproved(session: orm.Session, move_id: str) -> list[str]:
    """Name the hosts that have to report a whole copy of the disks before what is owed for the move is settled."""
    owed = session.scalars(sa.select(Debt).where(Debt.move_id == move_id, Debt.settled_at.is_(None)))
    return sorted({str(debt.details[AFTER]) for debt in owed if debt.details.get(AFTER)})


def void(session: orm.Session, *, move_id: str, host: str, flow: str, step: str) -> tuple[bool, bool]:
    """Make the debt of the host for this step of the flow void.

    Return whether there is one, and whether this call has made it void.  A host that owes a step has never carried it
    out.
    """
    owed = session.scalars(sa.select(Debt).where(Debt.move_id == move_id, Debt.host == host).with_for_update())
    found = [
        debt
        for debt in owed
        if (debt.details.get("flow"), debt.details.get("step"), debt.details.get("direction"))
        == (flow, step, "execute")
        and debt.not_before is None
        and (debt.settled_at is None or VOID in debt.details)
    ]
    stood = [debt for debt in found if debt.settled_at is None]
    for debt in stood:
        end_void(session, debt, "the flow that owed it was undone")
    return bool(found), bool(stood)


def end_void(session: orm.Session, debt: Debt, why: str) -> None:
    """Make the debt void: it counts as settled although nothing was done."""
    debt.details = {**debt.details, VOID: why}
    debt.settled_at = database_time(session)


def keep(session: orm.Session, *, move_id: str, host: str, seconds: int, details: dict[str, Any]) -> None:
    """Record that the host keeps the move's source for ``seconds`` from now; a repeated call keeps the first date."""
    if kept(session, move_id) is None:
        now = database_time(session)
        until = now + dt.timedelta(seconds=seconds)
        session.add(Debt(host=host, move_id=move_id, action=PURGE, details=details, created_at=now, not_before=until))


def kept(session: orm.Session, move_id: str) -> Debt | None:
    """Return the debt by which a host keeps the move's source; None when nothing is kept."""
    return session.scalar(_KEPT, {"move": move_id})


def end_keeping(session: orm.Session, move_id: str) -> Debt | None:
    """Make the debt for the move's kept source due now, and return it; None when nothing is kept."""
    debt = kept(session, move_id)
    if debt is not None and debt.not_before is not None:
        # Any past time makes it due.  NULL would not do: a debt without a date would keep the move open.
        debt.not_before = debt.created_at
    return debt


def outstanding(session: orm.Session, move_id: str, host: str | None = None) -> bool:
    """Tell whether something without a date is owed for the move: by this host, or by anybody when ``host`` is None."""
    unsettled = _OUTSTANDING if host is None else _OUTSTANDING_OF_HOST
    return session.scalar(unsettled, {"move": move_id, "host": host}) is not None


def owes(session: orm.Session, move_id: str, host: str, action: str) -> bool:
    """Tell whether the host has an unsettled debt without a date for this action of the move."""
    return (
        session.scalar(_OUTSTANDING_OF_HOST.where(Debt.action == action), {"move": move_id, "host": host}) is not None
    )


def owing(session: orm.Session) -> dict[str, str]:
    """Return each host that has an unsettled debt without a date, with the reason why it takes no servers."""
    why = "it still owes a clean-up: droveway debt list --host {host}"
    return {host: why.format(host=host) for host in session.scalars(_OWING)}


def write_off(session: orm.Session, host: str, *, who: str) -> list[Debt]:
    """Write off everything that the host owes, because it will never settle it; return the debts.

    ``who`` is recorded in each of them.
    """
    now = database_time(session)
    owed = list(session.scalars(sa.select(Debt).where(Debt.host == host, Debt.settled_at.is_(None)).order_by(Debt.id)))
    for debt in owed:
        debt.details = {**debt.details, WRITTEN_OFF: who}
        debt.settled_at = now
    return owed


def collectable(session: orm.Session) -> list[Debt]:
    """Return the debts that are due, of moves that nobody runs now, oldest debt first.

    A move whose claim is the collector's counts as a move that nobody runs.  Only one collector runs at a time, so an
    earlier collector left that claim when it was killed.  The present collector takes the claim over.
    """
    return list(session.scalars(_COLLECTABLE))


def holds_back(debt: Debt) -> bool:
    """Tell whether the host's later debts of the same move wait for this one.

    Two kinds of debts hold back nothing.  No later debt depends on the new name of a copy (`RENAME`).  And a debt that
    waits for another host's report (`AFTER`) may wait for ever, while its move is to end all the same.
    """
    return debt.action != RENAME and not debt.details.get(AFTER)


def in_order(owed: Iterable[Debt], is_payable: Callable[[Debt], bool]) -> dict[tuple[str, str], list[Debt]]:
    """Return the debts that can be paid now, by move and host; ``owed`` and the result have the oldest debts first.

    What a host owes for a move builds on what it owes for it already.  So a debt that cannot be paid now holds back the
    later ones (`holds_back`).
    """
    found: dict[tuple[str, str], list[Debt]] = {}
    held = set()
    for debt in owed:
        of = (debt.move_id, debt.host)
        if of in held:
            continue
        if is_payable(debt):
            found.setdefault(of, []).append(debt)
        elif holds_back(debt):
            held.add(of)
    return found


def forget_errors(session: orm.Session) -> None:
    """Remove the recorded failure from each unsettled debt, because somebody wants them tried again."""
    for debt in session.scalars(sa.select(Debt).where(Debt.settled_at.is_(None))):
        if ERROR in debt.details:
            debt.details = {name: value for name, value in debt.details.items() if name != ERROR}
