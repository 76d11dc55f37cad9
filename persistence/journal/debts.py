"""What hosts still owe: the undos that they could not be asked for while they were away, and what is kept for a time.

A debt with a date is no reason to wait: it keeps neither a move open nor a host from taking servers.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import database_time
from droveway.persistence.journal.tables import COLLECTOR, Claim, Debt, Move
from droveway.printable import SHORT

ERROR = "error"
"""The key of a debt's details under which the last failure to settle it stands."""

WRITTEN_OFF = "written_off"
"""The key under which it stands who wrote the debt off; such a debt counts as settled."""

VOID = "void"
"""The key under which it stands why nothing is owed any more; such a debt counts as settled."""

AFTER = "after"
"""The key of the host that has to show its own copy of the server's disks before; empty: none has to."""

PURGE: Final = "purge_kept"
"""The action of a debt whose host keeps a move's source until its date."""

RENAME: Final = "rename_copy"
"""The action of a debt whose host gives a copy that it keeps a name of its own."""

HIDE: Final = "hide"
SHOW: Final = "show"
UNMARK: Final = "unmark"
REMOVE: Final = "remove"
CLOSE_EVENTS: Final = "close events"
FINISH: Final = "finish"
DROP_FENCE: Final = "drop fence"
"""What a cell owes that was away: of a server's copy there, of its events and end, and of the fence of an ended flow.
"""

DUE: Final = sa.and_(Debt.settled_at.is_(None), sa.or_(Debt.not_before.is_(None), Debt.not_before <= sa.func.utc_now()))
"""What a debt is that may be settled now."""

# Made once: to make a statement takes far longer than to carry it out.
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
    """Record that the host still has to carry out the action, or its undo; repeated: the same.

    One that ``waits`` for another host keeps neither its move open nor its host from taking servers.
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
    """Record that the cell still has to have this done to its rows; repeated: the same."""
    known = session.scalars(
        sa.select(Debt).where(
            Debt.move_id == move_id, Debt.cell == cell, Debt.action == action, Debt.settled_at.is_(None)
        )
    )
    if not any(debt.details == details for debt in known):
        now = database_time(session)
        session.add(Debt(host="", cell=cell, move_id=move_id, action=action, details=details, created_at=now))


def settle(session: orm.Session, number: int) -> None:
    """What was owed is done."""
    session.get_one(Debt, number).settled_at = database_time(session)


def owing_cells(session: orm.Session, server: str) -> dict[str, str]:
    """Why no move of the server enters each cell that owes something of it: what is owed is paid first."""
    found = session.execute(_OWING_CELLS, {"server": server})
    return {
        row.cell: f"it still owes the clean-up of move {row.move_id[:SHORT]}: droveway debt show {row.id}"
        for row in found
    }


def of_copies(session: orm.Session, move_id: str) -> list[Debt]:
    """Return what cells owe of the copies that a move made or hid, in the order in which it was left out."""
    return list(session.scalars(_OF_COPIES, {"move": move_id}))


def void(session: orm.Session, *, move_id: str, host: str, flow: str, step: str) -> bool:
    """Take back that the host owes the flow's step; whether it owed it.  Repeated: the same answer."""
    owed = session.scalars(sa.select(Debt).where(Debt.move_id == move_id, Debt.host == host).with_for_update())
    found = [
        debt
        for debt in owed
        if (debt.details.get("flow"), debt.details.get("step"), debt.details.get("direction"))
        == (flow, step, "execute")
        and debt.not_before is None
        and (debt.settled_at is None or VOID in debt.details)
    ]
    for debt in found:
        if debt.settled_at is None:
            end_void(session, debt, "the flow that owed it was undone")
    return bool(found)


def end_void(session: orm.Session, debt: Debt, why: str) -> None:
    """Nothing is owed any more, and nothing was done for it."""
    debt.details = {**debt.details, VOID: why}
    debt.settled_at = database_time(session)


def keep(session: orm.Session, *, move_id: str, host: str, seconds: int, details: dict[str, Any]) -> None:
    """Record that the host keeps the move's source for so long from now; repeated: until the date that stands."""
    if kept(session, move_id) is None:
        now = database_time(session)
        until = now + dt.timedelta(seconds=seconds)
        session.add(Debt(host=host, move_id=move_id, action=PURGE, details=details, created_at=now, not_before=until))


def kept(session: orm.Session, move_id: str) -> Debt | None:
    """The debt by which a host keeps the move's source; None when nothing of it is kept."""
    return session.scalar(_KEPT, {"move": move_id})


def end_keeping(session: orm.Session, move_id: str) -> Debt | None:
    """Let what is kept of the move's source be purged now; the debt, None when nothing is kept."""
    debt = kept(session, move_id)
    if debt is not None and debt.not_before is not None:
        # Whoever asks waits for no clock.
        debt.not_before = debt.created_at
    return debt


def outstanding(session: orm.Session, move_id: str, host: str | None = None) -> bool:
    """Whether anything of the move is owed that is due at once, by that host or by any."""
    unsettled = _OUTSTANDING if host is None else _OUTSTANDING_OF_HOST
    return session.scalar(unsettled, {"move": move_id, "host": host}) is not None


def owes(session: orm.Session, move_id: str, host: str, action: str) -> bool:
    """Whether the host still has to undo this action of the move."""
    return (
        session.scalar(_OUTSTANDING_OF_HOST.where(Debt.action == action), {"move": move_id, "host": host}) is not None
    )


def owing(session: orm.Session) -> dict[str, str]:
    """Why each host that owes something takes no servers: it settles that before it takes anything else."""
    why = "it still owes what is to be undone there: droveway debt list --host {host}"
    return {host: why.format(host=host) for host in session.scalars(_OWING)}


def write_off(session: orm.Session, host: str, *, who: str) -> list[Debt]:
    """The host will never settle anything any more; what it owed until now."""
    now = database_time(session)
    owed = list(session.scalars(sa.select(Debt).where(Debt.host == host, Debt.settled_at.is_(None)).order_by(Debt.id)))
    for debt in owed:
        debt.details = {**debt.details, WRITTEN_OFF: who}
        debt.settled_at = now
    return owed


def collectable(session: orm.Session) -> list[Debt]:
    """The debts of moves that nobody runs now, in the order in which they were made.

    A claim of a collector that was killed is taken over: no two collect at a time.
    """
    return list(session.scalars(_COLLECTABLE))


def forget_errors(session: orm.Session) -> None:
    """Forget why debts could not be settled, because somebody wants them tried again."""
    for debt in session.scalars(sa.select(Debt).where(Debt.settled_at.is_(None))):
        if ERROR in debt.details:
            debt.details = {name: value for name, value in debt.details.items() if name != ERROR}
