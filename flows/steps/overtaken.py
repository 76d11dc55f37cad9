"""What a journal that was put back does not know: how far its move had really come.

A flow whose journal was adopted as it is first goes forward: what the server's rows show as done is not done again, and
nothing is undone from the old place.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.run import Run
from droveway.flows.steps import starting
from droveway.flows.steps.command import ADOPTED, describe
from droveway.flows.steps.rows import is_deleted
from droveway.persistence import servers
from droveway.persistence.journal import MoveStep
from droveway.persistence.moves import FORWARD_KINDS
from droveway.persistence.vm_states import MigrationStatus

if TYPE_CHECKING:
    from droveway.flows.step import Context
    from droveway.persistence.cell import Instance, Migration

_SWITCH: Final = "switch_records"
_SWITCHED: Final = frozenset({_SWITCH, "start_guest", "save_request_spec", "finish_records"})
"""The steps that the rows do not show as done when they name the destination."""

_STARTED: Final = frozenset({"save_request_spec"})
"""The same once the migration is finished."""

_ADOPTED: Final[weakref.WeakKeyDictionary[Run, bool]] = weakref.WeakKeyDictionary()
"""Run → whether its move's journal was adopted, which happens only while nobody has claimed it."""


def went_on(run: Run, step: str) -> bool:
    """Whether the server's rows show that the forward flow did this step before its journal was put back.

    They name the destination from `switch_records` on, so that whatever comes before was done by then.
    """
    move, attempt = run.row, run.attempt(run.row)
    if attempt is None or move.storage is None or not _is_adopted(run) or attempt.host == move.source_host:
        return False
    row, migration = _rows(run)
    if row is None or migration is None or row.host != attempt.host:
        return False
    status = (row.task_state, migration.status)
    return status in starting.FORWARD and step not in (
        _STARTED if migration.status == MigrationStatus.FINISHED else _SWITCHED
    )


def require_way(ctx: Context) -> None:
    """Raise StepError (``overtaken``) unless the world is where an adopted journal takes its forward flow to be.

    Before the rows name the destination, the source says that its guest is off.  Before anything is undone, the rows
    name the source, and the destination says in this claim that it never started the guest.
    """
    if not _is_adopted(ctx.run) or is_deleted(ctx):
        return
    if ctx.direction == "revert":
        _require_way_back(ctx)
    elif ctx.step == _SWITCH and not ctx.same_host and describe(ctx, ctx.move.source_host, part="off").running:
        raise _overtaken(ctx, f"its guest runs on {ctx.move.source_host}", ctx.move.source_host)


def _require_way_back(ctx: Context) -> None:
    source, attempt = ctx.move.source_host, ctx.attempt
    row, _ = _rows(ctx.run)
    known = {source, attempt.host} if attempt is not None and ctx.step in _SWITCHED else {source}
    if row is not None and row.host not in known:
        raise _overtaken(ctx, f"its rows name {row.host or 'no host'}", row.host or "")
    if attempt is None or attempt.host == source or starting.is_given_up(ctx, attempt.host):
        return
    guest = describe(ctx, attempt.host, part="overtaken")
    if guest.defined and (guest.running or guest.starts):
        raise _overtaken(ctx, f"{attempt.host} has started its guest", attempt.host)


def _overtaken(ctx: Context, why: str, host: str) -> StepError:
    return StepError(
        f"the journal was put back, and the move of {ctx.move.server_name} is not where it has it: {why}, so "
        f"{ctx.step} is not {'undone' if ctx.direction == 'revert' else 'done'}",
        code="overtaken",
        host=host,
    )


def _is_adopted(run: Run) -> bool:
    if run.kind not in FORWARD_KINDS:
        return False
    if run not in _ADOPTED:
        adopted = sa.select(MoveStep.seq).where(MoveStep.move_id == run.move_id, MoveStep.step == ADOPTED)
        with run.journal.read() as session:
            _ADOPTED[run] = session.scalar(adopted.limit(1)) is not None
    return _ADOPTED[run]


def _rows(run: Run) -> tuple[Instance | None, Migration | None]:
    with run.cells.database(run.row.source_cell).read() as session:
        if servers.is_gone(session, run.row.server):
            return None, None
        return servers.find(session, run.row.server), servers.migration(session, run.move_id)
