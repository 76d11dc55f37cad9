"""Decides whether a guest may be started, by the server's rows, which are read right before the command is sent.

A guest is started only while its server is still this move's.  Nova evacuates a server whatever its task_state.  An
evacuation wins, and the flow then starts nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import Evacuated, ServerDeleted, StepError
from droveway.flows import evacuation
from droveway.flows.before import before
from droveway.flows.steps.hosts.command import describe, query_host
from droveway.flows.steps.rows import Rows, cell_rows
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Carries
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
"""How many times a permission is asked for before the start counts as failed."""

FORWARD: Final[States] = frozenset(
    {(TaskState.RESIZE_FINISH, MigrationStatus.POST_MIGRATING), (None, MigrationStatus.FINISHED)}
)
"""The pairs of task_state and migration status with which a forward flow starts the destination's guest.

The second pair is for a flow whose journal was put back.
"""
FORWARD_UNDO: Final[States] = frozenset(
    {
        (TaskState.RESIZE_MIGRATED, MigrationStatus.MIGRATING),
        (TaskState.RESIZE_MIGRATED, MigrationStatus.PRE_MIGRATING),
        (TaskState.RESIZE_PREP, MigrationStatus.PRE_MIGRATING),
    }
)
"""The pairs with which an undo of a forward flow starts the source's guest.

The second pair is for a flow whose journal was put back, the third for a flow that an older release began.
"""
REVERT: Final[States] = frozenset(
    {(TaskState.RESIZE_REVERTING, MigrationStatus.REVERTING), (None, MigrationStatus.REVERTED)}
)
"""The pairs with which a revert starts the source's guest; the second is for a journal that was put back."""
REVERT_UNDO: Final[States] = frozenset(
    {(TaskState.RESIZE_REVERTING, MigrationStatus.REVERTING), (None, MigrationStatus.FINISHED)}
)
"""The pairs with which the undo of a revert starts the destination's guest; the second as above."""

SHELVE_UNDO: Final[States] = frozenset({(TaskState.SHELVING, None), (None, None)})
"""The pairs with which the undo of a shelve starts the guest; a shelve has no migration.

The second pair is for a server whose state a person has reset: it was on no other host, so no other can run it.
"""
UNSHELVE: Final[States] = frozenset({(TaskState.UNSHELVING, None)})
"""The pair with which an unshelve starts the guest."""


def may_start(ctx: Context, host: str, states: States) -> bool:
    """Tell whether the guest is to be started on the host: not when its server is being deleted.

    Raises ServerDeleted when it is gone.  Raises StepError (``evacuated``) when Nova has evacuated the server, and
    (``not-this-moves``) when its rows name another host, or a state that this move did not write.
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
    """Raise StepError (``evacuated``) when Nova has evacuated the server: what it holds or uses is then Nova's."""
    # Nova evacuates no server that is gone or being deleted.
    with contextlib.suppress(ServerDeleted), cell_rows(ctx) as rows:
        refuse_evacuated(ctx, rows, "so what it holds, its ports and its volumes stay")


def permitted(
    ctx: Context, host: str, states: States, prove_off: Callable[[], None], send: Callable[[str], dict[str, Any]]
) -> dict[str, Any] | None:
    """Start the guest by a permission of its host; return the answer, or None when it is not to be started.

    The host first says that it is ready, and gives a permission.  Only then are the rows read, the other host's guest
    is proved off (``prove_off``), and the command is sent (``send``).  The permission is void after half of the
    worker's ZooKeeper session time.  So what was read is never older than that when the guest starts.  A void
    permission is asked for again, up to `ROUNDS` times.

    Raises StepError (`PERMISSION_VOID`) when that did not help, and what `may_start` and ``prove_off`` raise.
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
    """Raise StepError (``start-unknown``) when the host has started the guest since step ``defined_by`` defined it.

    The host counts the starts of a guest.  That count is compared with the one in the result of step ``defined_by``.
    The worker's own journal is no proof: the worker may have lost its journal after the start.  A journal that was put
    back may lack the earlier count: `_starts_before_move` then takes its place.  A guest that runs was started,
    whatever was counted.  Raises nothing where the host has no guest defined.
    """
    told = sa.select(MoveStep.result).where(
        MoveStep.flow_uuid == ctx.run.flow_uuid,
        MoveStep.step == defined_by,
        MoveStep.direction == "execute",
        MoveStep.attempt == ctx.move.attempt,
        MoveStep.result.is_not(None),
    )
    with ctx.run.journal.read() as session:
        result = session.scalar(told.order_by(MoveStep.seq.desc()).limit(1)) or {}
    guest = describe(ctx, host, part="starts")
    if not guest.defined:
        return
    counted = result["starts"] if "starts" in result else _starts_before_move(ctx, host)
    if guest.running or counted not in (None, guest.starts):
        raise StepError(
            f"the guest of server {ctx.move.server_name} was started on {host} since it was defined there "
            f"({guest.starts} starts, {'an unknown number' if counted is None else counted} before), so its start is "
            "not undone",
            code="start-unknown",
            host=host,
        )


def _starts_before_move(ctx: Context, host: str) -> int | None:
    """Return how often the guest had been started on the host before the move; a host that it came to knows none.

    None for the revert of a move whose ends are one host: its forward flow has started the guest there too.
    """
    if ctx.same_host and kinds.of(ctx.run.kind).carries is Carries.BACK:
        return None
    return before(ctx.move).guest.starts if host == ctx.move.source_host else 0


def is_given_up(ctx: Context, host: str) -> bool:
    """Tell whether the host's worker is away and the host is declared down."""
    return host not in ctx.run.workers() and _is_declared_down(ctx, host)


def _is_declared_down(ctx: Context, host: str) -> bool:
    """Tell whether a person said that the host is off (``host down``, ``cell down``, or Nova's forced_down)."""
    cell = ctx.cell_of(host)
    if ctx.run.cells.is_down(cell):
        return True
    if cell != ctx.cell:
        # The other cell may have no copy of the server's rows any more, or none yet.
        return ctx.run.cells.is_declared_down(cell, host)
    with cell_rows(ctx) as rows:
        return bool(rows.session.scalar(_FORCED_DOWN, {"host": host}))


def _was_switched(ctx: Context) -> bool:
    """Tell whether the mapping may have been switched by now; before that only this move has used the other copy."""
    switch = (ctx.run.flow_uuid, ctx.run.shown.switch)
    return ctx.run.is_behind() or any((run.flow_uuid, run.step) == switch for run in ctx.run.step_runs())


def _require_hidden(ctx: Context) -> None:
    """Raise StepError (``not-this-moves``) unless the other copy of the rows is hidden or its cell is declared down.

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
    """Raise StepError (``evacuated``) when Nova has evacuated the server, by what the transaction of ``rows`` reads.

    Where `cell_rows` has read the move's migration, it has looked for an evacuation already.
    """
    row, name = rows.instance, ctx.move.server_name
    if rows.found_migration is None and evacuation.has_come(ctx, rows.session, row.task_state):
        raise Evacuated(evacuation.sentence(name, row.host, row.task_state, so))
