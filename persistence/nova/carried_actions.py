"""Carries a server's instance actions, which users look up as its history, from one copy of its rows to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from droveway.persistence.nova.cell import InstanceAction, InstanceActionEvent

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.persistence.nova.copies import Copy

_KNOWN: Final = sa.select(InstanceAction.id, InstanceAction.request_id).where(
    InstanceAction.instance_uuid == sa.bindparam("server"), InstanceAction.deleted == 0
)
_FORGET: Final = sa.delete(InstanceActionEvent).where(InstanceActionEvent.action_id == sa.bindparam("row"))
_WRITE: Final = (
    sa.update(InstanceAction)
    .where(InstanceAction.id == sa.bindparam("row"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("message", "finish_time", "updated_at")})
)
_ADD: Final = sa.insert(InstanceAction)
_ADD_EVENTS: Final = sa.insert(InstanceActionEvent)


def carry(session: orm.Session, source: Copy, request_id: str | None = None) -> None:
    """Insert into the copy of this session's cell the actions, with their events, that only the ``source`` copy has.

    An action is the same in both copies when it has the same request id.  The action of ``request_id`` is written anew,
    with its events, when both copies have it.  A repeated call changes nothing else.
    """
    session.flush()
    connection = session.connection()
    known = {row.request_id: row.id for row in connection.execute(_KNOWN, {"server": source.server})}
    events: dict[int, list[Mapping[str, Any]]] = {}
    for event in source.rows[InstanceActionEvent.__tablename__]:
        events.setdefault(event["action_id"], []).append(event)
    for action in source.rows[InstanceAction.__tablename__]:
        if action["request_id"] not in known:
            there = connection.execute(_ADD, _without_id(action)).inserted_primary_key
            _add_events(connection, there[0] if there else None, events.get(action["id"], ()))
        elif action["request_id"] == request_id:
            there_id = known[request_id]
            named = ("message", "finish_time", "updated_at")
            connection.execute(_WRITE, {"row": there_id, **{f"new_{name}": action[name] for name in named}})
            connection.execute(_FORGET, {"row": there_id})
            _add_events(connection, there_id, events.get(action["id"], ()))


def _add_events(connection: sa.Connection, action: int | None, events: Sequence[Mapping[str, Any]]) -> None:
    if events:
        connection.execute(_ADD_EVENTS, [_without_id(event) | {"action_id": action} for event in events])


def _without_id(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}
