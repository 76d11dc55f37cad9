"""Deletes a server's rows from a cell for good, as if they had never been there.

They must not be soft-deleted.  Nova's archiver deletes the instance mapping of each server of which it finds a
soft-deleted row, in whatever cell: the server in the other cell would be lost.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova import cell, copied_tables
from droveway.persistence.nova.copies import of_server

_TABLES: Final = cell.CellBase.metadata.tables
_INSTANCES: Final = _TABLES["instances"]
_ACTIONS: Final = _TABLES["instance_actions"]
_EVENTS: Final = _TABLES["instance_actions_events"]
_METADATA: Final = _TABLES["instance_system_metadata"]
_TAGS: Final = _TABLES["tags"]

_MANY: Final = (
    _EVENTS,
    *(
        table
        for table in (_TABLES[entry.table] for entry in reversed(copied_tables.COPIED))
        if table not in (_EVENTS, _INSTANCES, _TAGS)
    ),
    *(_TABLES[entry.table] for entry in copied_tables.REMOVED),
    _TABLES["security_group_instance_association"],
    _TABLES["instance_id_mappings"],
)
"""The tables whose rows are removed in portions; a table comes before the one that its rows refer to."""


def _portion() -> sa.CompoundSelect[Any]:
    """Select the next rows to remove: for each the number of its table in `_MANY`, and its id."""
    selected = []
    for number, table in enumerate(_MANY):
        one = sa.select(sa.literal_column(str(number), sa.Integer).label("part"), table.c.id)
        if table is _EVENTS:
            one = one.join(_ACTIONS, table.c.action_id == _ACTIONS.c.id).where(of_server(_ACTIONS))
        else:
            one = one.where(of_server(table))
        if table is _METADATA:
            one = one.where(table.c.key.not_in(copied_tables.MARKERS))
        selected.append(one)
    return sa.union_all(*selected).order_by("part").limit(sa.bindparam("at_most"))


_PORTION: Final = _portion()
_DELETE: Final = tuple(sa.delete(table).where(table.c.id.in_(sa.bindparam("ids", expanding=True))) for table in _MANY)
_LOCK: Final = sa.select(_INSTANCES.c.id).where(of_server(_INSTANCES)).with_for_update()
_REMOVE_LAST: Final = tuple(sa.delete(table).where(of_server(table)) for table in (_TAGS, _METADATA, _INSTANCES))


def remove(session: orm.Session, server: str, *, at_most: int) -> bool:
    """Delete a portion of the server's rows for good, soft-deleted ones too; return whether rows are left.

    A call deletes at most ``at_most`` rows of the tables `_MANY`.  The last call also deletes the server's own row, its
    tags, which Nova limits in number, and the fence and the mark.  So the fence protects the rows until none is left.
    """
    session.flush()
    connection = session.connection()
    # A transaction that adds a row for the server waits for this lock, and fails when the server's row is gone.
    connection.execute(_LOCK, {"server": server})
    found = connection.execute(_PORTION, {"server": server, "at_most": at_most}).all()
    for part, rows in itertools.groupby(found, key=lambda row: row.part):
        connection.execute(_DELETE[part], {"ids": [row.id for row in rows]})
    if len(found) >= at_most:
        return True
    for statement in _REMOVE_LAST:
        connection.execute(statement, {"server": server})
    return False
