"""Defines the steps on the rows of an unshelve in another cell.

Neither copy names a host until `show_target` lets the target's copy name the destination.
"""

from __future__ import annotations

from typing import Any, Final

from droveway.flows import outcome
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING, Between, Leaves, Side
from droveway.flows.step import Step
from droveway.flows.steps import attached
from droveway.flows.steps.records import crossing, other_copy, unshelving
from droveway.flows.steps.rows import Rows, cell_rows, claimed_rows, fail_event, failure, reserved_on
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.journal import debts
from droveway.persistence.nova import copies, servers, usage
from droveway.persistence.nova.cells import MOVE_KEY
from droveway.persistence.nova.vm_states import PowerState, TaskState, VmState

_ARRIVED: Final = {"side": Side.DESTINATION, "zone": Side.DESTINATION}
_LEFT: Final = {"side": Side.NOWHERE, "zone": Side.NOWHERE}


class CopyRecords(crossing.CopyRecords):
    """Copies the server's rows into the target's cell, hidden; the copy names no host, as the rows themselves."""

    task = TaskState.UNSHELVING

    def place(self, ctx: Context) -> tuple[str | None, str | None]:  # noqa: ARG002 - no host has the server
        """Name no host."""
        return None, None


class HandOverSource(Step):
    """Compares the source's rows a last time before the copy is shown: they must say what this move left there."""

    does = "compare the rows in the server's own cell, its volumes and its ports"
    no_undo = "it only reads"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Raise Conflict where somebody has changed what the move left."""
        attached.require_on(ctx, ctx.destination.host)
        with cell_rows(ctx, ctx.move.source_cell) as rows:
            _require_offloaded(rows)
        return {}


class ShowTarget(Step):
    """Completes the target's copy and makes it visible, in one transaction."""

    does = "let the copy name the destination, and show it"
    undoes = "hide it again, once what was written there was brought back"
    leaves = NOTHING
    cell_debt = debts.HIDE
    between = Between(target=Leaves({**_ARRIVED, "hidden": False}, {**_LEFT, "hidden": True}), takes=("attachments",))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write host, node, compute_id, launched_on and zone, and what users wrote since; the server is still off."""
        reserved = reserved_on(ctx, ctx.destination.host)
        with ctx.run.cells.database(ctx.move.source_cell).read() as session:
            source = copies.read(session, ctx.move.server)
        with claimed_rows(ctx, ctx.destination.cell) as rows:
            carried = other_copy.complete(ctx, rows, source, cell=ctx.move.source_cell)
            unshelving.name_destination(ctx, rows)
            rows.change(hidden=(OneOf((True, *crossing.SHOWN)), False))
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
        return carried

    def undo(self, ctx: Context) -> None:
        """Hide the copy, which then names no host; carry what users wrote in it to the other copy first."""
        chosen, fault = ctx.destination, failure(ctx)
        reserved = reserved_on(ctx, chosen.host)
        other_copy.carry(ctx, chosen.cell, ctx.move.source_cell)
        with claimed_rows(ctx, chosen.cell) as rows:
            other_copy.pass_deletion_on(ctx, rows, ctx.move.source_cell)
            unshelving.name_no_host(ctx, rows)
            # A state that was reset in this copy is dropped with it: the other copy is as this move left it.
            reset = (None,) if rows.instance.vm_state in outcome.RESET else ()
            rows.change(
                task_state=(OneOf((TaskState.UNSHELVING, TaskState.DELETING, *reset)), TaskState.UNSHELVING),
                hidden=(OneOf((True, *crossing.SHOWN)), True),
            )
            usage.recompute(rows.session, chosen.host, reserved=reserved)
            fail_event(rows, unshelving.UNSHELVE_EVENT, fault)


class SwitchMapping(crossing.SwitchMapping):
    """Maps the server to the other cell, in which it lives from then on."""

    leaves = Leaves(_ARRIVED, _LEFT)


class HideSource(Step):
    """Hides the copy in the source's cell, which names no host, and marks it with this move."""

    does = "hide the rows in the server's own cell"
    undoes = "show them again"
    leaves = NOTHING
    between = Between(source=Leaves({"hidden": True}, {"hidden": False}))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Hide the copy, and write the move's id into its system metadata, as an unshelve has no migration."""
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            _require_offloaded(rows)
            rows.change(hidden=(OneOf((True, *crossing.SHOWN)), True))
            servers.set_system_metadata(rows.session, ctx.move.server, MOVE_KEY, ctx.move.id)
            other_copy.forget_consoles(rows)
        return {}

    def undo(self, ctx: Context) -> None:
        """Show the copy again, and remove the move's id from it."""
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            rows.change(host=(None, None), hidden=(OneOf((True, *crossing.SHOWN)), False))
            servers.set_system_metadata(rows.session, ctx.move.server, MOVE_KEY, None)


def _require_offloaded(rows: Rows) -> None:
    """Raise Conflict unless the rows are as this move left them: on no host, off, with task_state `unshelving`."""
    rows.change(
        host=(None, None),
        vm_state=(VmState.SHELVED_OFFLOADED, VmState.SHELVED_OFFLOADED),
        task_state=(TaskState.UNSHELVING, TaskState.UNSHELVING),
        power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
    )
