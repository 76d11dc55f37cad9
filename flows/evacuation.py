"""Tells whether Nova has evacuated the server of a move: then the evacuation wins, and the move ends as cancelled.

Nova evacuates a server whose host is down, whatever its task_state.  From then on rows, ports, volumes and the server's
own allocation are Nova's.  The move starts nothing and gives nothing back; it only removes its own traces.
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
    """Make the sentence that says why something was not done; ``so`` is its consequence."""
    return (
        f"Nova evacuated server {name} during its move, {so}: its rows name {host or 'no host'} in task "
        f"{task or 'none'}"
    )


def has_come(ctx: Context, session: orm.Session, task: str | None) -> bool:
    """Tell whether Nova evacuates the server now, by this ``task``, or has evacuated it during its move.

    The evacuation came during the move when its id is higher than that of the move's migration.  A move without a
    migration compares with the newest migration that `record_before` found; before that step the answer is no.
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
    """Read the rows now and return the reason with which the move ends; empty unless Nova has evacuated its server."""
    with ctx.run.cells.database(ctx.cell).read() as session:
        row: Any = session.execute(_ROW, {"server": ctx.move.server}).first()
        if row is None or not has_come(ctx, session, row.task_state):
            return ""
    return _of_move(ctx, row.host, row.task_state)


def why_at_first(ctx: Context) -> str:
    """Return the reason as `why` does, by the rows that the step read when it began."""
    if not kinds.of(ctx.run.kind).has_migration:
        return why(ctx)
    found = ctx.observed
    if found is None or found.migration is None or not found.evacuated:
        return ""
    return _of_move(ctx, found.host, found.task_state)


def _of_move(ctx: Context, host: str | None, task: str | None) -> str:
    return sentence(ctx.move.server_name, host, task, "so the move ends and leaves the server to Nova")
