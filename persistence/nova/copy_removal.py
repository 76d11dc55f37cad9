"""Removes a server's rows from a cell for good, as if they had never been there.

Nova's archiver destroys the mapping of each server whose row it finds soft-deleted, in whatever cell: a copy that was
left is therefore never soft-deleted.
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
"""What is removed in portions, children before their parents."""


def _portion() -> sa.CompoundSelect[Any]:
    """Select the number of a table in `_MANY` and the id of a row, for as many rows as may go at once."""
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
    """Delete rows of the server for good, soft-deleted ones too; whether something is left for the next portion.

    At most ``at_most`` rows of those that there may be many of go at once, children before their parents.  The
    server's row goes last, and with it what Nova bounds (its tags) and our own rows: while anything stands, the fence
    does.
    """
    session.flush()
    connection = session.connection()
    # Whoever adds a row that refers to the server's waits for this lock, and then finds no server.
    connection.execute(_LOCK, {"server": server})
    found = connection.execute(_PORTION, {"server": server, "at_most": at_most}).all()
    for part, rows in itertools.groupby(found, key=lambda row: row.part):
        connection.execute(_DELETE[part], {"ids": [row.id for row in rows]})
    if len(found) >= at_most:
        return True
    for statement in _REMOVE_LAST:
        connection.execute(statement, {"server": server})
    return False
