"""Tells whether Nova, or a user through it, has brought a move to its end already: the flow then only clears up.

A user may confirm or revert a waiting server through Nova as well, and nova-compute may be configured to confirm by
itself.  The flow then takes the rows as they are, and no longer starts, switches, binds or deletes anything of the
server.  It removes the move's own traces.  Those that it cannot remove now become a debt, or are named in the result.

An administrator may reset a server's state at any time (`os-resetState`).  That clears the task_state which keeps
Nova's API away.  While all else is as the move left it, the next step writes the task_state again before it does
anything else.  A server that its user stopped between the reset and that step is stopped when the move ends, on
whichever host that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from droveway.flows.before import as_json, before, stopped_since
from droveway.persistence.compare_and_swap import compare_and_swap
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.moves import BY_NOVA
from droveway.persistence.nova import servers
from droveway.persistence.nova.vm_states import TaskState, VmState

if TYPE_CHECKING:
    from typing import Any

    from droveway.flows.run import Context


def is_reached(ctx: Context) -> bool:
    """Tell whether the migration has the status that the flow would end with: the step then only clears up."""
    wanted = kinds.of(ctx.run.kind).end_status
    if not wanted:
        return False
    if ctx.observed is not None:
        return ctx.observed.status == wanted
    with ctx.run.cells.database(ctx.cell).read() as session:
        row = servers.migration(session, ctx.move.id)
    return row is not None and row.status == wanted


def noted(**found: Any) -> dict[str, Any]:
    """Return the result of a step whose flow Nova has brought to its end, with what was ``found``."""
    return {**BY_NOVA, **found}


RESET: Final = (VmState.ACTIVE, VmState.ERROR, VmState.STOPPED)
"""The vm_states after a reset: `os-resetState` writes active or error, and a stop by the user makes it stopped."""


def mark_again(ctx: Context) -> None:
    """Write task_state and vm_state of the move again, for a server whose state was reset in the middle of it.

    A server that its user stopped after the reset counts as stopped before the move, so that no host starts it.
    """
    kind = kinds.of(ctx.run.kind)
    if not (kind.tasks or kind.begins_offloaded):
        return
    move, cells, found = ctx.move, ctx.run.cells, ctx.observed
    if found is None or _mark_lost(ctx, found.host, found.vm_state, found.task_state, found.status) is None:
        return
    if found.vm_state == VmState.STOPPED and not before(move).stopped:
        _record_stopped(ctx)
    with cells.transaction(ctx.cell, move.server, ctx.run.epoch) as session:
        row = servers.live(session, move.server, deleting=True)
        migration = servers.migration(session, move.id)
        status = None if migration is None else migration.status
        if lost := _mark_lost(ctx, row.host, row.vm_state, row.task_state, status):
            compare_and_swap(session, row, vm_state=(row.vm_state, lost[0]), task_state=(None, lost[1]))


def _record_stopped(ctx: Context) -> None:
    # Before the rows are written: afterwards they no longer say that the server was stopped.
    with ctx.run.write() as session:
        move = moves.get(session, ctx.move.id, lock=True)
        move.before = as_json(stopped_since(before(move)))
    ctx.move.before = move.before


def was_tried(ctx: Context) -> bool:
    """Tell whether the step was entered in this direction before, under another claim."""
    this = (ctx.run.flow_uuid, ctx.step, ctx.direction)
    return any(
        (run.flow_uuid, run.step, run.direction) == this and run.epoch != ctx.run.epoch for run in ctx.run.step_runs()
    )


def _mark_lost(
    ctx: Context, host: str | None, vm_state: str | None, task_state: str | None, status: str | None
) -> tuple[str, str] | None:
    """Return the vm_state and task_state that the move left; None unless just these were reset since."""
    if ctx.move.before is None or task_state is not None or vm_state not in RESET:
        return None
    back, there = ctx.return_host, ctx.attempt.host if ctx.attempt is not None else None
    if kinds.of(ctx.run.kind).begins_offloaded:
        return (VmState.SHELVED_OFFLOADED, TaskState.UNSHELVING) if host is not None and host == there else None
    if status is None:
        return None
    task = kinds.of(ctx.run.kind).tasks.get(status)
    if task == TaskState.RESIZE_REVERTING:
        return (VmState.RESIZED, task) if host in (back, there) else None
    if task is None or host != (there if task == TaskState.RESIZE_FINISH else back):
        return None
    return before(ctx.move).vm_state, task
