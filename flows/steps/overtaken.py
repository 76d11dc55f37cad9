"""Works out how far a move had really come whose journal was put back and adopted.

Its flow first goes forward.  It does not repeat the steps that the server's rows prove done.  It undoes nothing before
it has come to where the move really was.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import before, shows_disks
from droveway.flows.run import Run
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.hosts.command import describe
from droveway.flows.steps.rows import is_deleted, lives_on
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Carries
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova import servers
from droveway.persistence.nova.vm_states import ENDING_MIGRATIONS, MigrationStatus, TaskState

if TYPE_CHECKING:
    from droveway.flows.graph import Graph
    from droveway.flows.run import Context
    from droveway.persistence.nova.cell import Instance, Migration

_UNDONE_BACK: Final = frozenset({MigrationStatus.FINISHED, MigrationStatus.CONFIRMING, MigrationStatus.CONFIRMED})
"""What the migration may say once a revert was undone, or the move was confirmed after that."""

_REVERTING: Final = (TaskState.RESIZE_REVERTING, MigrationStatus.REVERTING)

_ADOPTED: Final[weakref.WeakKeyDictionary[Run, bool]] = weakref.WeakKeyDictionary()
"""Run → whether the journal was adopted in the middle of its move, which happens only while nobody has claimed it."""

_BEHIND: Final[weakref.WeakKeyDictionary[Run, int | None]] = weakref.WeakKeyDictionary()
"""Run → the answer of `_adopted_on`."""

_LAST_ADOPTED: Final = (
    sa.select(MoveStep.seq, MoveStep.flow_uuid, MoveStep.attempt)
    .where(MoveStep.move_id == sa.bindparam("move"), MoveStep.step == ADOPTED)
    .order_by(MoveStep.seq.desc())
    .limit(1)
)
_OTHER_SINCE: Final = (
    sa.select(MoveStep.seq)
    .where(
        MoveStep.move_id == sa.bindparam("move"),
        MoveStep.seq > sa.bindparam("adopted"),
        MoveStep.flow_uuid != sa.bindparam("flow"),
    )
    .limit(1)
)


def went_on(run: Run, step: str) -> bool:
    """Tell whether the server's rows prove that the flow did this step before its journal was put back.

    Rows that name the other host prove every step before the switch done, and in a revert the switch too.  Where the
    move is being confirmed or reverted, or was, every step of its forward flow is done.
    """
    move, attempt = run.row, run.attempt(run.row)
    if attempt is None or move.storage is None or not was_adopted(run):
        return False
    row, migration = _rows(run)
    carries = kinds.of(run.kind).carries
    if (
        carries is Carries.TO_DESTINATION
        and migration is not None
        and migration.status in ENDING_MIGRATIONS
        and row is not None
    ):
        return True
    if attempt.host == move.source_host:
        return False
    if carries is Carries.BACK:
        if row is None or migration is None or row.host != _return_host(run):
            return False
        shown = run.shown
        return step not in shown.switched - {shown.switch} and _stands(row, migration, {_REVERTING})
    if carries is Carries.NOWHERE:
        return False
    if row is None or migration is None or row.host != attempt.host:
        return False
    shown = run.shown
    return _stands(row, migration, starting.FORWARD) and step not in (
        shown.started if migration.status == MigrationStatus.FINISHED else shown.switched
    )


def _return_host(run: Run) -> str:
    returning = run.returning() if kinds.of(run.kind).elsewhere else None
    return run.row.source_host if returning is None else returning.host


def _stands(row: Instance, migration: Migration, states: Collection[tuple[str | None, str | None]]) -> bool:
    """Tell whether the rows have one of these pairs of task_state and migration status.

    A delete replaces the task_state, so `deleting` stands for any of them.
    """
    return any(migration.status == status and row.task_state in (task, TaskState.DELETING) for task, status in states)


def went_back(run: Run, step: str) -> bool:
    """Tell whether the server's rows prove that this step was undone before its journal was put back.

    The undos of `mark_migrating`, `record_migration` and `mark_reverting` write the migration's status.  Every step
    after the one whose undo wrote it was undone by then.
    """
    if not was_adopted(run):
        return False
    row, migration = _rows(run)
    if row is None or migration is None:
        return False
    carries = kinds.of(run.kind).carries
    if carries is Carries.BACK:
        return _waits(run, row, migration)
    if carries is Carries.NOWHERE or row.host != run.row.source_host:
        return False
    if migration.status == MigrationStatus.ERROR:
        return step not in run.shown.first
    return migration.status == MigrationStatus.PRE_MIGRATING and step not in run.shown.preparing


def require_way(ctx: Context) -> None:
    """Raise StepError (``overtaken``) unless the rows allow the flow to go the way that an adopted journal says.

    A move that was undone is not begun again.  Before the rows are to name the destination, the source has to say that
    its guest is off.  Before anything is undone, the rows have to name the source, and the destination has to say now
    that it never started the guest.
    """
    if not was_adopted(ctx.run) or is_deleted(ctx):
        return
    carries = kinds.of(ctx.run.kind).carries
    if carries is Carries.BACK:
        row, migration = _rows(ctx.run)
        undone = row is not None and migration is not None and _waits(ctx.run, row, migration)
        if undone and ctx.direction == "execute" and ctx.step not in ctx.run.shown.first:
            raise _overtaken(ctx, "it was undone", "")
        return
    if carries is Carries.NOWHERE:
        return
    if ctx.direction == "revert":
        _require_way_back(ctx)
    elif _is_undone(ctx):
        raise _overtaken(ctx, "it was undone", "")
    elif _switches_now(ctx) and describe(ctx, ctx.move.source_host, part="off").running:
        raise _overtaken(ctx, f"its guest runs on {ctx.move.source_host}", ctx.move.source_host)


def _waits(run: Run, row: Instance, migration: Migration) -> bool:
    """Tell whether the server waits for confirm or revert again, or was confirmed since."""
    attempt = run.attempt(run.row)
    stands = row.task_state is None and migration.status in _UNDONE_BACK
    return stands and attempt is not None and row.host == attempt.host


def _is_undone(ctx: Context) -> bool:
    """Tell whether the move was undone: its migration ended with `error`.

    One of the first steps counts as undone only once the server's task_state is cleared too.
    """
    row, migration = _rows(ctx.run)
    over = migration is not None and migration.status == MigrationStatus.ERROR
    first = ctx.step in ctx.run.shown.first
    return over and not (first and row is not None and row.task_state == TaskState.RESIZE_MIGRATED)


def _switches_now(ctx: Context) -> bool:
    """Tell whether the step is about to let the rows name the destination; False where both hosts are one."""
    if ctx.step != ctx.run.shown.switch or ctx.same_host:
        return False
    row, _ = _rows(ctx.run)
    return row is None or row.host != ctx.destination.host


def are_in_use_again(ctx: Context) -> bool:
    """Tell whether the server uses the source's disks again.

    It does if its rows name the source, and if the source has all disks that the move began with under the server's own
    directory name, and no longer set aside.  Then the undo had gone further than a journal that was put back knows.
    """
    source = ctx.move.source_host
    return lives_on(ctx, source) and shows_disks(describe(ctx, source, part="in-use"), before(ctx.move))


def _require_way_back(ctx: Context) -> None:
    source, attempt = ctx.move.source_host, ctx.attempt
    row, _ = _rows(ctx.run)
    known = {source, attempt.host} if attempt is not None and ctx.step in ctx.run.shown.switched else {source}
    if row is not None and row.host not in known:
        raise _overtaken(ctx, f"its rows name {row.host or 'no host'}", row.host or "")
    if attempt is None or attempt.host == source or starting.is_given_up(ctx, attempt.host):
        return
    guest = describe(ctx, attempt.host, part="overtaken")
    if guest.defined and (guest.running or guest.starts):
        raise _overtaken(ctx, f"{attempt.host} has started its guest", attempt.host)


def _overtaken(ctx: Context, why: str, host: str) -> StepError:
    return StepError(
        f"the journal was put back, and the move of {ctx.move.server_name} is not where the journal says: {why}, so "
        f"{ctx.step} is not {'undone' if ctx.direction == 'revert' else 'done'}",
        code="overtaken",
        host=host,
    )


def was_adopted(run: Run) -> bool:
    """Tell whether the journal was put back and adopted while the move was under way."""
    if run not in _ADOPTED:
        adopted = sa.select(MoveStep.seq).where(MoveStep.move_id == run.move_id, MoveStep.step == ADOPTED)
        with run.journal.read() as session:
            _ADOPTED[run] = session.scalar(adopted.limit(1)) is not None
    return _ADOPTED[run]


def is_behind(run: Run) -> bool:
    """Tell whether the flow may have gone further than its journal knows.

    It may have if the journal was adopted in the middle of this flow or right before it.  Flows that began later are
    all in the journal.
    """
    return _adopted_on(run) is not None


def _adopted_on(run: Run) -> int | None:
    """Return the alternate that the move was on when its journal was adopted, in this flow or right before it.

    Returns None if the journal was not adopted, or if another flow of the move has run after the adoption.
    """
    if not was_adopted(run):
        return None
    if run not in _BEHIND:
        with run.journal.read() as session:
            last = session.execute(_LAST_ADOPTED, {"move": run.move_id}).one()
            since = {"move": run.move_id, "flow": run.flow_uuid, "adopted": last.seq}
            ours = last.flow_uuid == run.flow_uuid or session.scalar(_OTHER_SINCE, since) is None
        _BEHIND[run] = last.attempt if ours else None
    return _BEHIND[run]


def may_not_turn_back(run: Run, step: str) -> bool:
    """Tell whether the flow has to go on from this step or park, since its undos would not know what to bring back.

    The answer is yes for a step that the rows prove done.  If the flow may have gone further than the journal knows, it
    is also yes for each step up to the last one that finds what undos need.

    The migration's row tells whether the flow may have gone further.  If there is no such row, the flow did not come
    far enough to write one.  If the row says `error`, the forward flow was undone already.  If the row does not
    say `reverting`, a revert has not begun, was undone already or is over.  In these cases the answer is no.
    """
    if went_on(run, step):
        return True
    if step not in run.shown.finding or not is_behind(run):
        return False
    row, migration = _rows(run)
    if row is None or migration is None:
        return False
    if kinds.of(run.kind).carries is Carries.BACK:
        return _stands(row, migration, {_REVERTING})
    return run.attempt(run.row) is not None and migration.status != MigrationStatus.ERROR


def may_be_done(run: Run, failed: str, graph: Graph) -> list[str]:
    """Name the steps after the failed one that the flow may have done before its journal was put back.

    They end before the point of no return, since an undo is refused where the guest may have been started.  Empty for
    an alternate that was tried after the adoption: the journal has all of its steps.
    """
    if kinds.of(run.kind).carries is Carries.NOWHERE or failed in graph.shown.finding:
        return []
    if _adopted_on(run) != run.row.attempt:
        return []
    names = graph.names()
    return names[names.index(failed) + 1 : names.index(graph.no_return.step_name())]


def may_have_started(run: Run) -> bool:
    """Tell whether the flow may have come to its point of no return before its journal was put back."""
    return _adopted_on(run) == run.row.attempt


def require_record(ctx: Context, *, lost: str) -> None:
    """Park the move (``record-lost``) when it may have gone further and what this step recorded is lost.

    ``lost`` names what is lost: neither the journal nor its mirror in ZooKeeper has it.
    """
    if not is_behind(ctx.run):
        return
    _, migration = _rows(ctx.run)
    if migration is None:
        return
    ctx.run.park(
        ctx.step,
        ctx.direction,
        StepError(
            f"the journal was put back to a time before it knew {lost}, and the mirror of the journal in ZooKeeper has "
            f"lost it too, so the move of {ctx.move.server_name} can be neither finished nor undone: put a newer copy "
            "of the journal back",
            code="record-lost",
        ),
    )


def _rows(run: Run) -> tuple[Instance | None, Migration | None]:
    with run.cells.database(run.home_cell()).read() as session:
        if servers.is_gone(session, run.row.server):
            return None, None
        return servers.find(session, run.row.server), servers.migration(session, run.move_id)
