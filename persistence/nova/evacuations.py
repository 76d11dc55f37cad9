"""Reads in a cell's rows whether Nova evacuates a server, or has done so."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import Migration
from droveway.persistence.nova.servers import MigrationColumns
from droveway.persistence.nova.vm_states import MigrationStatus

OVER: Final = ("done", "completed")
"""The statuses of the migration of a server that was evacuated.

Nova sets the first one when the server runs elsewhere, and the second one when the host that it left has cleaned up.
"""


def made_since(server: sa.SQLColumnExpression[Any], migration: sa.SQLColumnExpression[int]) -> sa.Exists:
    """Return the SQL condition that Nova has begun or done an evacuation of the server after this migration was made.

    ``migration`` is the id of that migration.
    """
    made = orm.aliased(Migration)
    return sa.exists().where(
        made.instance_uuid == server,
        made.migration_type == "evacuation",
        # One comparison for each status: SQLAlchemy would render the list of an `in_` anew at each execution.
        sa.or_(*(made.status == status for status in ("accepted", MigrationStatus.PRE_MIGRATING, *OVER))),
        made.deleted == 0,
        made.id > migration,
    )


_EVACUATED: Final = sa.select(made_since(sa.bindparam("server"), sa.bindparam("after")))
_OF_MOVE: Final = (
    MigrationColumns.selected()
    .add_columns(made_since(Migration.instance_uuid, Migration.id))
    .where(Migration.uuid == sa.bindparam("move"), Migration.deleted == 0)
)
_REFUGE: Final = (
    sa.select(Migration.dest_compute)
    .where(
        Migration.instance_uuid == sa.bindparam("server"),
        Migration.migration_type == "evacuation",
        Migration.deleted == 0,
    )
    .order_by(Migration.id.desc())
    .limit(1)
)
_REBUILDING: Final = "rebuild"
"""The beginning of each task_state of an evacuation."""


def is_under_way(task: str | None) -> bool:
    """Tell whether the task_state is one of an evacuation that is under way, or of a rebuild."""
    return (task or "").startswith(_REBUILDING)


_LAST: Final = sa.select(sa.func.max(Migration.id)).where(Migration.instance_uuid == sa.bindparam("server"))


def last_migration(session: orm.Session, server: str) -> int:
    """Return the id of the server's newest migration; 0 when it has none."""
    return session.scalar(_LAST, {"server": server}) or 0


def has_taken(session: orm.Session, server: str, task: str | None, migration: int) -> bool:
    """Tell whether Nova evacuates the server, or has done so since the migration with this id was made.

    ``task`` is the server's task_state.
    """
    if is_under_way(task):
        return True
    return bool(session.scalar(_EVACUATED, {"server": server, "after": migration}))


def of_move(session: orm.Session, move_id: str, task: str | None) -> tuple[MigrationColumns | None, bool]:
    """Return the move's migration, and whether Nova evacuates its server, or has done so since the migration was made.

    ``task`` is the server's task_state.  Returns (None, False) when the move has no migration.
    """
    found = session.connection().execute(_OF_MOVE, {"move": move_id}).first()
    if found is None:
        return None, False
    *columns, made = found
    return MigrationColumns(*columns), is_under_way(task) or bool(made)


def refuge(session: orm.Session, server: str) -> str:
    """Return the host that Nova's last evacuation of the server goes to; empty while Nova has chosen none."""
    return session.scalar(_REFUGE, {"server": server}) or ""
