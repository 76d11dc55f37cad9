"""What a cell's rows say of Nova's evacuations of a server."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import Migration
from droveway.persistence.nova.servers import MigrationColumns
from droveway.persistence.nova.vm_states import MigrationStatus

OVER: Final = ("done", "completed")
"""What Nova's migration says of a server that was evacuated; the second once the host that it left has cleaned up."""


def made_since(server: sa.SQLColumnExpression[Any], migration: sa.SQLColumnExpression[int]) -> sa.Exists:
    """Tell in a statement whether Nova has evacuated the server since the migration with this id was made."""
    made = orm.aliased(Migration)
    return sa.exists().where(
        made.instance_uuid == server,
        made.migration_type == "evacuation",
        # Of `in_` the statement would be written anew each time that it is carried out.
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
"""How each task of an evacuation begins."""


def is_under_way(task: str | None) -> bool:
    """Whether the task is one of an evacuation that goes on, or of a rebuild."""
    return (task or "").startswith(_REBUILDING)


_LAST: Final = sa.select(sa.func.max(Migration.id)).where(Migration.instance_uuid == sa.bindparam("server"))


def last_migration(session: orm.Session, server: str) -> int:
    """Number the newest migration of the server; 0 where it has none."""
    return session.scalar(_LAST, {"server": server}) or 0


def has_taken(session: orm.Session, server: str, task: str | None, migration: int) -> bool:
    """Whether Nova evacuates the server, or has done so since the migration with this id was made."""
    if is_under_way(task):
        return True
    return bool(session.scalar(_EVACUATED, {"server": server, "after": migration}))


def of_move(session: orm.Session, move_id: str, task: str | None) -> tuple[MigrationColumns | None, bool]:
    """Return the move's migration, and whether Nova evacuates its server, in this ``task``, or has done so since."""
    found = session.connection().execute(_OF_MOVE, {"move": move_id}).first()
    if found is None:
        return None, False
    *columns, made = found
    return MigrationColumns(*columns), is_under_way(task) or bool(made)


def refuge(session: orm.Session, server: str) -> str:
    """The host that Nova's last evacuation of the server goes to; empty while none is chosen."""
    return session.scalar(_REFUGE, {"server": server}) or ""
