"""Whether Nova, or a user through it, has brought a move to its end already: the flow then only clears up.

Beside Droveway a user may confirm or revert a server that waits for verification, and nova-compute confirms by itself
where it is told to.  What its rows say is taken as it is: nothing of the server is started, switched, bound or deleted
any more.  What is left are the move's own traces, and what of them cannot be cleared now is owed or named.

An administrator may reset a server's state at any time (`os-resetState`): that clears the task which keeps Nova's API
away, and says nothing of the move.  While all else is as the move left it, its mark is put again before anything else.
Who stops the server then through Nova's API has it stopped wherever the move ends.
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
    """Whether the flow's end stands in the rows already, so that the step has nothing to do but to clear up."""
    wanted = kinds.of(ctx.run.kind).end_status
    if not wanted:
        return False
    if ctx.observed is not None:
        return ctx.observed.status == wanted
    with ctx.run.cells.database(ctx.cell).read() as session:
        row = servers.migration(session, ctx.move.id)
    return row is not None and row.status == wanted


def noted(**found: Any) -> dict[str, Any]:
    """The result of a step of such a flow."""
    return {**BY_NOVA, **found}


RESET: Final = (VmState.ACTIVE, VmState.ERROR, VmState.STOPPED)
"""What `os-resetState` writes, with no task; and what Nova's stop of such a server does."""


def mark_again(ctx: Context) -> None:
    """Put back task and vm_state of a server whose state was reset in the middle of its move.

    A server that ran before its move and was stopped by its user since counts as stopped before it: it is left off on
    either host.
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
    # First the journal: rows that have their mark again say no more that the server was stopped.
    with ctx.run.write() as session:
        move = moves.get(session, ctx.move.id, lock=True)
        move.before = as_json(stopped_since(before(move)))
    ctx.move.before = move.before


def was_tried(ctx: Context) -> bool:
    """Whether the step was entered in this direction under another claim before."""
    this = (ctx.run.flow_uuid, ctx.step, ctx.direction)
    return any(
        (run.flow_uuid, run.step, run.direction) == this and run.epoch != ctx.run.epoch for run in ctx.run.step_runs()
    )


def _mark_lost(
    ctx: Context, host: str | None, vm_state: str | None, task_state: str | None, status: str | None
) -> tuple[str, str] | None:
    """The vm_state and the task that the move left, when they were reset since and nothing else was changed."""
    if ctx.move.before is None or task_state is not None or vm_state not in RESET:
        return None
    place, there = ctx.return_host, ctx.attempt.host if ctx.attempt is not None else None
    if kinds.of(ctx.run.kind).begins_offloaded:
        return (VmState.SHELVED_OFFLOADED, TaskState.UNSHELVING) if host is not None and host == there else None
    if status is None:
        return None
    task = kinds.of(ctx.run.kind).tasks.get(status)
    if task == TaskState.RESIZE_REVERTING:
        return (VmState.RESIZED, task) if host in (place, there) else None
    if task is None or host != (there if task == TaskState.RESIZE_FINISH else place):
        return None
    return before(ctx.move).vm_state, task
