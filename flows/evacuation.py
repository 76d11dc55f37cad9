"""Whether Nova has evacuated the server of a move: its evacuation wins, and the move ends as cancelled.

Nova evacuates servers whose host is down whatever their task.  From then on rows, ports, volumes and the server's own
allocation are Nova's: the move starts nothing and gives nothing back, and only its own traces go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.flows.before import before
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Evacuation
from droveway.persistence.nova import servers
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.evacuations import has_taken

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import orm

    from droveway.flows.run import Context

_ROW: Final = sa.select(Instance.host, Instance.task_state).where(
    Instance.uuid == sa.bindparam("server"), Instance.deleted == 0
)


def sentence(name: str, host: str | None, task: str | None, so: str) -> str:
    """Why something was not done."""
    return (
        f"Nova evacuated server {name} during its move, {so}: its rows name {host or 'no host'} in task "
        f"{task or 'none'}"
    )


def has_come(ctx: Context, session: orm.Session, task: str | None) -> bool:
    """Tell whether Nova evacuates the server, in this ``task``, or has done so during its move.

    A move that Nova keeps no migration of recorded which was the server's newest; before that nothing of it is begun.
    """
    move, kind = ctx.move, kinds.of(ctx.run.kind)
    if kind.evacuation is Evacuation.IGNORED:
        return False
    if kind.has_migration:
        migration = servers.migration(session, move.id)
        since = None if migration is None else migration.id
    else:
        since = None if move.before is None else before(move).last_migration
    return since is not None and has_taken(session, move.server, task, since)


def why(ctx: Context) -> str:
    """Read the rows now and say what the move ends with if Nova has evacuated its server; empty if it has not."""
    with ctx.run.cells.database(ctx.cell).read() as session:
        row: Any = session.execute(_ROW, {"server": ctx.move.server}).first()
        if row is None or not has_come(ctx, session, row.task_state):
            return ""
    return _of_move(ctx, row.host, row.task_state)


def why_at_first(ctx: Context) -> str:
    """Say the same by the rows that the step read when it began."""
    if not kinds.of(ctx.run.kind).has_migration:
        return why(ctx)
    found = ctx.observed
    if found is None or found.migration is None or not found.evacuated:
        return ""
    return _of_move(ctx, found.host, found.task_state)


def _of_move(ctx: Context, host: str | None, task: str | None) -> str:
    return sentence(ctx.move.server_name, host, task, "so the move ends and leaves the server to it")
