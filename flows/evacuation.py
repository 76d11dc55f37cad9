"""Whether Nova has evacuated the server of a move: its evacuation wins, and the move ends as cancelled.

Nova evacuates servers whose host is down whatever their task.  From then on rows, ports, volumes and the server's own
allocation are Nova's: the move starts nothing and gives nothing back, and only its own traces go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.persistence.nova import servers
from droveway.persistence.nova.cell import Instance, Migration
from droveway.persistence.nova.vm_states import MigrationStatus

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import orm

    from droveway.flows.run import Context

OVER: Final = ("done", "completed")
"""What Nova's migration says of a server that was evacuated; the second once the host that it left has cleaned up."""

_EVACUATIONS: Final = (
    sa.select(Migration.id)
    .where(
        Migration.instance_uuid == sa.bindparam("server"),
        Migration.migration_type == "evacuation",
        Migration.status.in_(("accepted", MigrationStatus.PRE_MIGRATING, *OVER)),
        Migration.deleted == 0,
        Migration.id > sa.bindparam("after"),
    )
    .limit(1)
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
_ROW: Final = sa.select(Instance.host, Instance.task_state).where(
    Instance.uuid == sa.bindparam("server"), Instance.deleted == 0
)

_REBUILDING: Final = "rebuild"
"""How each task of an evacuation begins."""


def is_under_way(task: str | None) -> bool:
    """Whether the task is one of an evacuation that goes on, or of a rebuild."""
    return (task or "").startswith(_REBUILDING)


def has_taken(session: orm.Session, server: str, task: str | None, migration: int) -> bool:
    """Whether Nova evacuates the server, or has done so since the move's migration was made."""
    if is_under_way(task):
        return True
    return session.scalar(_EVACUATIONS, {"server": server, "after": migration}) is not None


def refuge(session: orm.Session, server: str) -> str:
    """The host that Nova's last evacuation of the server goes to; empty while none is chosen."""
    return session.scalar(_REFUGE, {"server": server}) or ""


def sentence(name: str, host: str | None, task: str | None, so: str) -> str:
    """Why something was not done."""
    return (
        f"Nova evacuated server {name} during its move, {so}: its rows name {host or 'no host'} in task "
        f"{task or 'none'}"
    )


def why(ctx: Context) -> str:
    """What the move of such a server ends with; empty when Nova has not evacuated it."""
    with ctx.run.cells.database(ctx.move.source_cell).read() as session:
        migration = servers.migration(session, ctx.move.id)
        if migration is None:
            return ""
        row: Any = session.execute(_ROW, {"server": ctx.move.server}).first()
        if row is None or not has_taken(session, ctx.move.server, row.task_state, migration.id):
            return ""
    return sentence(ctx.move.server_name, row.host, row.task_state, "so the move ends and leaves the server to it")
