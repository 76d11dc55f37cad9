"""A server's instance actions and their events, as users see them in Nova.

An event is opened and closed in the same transaction as the records that it speaks of, so a repeat finds it so.
"""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.cell import InstanceAction, InstanceActionEvent
from droveway.persistence.times import utcnow

SUCCESS = "Success"
ERROR = "Error"


@dataclasses.dataclass(frozen=True)
class ActionRef:
    """One call on a server, by the request that made it."""

    server: str
    request_id: str


def begin(session: orm.Session, ref: ActionRef, name: str, *, user_id: str | None, project_id: str | None) -> None:
    """Record the action; repeated: the same row."""
    if _find(session, ref) is None:
        session.add(
            InstanceAction(
                action=name,
                instance_uuid=ref.server,
                request_id=ref.request_id,
                user_id=user_id,
                project_id=project_id,
                start_time=utcnow(),
                deleted=0,
            )
        )
        session.flush()


def fail(session: orm.Session, ref: ActionRef, why: str | None) -> bool:
    """Mark the action as failed and close what is open of it with Error and the reason; False when there is none."""
    action = _find(session, ref)
    if action is None:
        return False
    action.message = ERROR
    for event in _open(session, action, None):
        _close(event, ERROR, why)
    return True


def open_event(session: orm.Session, ref: ActionRef, event: str, host: str | None) -> None:
    """Begin an event of the action unless it is open already."""
    action = _find(session, ref)
    if action is None or _open(session, action, event):
        return
    session.add(InstanceActionEvent(event=event, action_id=action.id, start_time=utcnow(), host=host, deleted=0))
    action.updated_at = utcnow()
    session.flush()


def close_event(session: orm.Session, ref: ActionRef, event: str) -> None:
    """End the open event of that name with Success; nothing when there is none."""
    _end(session, ref, event, SUCCESS, None)


def fail_event(session: orm.Session, ref: ActionRef, event: str, why: str | None) -> None:
    """End the open event of that name with Error and the reason; nothing when there is none."""
    _end(session, ref, event, ERROR, why)


def _end(session: orm.Session, ref: ActionRef, event: str, result: str, why: str | None) -> None:
    action = _find(session, ref)
    if action is None:
        return
    for row in _open(session, action, event):
        _close(row, result, why)
    action.updated_at = utcnow()


def _close(event: InstanceActionEvent, result: str, why: str | None) -> None:
    event.finish_time = utcnow()
    event.result = result
    event.details = why


def _find(session: orm.Session, ref: ActionRef) -> InstanceAction | None:
    return session.scalar(
        sa.select(InstanceAction).where(
            InstanceAction.instance_uuid == ref.server,
            InstanceAction.request_id == ref.request_id,
            InstanceAction.deleted == 0,
        )
    )


def _open(session: orm.Session, action: InstanceAction, event: str | None) -> list[InstanceActionEvent]:
    query = sa.select(InstanceActionEvent).where(
        InstanceActionEvent.action_id == action.id, InstanceActionEvent.finish_time.is_(None)
    )
    return list(session.scalars(query if event is None else query.where(InstanceActionEvent.event == event)))
