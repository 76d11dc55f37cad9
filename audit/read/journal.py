"""Reads the journal into records."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.audit.records import DebtRow, FlowRow, IntentRow, MoveRow, StepRow
from droveway.persistence.database import database_time
from droveway.persistence.journal import transfers
from droveway.persistence.journal.debts import AFTER, PURGE, WRITTEN_OFF
from droveway.persistence.journal.kinds import KINDS
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim, Debt, Intent, Move, MoveAttempt, MoveFlow, MoveStep
from droveway.persistence.nova import objects

OVERDUE: Final = dt.timedelta(hours=1)
"""How long after its date a host may still have the disks that it keeps for a time."""

_COPIED: Final = (
    *("id", "kind", "server", "server_name", "source_cell", "source_host", "dest_cell", "dest_host"),
    *("flow_uuid", "delete_requested", "keep_image"),
)
"""The columns of a move that the audit reads as they are."""
_TRANSLATED: Final = ("state", "parked_from", "old_flavor", "new_flavor", "error_code")

_ELSEWHERE: Final = [kind.name for kind in KINDS if kind.elsewhere]
_MARKS: Final = "accept"
"""The step that writes the move's task_state into the server's row. It is the first one that writes in a cell."""
_INSERTS: Final = "record_migration"
"""The step that inserts the move's migration row."""


def moves(session: orm.Session) -> tuple[MoveRow, ...]:
    """Return every move."""
    ended = [state.value for state in ENDED]
    open_ones = session.execute(
        sa.select(Move.id, Move.before).where(Move.state.not_in(ended), Move.before.is_not(None))
    )
    starts = {row.id: row.before for row in open_ones}
    wrote, returning = _wrote(session), _returning(session)
    columns = [getattr(Move, name) for name in (*_COPIED, *_TRANSLATED)]
    rows = session.execute(sa.select(*columns).order_by(Move.created_at, Move.id))
    return tuple(
        MoveRow(
            **{name: getattr(row, name) for name in _COPIED},
            state=State(row.state),
            parked_from=State(row.parked_from) if row.parked_from else None,
            old_flavor=_flavor(starts.get(row.id), "old_flavor"),
            new_flavor=_flavor(starts.get(row.id), "new_flavor"),
            profiles={port["port"]: port["profile"] for port in (starts.get(row.id) or {}).get("ports") or []},
            from_flavor=row.old_flavor or "",
            to_flavor=row.new_flavor or "",
            error_code=row.error_code or "",
            marked=(row.id, _MARKS) in wrote,
            recorded=(row.id, _INSERTS) in wrote,
            return_host=returning.get(row.id, ""),
        )
        for row in rows
    )


def _returning(session: orm.Session) -> dict[str, str]:
    """Map each move with an open revert to the host that it tries now in place of the source."""
    # The numbers of such hosts are below 0 and count down. So the last row of a move is the host that it tries now.
    tried = (
        sa.select(MoveAttempt.move_id, MoveAttempt.host)
        .join(Move, Move.id == MoveAttempt.move_id)
        .join(MoveFlow, MoveFlow.uuid == Move.flow_uuid)
        .where(MoveAttempt.attempt < 0, MoveFlow.ended_at.is_(None), MoveFlow.kind.in_(_ELSEWHERE))
        .order_by(MoveAttempt.attempt.desc())
    )
    return {row.move_id: row.host for row in session.execute(tried)}


def _wrote(session: orm.Session) -> set[tuple[str, str]]:
    """Return a pair (move, step) for each move and each of the steps `_MARKS` and `_INSERTS` that the move has done."""
    done = sa.select(MoveStep.move_id, MoveStep.step).where(
        MoveStep.step.in_((_MARKS, _INSERTS)),
        MoveStep.direction == "execute",
        MoveStep.ended_at.is_not(None),
        MoveStep.error.is_(None),
    )
    return {(row.move_id, row.step) for row in session.execute(done.distinct())}


def flows(session: orm.Session) -> tuple[FlowRow, ...]:
    """Return every flow."""
    rows = session.execute(
        sa.select(MoveFlow.uuid, MoveFlow.move_id, MoveFlow.kind, MoveFlow.ended_at).order_by(MoveFlow.uuid)
    )
    return tuple(
        FlowRow(uuid=row.uuid, move=row.move_id, kind=row.kind, ended=row.ended_at is not None) for row in rows
    )


def open_steps(session: orm.Session) -> tuple[StepRow, ...]:
    """Return every run of a step that has no end."""
    rows = session.execute(
        sa.select(MoveStep.move_id, MoveStep.flow_uuid, MoveStep.step, MoveStep.direction)
        .where(MoveStep.ended_at.is_(None))
        .order_by(MoveStep.seq)
    )
    return tuple(StepRow(move=row.move_id, flow=row.flow_uuid, step=row.step, direction=row.direction) for row in rows)


def begun(session: orm.Session) -> frozenset[str]:
    """Return the flows that have not ended and have run at least one step."""
    return frozenset(
        session.scalars(
            sa.select(MoveStep.flow_uuid)
            .join(MoveFlow, MoveFlow.uuid == MoveStep.flow_uuid)
            .where(MoveFlow.ended_at.is_(None))
            .distinct()
        )
    )


def intents(session: orm.Session) -> tuple[IntentRow, ...]:
    """Return every write to a service whose end is not known."""
    rows = session.scalars(sa.select(Intent).where(Intent.state.in_(("open", "late"))).order_by(Intent.id))
    return tuple(IntentRow(move=row.move_id, service=row.service, call=row.call, state=row.state) for row in rows)


def checksums(session: orm.Session) -> dict[tuple[str, str], str]:
    """Map (move, disk) to the digest that the last copy made of the disk, which was then set aside.

    The map has the moves that are open or whose source is still kept. The digest is empty when the copy came from an
    image: then the checksum is the image's, and the bytes of a flattened disk differ from the image's.
    """
    kept = sa.select(Debt.move_id).where(Debt.action == PURGE, Debt.settled_at.is_(None))
    ended = [state.value for state in ENDED]
    rows = session.execute(
        sa.select(MoveStep.move_id, MoveStep.result)
        .join(Move, Move.id == MoveStep.move_id)
        .where(
            MoveStep.step == "copy_disks",
            MoveStep.direction == "execute",
            MoveStep.ended_at.is_not(None),
            MoveStep.result.is_not(None),
            sa.or_(Move.state.not_in(ended), Move.id.in_(kept)),
        )
        .order_by(MoveStep.seq)
    )
    found: dict[tuple[str, str], str] = {}
    for move, result in rows:
        by_image = (result or {}).get("variant") == transfers.IMAGE
        for disk in (result or {}).get("disks") or []:
            found[move, str(disk["name"])] = "" if by_image else str(disk.get("source_checksum") or "")
    return found


def claimed(session: orm.Session) -> frozenset[str]:
    """Return the moves whose last claim was never given back."""
    return frozenset(session.scalars(sa.select(Claim.move_id).where(Claim.released_at.is_(None))))


def debts(session: orm.Session) -> tuple[DebtRow, ...]:
    """Return every debt that is open or was written off."""
    long_ago = database_time(session) - OVERDUE
    rows = [(row, bool(row.details.get(WRITTEN_OFF))) for row in session.scalars(sa.select(Debt).order_by(Debt.id))]
    return tuple(
        DebtRow(
            id=row.id,
            host=row.host,
            cell=row.cell or "",
            move=row.move_id,
            action=row.action,
            written_off=forgotten,
            kept=row.action == PURGE,
            overdue=row.not_before is not None and row.not_before < long_ago,
            after=row.details.get(AFTER) or "",
        )
        for row, forgotten in rows
        if row.settled_at is None or forgotten
    )


def _flavor(before: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Return a flavor from what the move recorded at its start."""
    stored = (before or {}).get(name)
    return objects.flavor_data(stored) if stored else None
