"""Defines the steps on the rows that end a move into another cell.

Confirm removes the source's copy.  Revert shows it again and removes the target's copy.
"""

from __future__ import annotations

from typing import Any, Final

from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING, Between, Flavor, Leaves, Side, Vm
from droveway.flows.step import Step
from droveway.flows.steps import attached, volumes
from droveway.flows.steps.records import crossing, other_copy, revert
from droveway.flows.steps.records.revert import REVERT_EVENTS
from droveway.flows.steps.rows import Rows, begin_action, cell_rows, claimed_rows, failure, reserved_on, task
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.journal import debts, kinds
from droveway.persistence.nova import actions, usage
from droveway.persistence.nova.vm_states import MOVABLE, MigrationStatus, PowerState, TaskState, VmState

_REVERTED_OR_DELETED: Final = OneOf((TaskState.RESIZE_REVERTING, TaskState.DELETING))
_LEFT: Final = OneOf((None, TaskState.RESIZE_FINISH, TaskState.RESIZE_REVERTING, TaskState.DELETING))
"""The task_states of a copy whose cell was gone when its revert began."""


class MarkReverting(revert.MarkReverting):
    """Marks the target's rows as being reverted; the flow leaves this step out if the target's cell is declared down.

    If the revert is then undone, the cell owes the undo of this step: the cell may have been lost after the mark was
    written.
    """

    skipped_when_gone = True
    undo_debt_when_gone = debts.UNMARK

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the target's rows; raises where that cell is gone, so that the source's copy is not written instead."""
        ctx.run.cells.database(ctx.destination.cell)
        return super().perform(ctx)

    def undo(self, ctx: Context) -> None:
        """Write the target's rows back; raises where that cell is gone, as `perform` does."""
        ctx.run.cells.database(ctx.destination.cell)
        super().undo(ctx)


class CheckSourceRecords(Step):
    """Compares the hidden copy in the source's cell with what the forward flow left there."""

    does = "check the hidden rows in the source's cell, and bring over what users wrote there late"
    no_undo = "what users wrote stays"
    leaves = NOTHING
    skipped_when_gone = True

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Compare the rows, and carry over what users wrote there late.

        Raises Conflict where somebody has changed what the move left there.  A late delete raises nothing: the mapped
        copy takes it over.
        """
        source, target = ctx.move.source_cell, ctx.destination.cell
        confirms = kinds.of(ctx.run.kind).ends is kinds.Way.CONFIRM
        if confirms and not other_copy.has_copy(ctx, source, target):
            # The journal was put back, and does not know that this confirm has removed the copy already.
            return {}
        with cell_rows(ctx, source) as rows:
            other_copy.take_deletion_over(ctx, rows, target)
            if not (ctx.run.is_behind() and _was_shown(rows)):
                _require_hidden(ctx, rows)
        return other_copy.carry(ctx, source, target)


def _require_hidden(ctx: Context, rows: Rows) -> None:
    host = ctx.destination.host
    rows.change(
        host=(host, host),
        hidden=(True, True),
        task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_MIGRATED),
        power_state=(PowerState.SHUTDOWN, PowerState.SHUTDOWN),
    )
    rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.POST_MIGRATING)


def _was_shown(rows: Rows) -> bool:
    """Tell whether a revert that the journal no longer knows has shown the copy: only that writes this status."""
    return rows.migration.status == MigrationStatus.REVERTING


class RemoveSourceRecords(Step):
    """Confirm: removes the rows from the source's cell."""

    does = "remove the hidden rows from the source's cell"
    no_undo = "past the point of no return"
    leaves = NOTHING
    between = Between(source=Leaves(crossing.GOES))
    cell_debt = debts.REMOVE

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Remove all rows for good, in transactions of a limited size."""
        other_copy.remove(ctx, ctx.move.source_cell, ctx.destination.cell)
        return {}


class HandOverTarget(Step):
    """Compares the target's rows a last time before the source's are shown again.

    The step itself hands nothing over.  It has its name from `crossing.HandOverSource`, which compares the source's
    rows on the way there.
    """

    does = "compare the rows in the target's cell"
    no_undo = "it only reads"
    leaves = NOTHING
    skipped_when_gone = True

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Raise Conflict where somebody has changed what the revert left."""
        attached.require_on(ctx, ctx.return_host)
        with cell_rows(ctx, ctx.destination.cell) as rows:
            _require_at_target(ctx, rows)
        return {}


class ShowSource(Step):
    """Completes the source's copy and makes it visible, in one transaction."""

    does = "show the source's rows again, with what was changed since"
    undoes = "hide them"
    leaves = NOTHING
    between = Between(
        source=Leaves(
            {
                "side": Side.RETURN,
                "zone": Side.RETURN,
                "vm_state": Vm.RESIZED,
                "task_state": TaskState.RESIZE_REVERTING,
                "status": MigrationStatus.REVERTING,
                "hidden": False,
            },
            {
                "side": Side.DESTINATION,
                "zone": Side.SOURCE,
                "vm_state": Vm.BEFORE,
                "task_state": TaskState.RESIZE_MIGRATED,
                "status": MigrationStatus.POST_MIGRATING,
                "hidden": True,
            },
        ),
        takes=("attachments",),
    )
    cell_debt = debts.HIDE

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the source's host, `resized` and task_state `resize_reverting`, so that users see REVERT_RESIZE."""
        record, move = before(ctx.move), ctx.move
        reserved = reserved_on(ctx, ctx.return_host)
        target = other_copy.read(ctx, ctx.destination.cell)
        if target is None:
            volumes.name_moved(ctx)
        with claimed_rows(ctx, move.source_cell) as rows:
            carried = other_copy.complete(ctx, rows, target, cell=ctx.destination.cell)
            begin_action(rows, record, revert.ACTION)
            crossing.show_source(ctx, rows)
            rows.change(
                vm_state=(crossing.AT_REST, VmState.RESIZED),
                task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_REVERTING),
                power_state=(PowerState.SHUTDOWN, PowerState.SHUTDOWN),
            )
            rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.REVERTING)
            usage.recompute(rows.session, *sorted({move.source_host, ctx.return_host}), reserved=reserved)
            actions.close_event(rows.session, rows.action, REVERT_EVENTS[0])
            actions.open_event(rows.session, rows.action, REVERT_EVENTS[1], ctx.return_host)
        return carried

    def undo(self, ctx: Context) -> None:
        """Hide the rows as the forward flow left them, once what users wrote there was carried to the target's copy."""
        record, move = before(ctx.move), ctx.move
        fault = failure(ctx)
        other_copy.carry(ctx, move.source_cell, ctx.destination.cell)
        reserved = reserved_on(ctx, ctx.return_host)
        with claimed_rows(ctx, move.source_cell) as rows:
            other_copy.pass_deletion_on(ctx, rows, ctx.destination.cell)
            rows.change(
                vm_state=(OneOf((VmState.RESIZED, *MOVABLE)), record.vm_state),
                task_state=(_REVERTED_OR_DELETED, TaskState.RESIZE_MIGRATED),
            )
            crossing.hide_source(ctx, rows)
            rows.change_status(MigrationStatus.REVERTING, MigrationStatus.POST_MIGRATING)
            actions.fail(rows.session, rows.action, fault.message if fault else None)
            usage.recompute(rows.session, *sorted({move.source_host, ctx.return_host}), reserved=reserved)


class SwitchMapping(crossing.SwitchMapping):
    """Maps the server to the source's cell again, in which it lives from then on."""

    back = True
    does = "map the server to its own cell again"
    undoes = "map it to the other cell"
    leaves = Leaves(
        {"side": Side.SOURCE, "cur": Flavor.OLD},
        {"side": Side.DESTINATION, "cur": Flavor.NEW},
    )
    between = Between(maps=(Side.SOURCE, Side.DESTINATION))


class CarryLateWrites(crossing.CarryLateWrites):
    """Carries over what users wrote in the target's copy after this flow had read it.

    A request that read the mapping before the switch may still write there.
    """

    back = True
    does = "bring what users wrote late in the target's cell over to the source's"
    undoes = "bring what they wrote in the source's back"


class HideTarget(Step):
    """Hides the copy in the target's cell until it is removed."""

    does = "hide the rows in the target's cell"
    undoes = "show them again"
    leaves = NOTHING
    debt_when_gone = debts.HIDE
    undo_debt_when_gone = debts.SHOW
    between = Between(
        target=Leaves(
            {"side": Side.RETURN, "task_state": TaskState.RESIZE_REVERTING, "hidden": True},
            {"side": Side.DESTINATION, "task_state": TaskState.RESIZE_REVERTING, "hidden": False},
        )
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Hide the copy, and let it name the source's host.

        After a journal was put back the copy may be removed already: then nothing is done.  Where this step was a debt,
        the copy may still be as the forward flow left it.
        """
        chosen = ctx.destination
        if ctx.must_go_on:
            other_copy.carry(ctx, chosen.cell, ctx.move.source_cell)
        if ctx.run.is_behind() and not other_copy.has_copy(ctx, chosen.cell, ctx.move.source_cell):
            return {}
        reserved = reserved_on(ctx, chosen.host)
        with claimed_rows(ctx, chosen.cell) as rows:
            other_copy.pass_deletion_on(ctx, rows, ctx.move.source_cell)
            shown, hidden, off = crossing.target_place(ctx, rows), crossing.hidden_place(ctx), PowerState.SHUTDOWN
            rows.change(
                host=(shown.host, hidden.host),
                node=(shown.node, hidden.node),
                compute_id=(shown.compute_id, None),
                task_state=(_LEFT if ctx.must_go_on else _REVERTED_OR_DELETED, TaskState.RESIZE_REVERTING),
                power_state=(OneOf((rows.instance.power_state,)) if ctx.must_go_on else off, off),
                hidden=(OneOf((True, *crossing.SHOWN)), True),
            )
            other_copy.forget_consoles(rows)
            usage.recompute(rows.session, chosen.host, reserved=reserved)
        return {}

    def undo(self, ctx: Context) -> None:
        """Show the copy again, on the destination."""
        chosen = ctx.destination
        reserved = reserved_on(ctx, chosen.host)
        with claimed_rows(ctx, chosen.cell) as rows:
            shown, hidden = crossing.target_place(ctx, rows), crossing.hidden_place(ctx)
            rows.change(
                host=(hidden.host, shown.host),
                node=(hidden.node, shown.node),
                compute_id=(None, shown.compute_id),
                hidden=(OneOf((True, *crossing.SHOWN)), False),
            )
            usage.recompute(rows.session, chosen.host, reserved=reserved)


class RemoveTargetRecords(Step):
    """Revert: removes the rows from the target's cell."""

    does = "remove the hidden rows from the target's cell"
    no_undo = "past the point of no return"
    leaves = NOTHING
    between = Between(target=Leaves(crossing.GOES))
    cell_debt = debts.REMOVE

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Remove all rows for good, in transactions of a limited size."""
        other_copy.remove(ctx, ctx.destination.cell, ctx.move.source_cell)
        return {}


def _require_at_target(ctx: Context, rows: Rows) -> None:
    host = ctx.destination.host
    rows.change(
        host=(host, host),
        task_state=task(rows, TaskState.RESIZE_REVERTING, TaskState.RESIZE_REVERTING),
        power_state=(PowerState.SHUTDOWN, PowerState.SHUTDOWN),
    )
    rows.change_status(MigrationStatus.REVERTING, MigrationStatus.REVERTING)
