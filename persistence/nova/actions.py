"""A server's instance actions and their events, as users see them in Nova.

An event is opened or closed in the same transaction that writes the rows which it is about.  So a repeated step finds
the event and the rows both written, or neither of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import InstanceAction, InstanceActionEvent
from droveway.persistence.times import utcnow

SUCCESS = "Success"
ERROR = "Error"

# Built once, and run without the session's bookkeeping: a move opens and closes half a dozen events.
_IS_REFERRED: Final = (
    InstanceAction.instance_uuid == sa.bindparam("server"),
    InstanceAction.request_id == sa.bindparam("request"),
    InstanceAction.deleted == 0,
)
_FIND: Final = sa.select(InstanceAction.id).where(*_IS_REFERRED)
_IS_OPEN: Final = InstanceActionEvent.finish_time.is_(None)
_IS_NAMED: Final = InstanceActionEvent.event == sa.bindparam("named")
_FIND_WITH_EVENT: Final = sa.select(
    InstanceAction.id,
    sa.exists().where(InstanceActionEvent.action_id == InstanceAction.id, _IS_OPEN, _IS_NAMED),
).where(*_IS_REFERRED)
_END: Final = (
    sa.update(InstanceActionEvent)
    .where(_IS_OPEN)
    .values(finish_time=sa.bindparam("now"), result=sa.bindparam("outcome"), details=sa.bindparam("why"))
)
_END_ALL: Final = _END.where(InstanceActionEvent.action_id == sa.bindparam("row"))
_END_NAMED: Final = _END.where(
    InstanceActionEvent.action_id == sa.select(sa.func.min(InstanceAction.id)).where(*_IS_REFERRED).scalar_subquery(),
    _IS_NAMED,
)
_END_ONE: Final = _END.where(InstanceActionEvent.id == sa.bindparam("row"))
_OPEN: Final = (
    sa.select(InstanceAction.id.label("action"), InstanceActionEvent.id, InstanceActionEvent.event)
    .outerjoin(InstanceActionEvent, sa.and_(InstanceActionEvent.action_id == InstanceAction.id, _IS_OPEN))
    .where(*_IS_REFERRED)
    .order_by(InstanceAction.id)
)
"""Selects a row for each open event of the action, or one row without an event when none is open."""
_TOUCH: Final = sa.update(InstanceAction).where(*_IS_REFERRED).values(updated_at=sa.bindparam("now"))
_FAIL: Final = (
    sa.update(InstanceAction)
    .where(InstanceAction.id == sa.bindparam("row"), InstanceAction.message.is_distinct_from(ERROR))
    .values(message=ERROR)
)
_ADD: Final = sa.insert(InstanceAction)
_ADD_EVENT: Final = sa.insert(InstanceActionEvent)


@dataclasses.dataclass(frozen=True)
class ActionRef:
    """Names the instance action of a server that belongs to this request."""

    server: str
    request_id: str


def begin(session: orm.Session, ref: ActionRef, name: str, *, user_id: str | None, project_id: str | None) -> None:
    """Add the action unless it is there."""
    if _find(session, ref) is None:
        # The action's row refers to the server's row, which this transaction may have added.
        session.flush()
        row = {"action": name, "instance_uuid": ref.server, "request_id": ref.request_id, "start_time": utcnow()}
        session.connection().execute(_ADD, row | {"user_id": user_id, "project_id": project_id})


def fail(session: orm.Session, ref: ActionRef, why: str | None) -> bool:
    """Mark the action as failed, and end its open events with Error and the reason.

    Returns False, and changes nothing, when there is no such action or it has failed already.
    """
    action = _find(session, ref)
    if action is None:
        return False
    connection = session.connection()
    if not connection.execute(_FAIL, {"row": action}).rowcount:
        return False
    connection.execute(_END_ALL, {"row": action, "now": utcnow(), "outcome": ERROR, "why": why})
    return True


def open_event(session: orm.Session, ref: ActionRef, event: str, host: str | None) -> None:
    """Begin an event of the action unless it is open already; nothing happens when there is no such action."""
    connection, mine = session.connection(), _parameters(ref)
    found = connection.execute(_FIND_WITH_EVENT, {**mine, "named": event}).first()
    if found is None or found[1]:
        return
    connection.execute(_ADD_EVENT, {"event": event, "action_id": found[0], "start_time": utcnow(), "host": host})
    connection.execute(_TOUCH, {**mine, "now": utcnow()})


def turn(
    session: orm.Session, ref: ActionRef, *, over: Collection[str] = (), begun: Collection[str] = (), host: str | None
) -> None:
    """Close some events of the action with Success and open others, as the action turns from one phase to the next.

    ``over`` names the events that are over: those of them that are open are closed.  ``begun`` names the events that
    have begun: those of them that are not open are opened on ``host``.  The result is that of `close_event` and
    `open_event` for each event, with fewer statements.
    """
    connection, mine, now = session.connection(), _parameters(ref), utcnow()
    rows = connection.execute(_OPEN, mine).all()
    if not rows:
        return
    action = rows[0].action
    known = {row.event: row.id for row in rows if row.action == action and row.id is not None}
    ended = [{"row": known[event], "now": now, "outcome": SUCCESS, "why": None} for event in over if event in known]
    added = [
        {"event": event, "action_id": action, "start_time": now, "host": host} for event in begun if event not in known
    ]
    if ended:
        connection.execute(_END_ONE, ended)
    if added:
        connection.execute(_ADD_EVENT, added)
    if ended or added:
        connection.execute(_TOUCH, {**mine, "now": now})


def close_event(session: orm.Session, ref: ActionRef, event: str) -> bool:
    """End the open event of that name with Success; return False when there is none."""
    return _end(session, ref, event, SUCCESS, None)


def fail_event(session: orm.Session, ref: ActionRef, event: str, why: str | None) -> None:
    """End the open event of that name with Error and the reason; nothing happens when there is none."""
    _end(session, ref, event, ERROR, why)


def _end(session: orm.Session, ref: ActionRef, event: str, result: str, why: str | None) -> bool:
    connection, mine, now = session.connection(), _parameters(ref), utcnow()
    ended = connection.execute(_END_NAMED, {**mine, "named": event, "now": now, "outcome": result, "why": why})
    connection.execute(_TOUCH, {**mine, "now": now})
    return bool(ended.rowcount)


def _find(session: orm.Session, ref: ActionRef) -> int | None:
    return session.connection().scalar(_FIND, _parameters(ref))


def _parameters(ref: ActionRef) -> dict[str, str]:
    return {"server": ref.server, "request": ref.request_id}
