"""Whether a guest may be started: the server's rows say so, read behind the fence right before the command is sent.

A guest starts only where its server is still this move's.  Nova evacuates a server whatever its task, and its
evacuation wins: the flow then starts nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import Evacuated, ServerDeleted, StepError
from droveway.flows import evacuation
from droveway.flows.steps.hosts.command import describe, query_host
from droveway.flows.steps.rows import Rows, cell_rows
from droveway.persistence.journal import kinds
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import Service
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState
from droveway.wire.commands import Ready
from droveway.wire.values import PERMISSION_VOID

if TYPE_CHECKING:
    from collections.abc import Callable

    from droveway.flows.run import Context

States = frozenset[tuple[str | None, str | None]]

_FORCED_DOWN: Final = sa.select(Service.forced_down).where(
    Service.host == sa.bindparam("host"), Service.binary == "nova-compute", Service.deleted == 0
)

_HIDDEN: Final = sa.select(Instance.hidden).where(Instance.uuid == sa.bindparam("server"), Instance.deleted == 0)

ROUNDS: Final = 40
"""So often is a permission asked for before the start has failed."""

FORWARD: Final[States] = frozenset(
    {(TaskState.RESIZE_FINISH, MigrationStatus.POST_MIGRATING), (None, MigrationStatus.FINISHED)}
)
"""Task and migration's status when the destination's guest starts; the second of a flow whose journal was put back."""
FORWARD_UNDO: Final[States] = frozenset(
    {
        (TaskState.RESIZE_MIGRATED, MigrationStatus.MIGRATING),
        (TaskState.RESIZE_MIGRATED, MigrationStatus.PRE_MIGRATING),
        (TaskState.RESIZE_PREP, MigrationStatus.PRE_MIGRATING),
    }
)
"""The same when the source's guest is brought back; the second likewise, the third as an earlier release marked."""
REVERT: Final[States] = frozenset(
    {(TaskState.RESIZE_REVERTING, MigrationStatus.REVERTING), (None, MigrationStatus.REVERTED)}
)
"""When a revert starts the source's guest."""
REVERT_UNDO: Final[States] = frozenset(
    {(TaskState.RESIZE_REVERTING, MigrationStatus.REVERTING), (None, MigrationStatus.FINISHED)}
)
"""When a revert that is undone brings the destination's guest back."""

SHELVE_UNDO: Final[States] = frozenset({(TaskState.SHELVING, None), (None, None)})
"""When a shelve that is undone brings the guest back; it has no migration.

The second where a person has reset the state: the server was on no other host, so that none can run it.
"""
UNSHELVE: Final[States] = frozenset({(TaskState.UNSHELVING, None)})
"""When an unshelve starts the guest."""


def may_start(ctx: Context, host: str, states: States) -> bool:
    """Whether the guest is to be started on the host: not when its server is deleted, or is being deleted.

    Raises StepError: ``evacuated`` when Nova has taken the server, ``not-this-moves`` when its rows name another host,
    or a state that this move did not leave.
    """
    with cell_rows(ctx) as rows:
        row = rows.instance
        status = rows.migration.status if kinds.of(ctx.run.kind).has_migration else None
        refuse_evacuated(ctx, rows, f"so its guest is not started on {host}")
        deleting = row.task_state == TaskState.DELETING
        if ctx.crosses_cells and not deleting and _was_switched(ctx):
            _require_hidden(ctx)
        if row.host != host or not (deleting or (row.task_state, status) in states):
            raise StepError(
                f"the rows of server {ctx.move.server_name} are not as this move left them, so its guest is not "
                f"started on {host}: they name {row.host or 'no host'} in task {row.task_state or 'none'}"
                + (f", and the move's migration is {status}" if status else ""),
                code="not-this-moves",
            )
        return not deleting


def require_not_evacuated(ctx: Context) -> None:
    """Raise StepError (``evacuated``) when Nova has taken the server: what it holds or uses is its evacuation's."""
    # A server that is gone has none, and one that is being deleted is no longer evacuated.
    with contextlib.suppress(ServerDeleted), cell_rows(ctx) as rows:
        refuse_evacuated(ctx, rows, "so what it holds, its ports and its volumes stay")


def permitted(
    ctx: Context, host: str, states: States, prove_off: Callable[[], None], send: Callable[[str], dict[str, Any]]
) -> dict[str, Any] | None:
    """``send`` the command that starts the guest with a permission of its host; None when it is not to be started.

    The host says that it is ready, and only then are the rows read and the other host is asked (``prove_off``): the
    permission is good for half a session from that word on, so that what was found is younger than that when the guest
    starts.  One that was not used in time is asked for anew.  Raises StepError: `PERMISSION_VOID` when that was in vain
    too, `may_start`'s and those of ``prove_off``.
    """
    for left in reversed(range(ROUNDS)):
        ready = msgspec.convert(query_host(ctx, host, "prepare_start", part="ready"), type=Ready)
        if not may_start(ctx, host, states):
            return None
        prove_off()
        try:
            return send(ready.permission)
        except StepError as error:
            if error.error_code != PERMISSION_VOID or not left:
                raise
    return None


def prove_off(ctx: Context, host: str, other: str) -> None:
    """Raise StepError (``runs-elsewhere``) when the other host says that the guest runs there.

    A host that somebody declared down, and whose worker is away, is not asked.
    """
    if ctx.same_host or is_given_up(ctx, other):
        return
    if describe(ctx, other, part="proof").running:
        raise StepError(
            f"the guest of {ctx.move.server_name} runs on {other}, so it is not started on {host}",
            code="runs-elsewhere",
            host=other,
        )


def require_never_started(ctx: Context, host: str, defined_by: str) -> None:
    """Raise StepError (``start-unknown``) when the host's guest was started since it was defined for this start.

    The count of its starts is compared with the one that the conductor was told when ``defined_by`` had run: what the
    worker has noted itself is as new as its journal, which may have been lost with the start in it.
    """
    told = sa.select(MoveStep.result).where(
        MoveStep.flow_uuid == ctx.run.flow_uuid,
        MoveStep.step == defined_by,
        MoveStep.direction == "execute",
        MoveStep.attempt == ctx.move.attempt,
        MoveStep.result.is_not(None),
    )
    with ctx.run.journal.read() as session:
        before = session.scalar(told.order_by(MoveStep.seq.desc()).limit(1))
    guest = describe(ctx, host, part="starts")
    if before is None or "starts" not in before or not guest.defined:
        return
    if guest.running or guest.starts != before["starts"]:
        raise StepError(
            f"the guest of server {ctx.move.server_name} was started on {host} since it was defined there "
            f"({guest.starts} starts, {before['starts']} before), so its start is not undone",
            code="start-unknown",
            host=host,
        )


def is_given_up(ctx: Context, host: str) -> bool:
    """Whether the host's worker is away, and a person said that the host is off."""
    return host not in ctx.run.workers() and _is_declared_down(ctx, host)


def _is_declared_down(ctx: Context, host: str) -> bool:
    """Whether a person said that the host is off (``host down``, ``cell down``, or Nova's forced_down)."""
    cell = ctx.cell_of(host)
    if ctx.run.cells.is_down(cell):
        return True
    if cell != ctx.cell:
        # An undo asks this too when no copy of the server's rows stands there any more, or none yet.
        return ctx.run.cells.is_declared_down(cell, host)
    with cell_rows(ctx) as rows:
        return bool(rows.session.scalar(_FORCED_DOWN, {"host": host}))


def _was_switched(ctx: Context) -> bool:
    """Whether the mapping may have been switched by now: before that nobody but this move has met the other copy."""
    switch = (ctx.run.flow_uuid, ctx.run.shown.switch)
    return ctx.run.is_behind() or any((run.flow_uuid, run.step) == switch for run in ctx.run.step_runs())


def _require_hidden(ctx: Context) -> None:
    """Raise StepError (``not-this-moves``) unless the other copy of the server's rows is hidden, or its cell gone.

    Whoever declared the cell down made sure that its hosts are off, and that nobody reads its rows.
    """
    move = ctx.move
    other = move.source_cell if ctx.cell == ctx.destination.cell else ctx.destination.cell
    if ctx.run.cells.is_down(other):
        return
    with ctx.run.cells.database(other).read() as session:
        hidden = session.scalar(_HIDDEN, {"server": move.server})
    if hidden is False:
        raise StepError(
            f"cell {other} shows rows of server {move.server_name}, which lives in cell {ctx.cell}, so its guest is "
            "not started: droveway audit says what they are",
            code="not-this-moves",
        )


def refuse_evacuated(ctx: Context, rows: Rows, so: str) -> None:
    """Raise StepError (``evacuated``) when Nova has taken the server, in the transaction that writes its rows."""
    row, name = rows.instance, ctx.move.server_name
    if rows.read is None and evacuation.has_come(ctx, rows.session, row.task_state):
        raise Evacuated(evacuation.sentence(name, row.host, row.task_state, so))
