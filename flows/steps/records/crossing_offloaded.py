"""The record steps of an unshelve in another cell: neither copy names a host before the one there is shown."""

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
    """The hidden copy is on no host, as the one that it was made of."""

    task = TaskState.UNSHELVING

    def place(self, ctx: Context) -> tuple[str | None, str | None]:  # noqa: ARG002 - no host has the server
        """Name none."""
        return None, None


class HandOverSource(Step):
    """The last look at the source's rows before the copy is shown: they stand as this move left them."""

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
    """The copy is made whole and visible in one transaction."""

    does = "let the copy name the destination, and show it"
    undoes = "hide it again, once what was written there was brought back"
    leaves = NOTHING
    cell_debt = debts.HIDE
    between = Between(target=Leaves({**_ARRIVED, "hidden": False}, {**_LEFT, "hidden": True}), takes=("attachments",))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """host, node, compute_id, launched_on and zone, and what users wrote since; the server is still off."""
        reserved = reserved_on(ctx, ctx.destination.host)
        with ctx.run.cells.database(ctx.move.source_cell).read() as session:
            source = copies.read(session, ctx.move.server)
        with claimed_rows(ctx, ctx.destination.cell) as rows:
            carried = other_copy.complete(ctx, rows, source, of=ctx.move.source_cell)
            unshelving.name_destination(ctx, rows)
            rows.change(hidden=(OneOf((True, *crossing.SHOWN)), False))
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
        return carried

    def undo(self, ctx: Context) -> None:
        """Hidden, on no host."""
        chosen, fault = ctx.destination, failure(ctx)
        reserved = reserved_on(ctx, chosen.host)
        other_copy.carry(ctx, chosen.cell, ctx.move.source_cell)
        with claimed_rows(ctx, chosen.cell) as rows:
            other_copy.pass_deletion_on(ctx, rows, ctx.move.source_cell)
            unshelving.name_no_host(ctx, rows)
            # A state that was reset here goes with the copy: the other one stands as this move left it.
            reset = (None,) if rows.instance.vm_state in outcome.RESET else ()
            rows.change(
                task_state=(OneOf((TaskState.UNSHELVING, TaskState.DELETING, *reset)), TaskState.UNSHELVING),
                hidden=(OneOf((True, *crossing.SHOWN)), True),
            )
            usage.recompute(rows.session, chosen.host, reserved=reserved)
            fail_event(rows, unshelving.UNSHELVE_EVENT, fault)


class SwitchMapping(crossing.SwitchMapping):
    """From here on the server lives in the other cell."""

    leaves = Leaves(_ARRIVED, _LEFT)


class HideSource(Step):
    """The copy that is left stands at rest, on no host, and is in no list; it says whose it is."""

    does = "hide the rows in the server's own cell"
    undoes = "show them again"
    leaves = NOTHING
    between = Between(source=Leaves({"hidden": True}, {"hidden": False}))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Hidden, with the move's mark: no migration tells by which move it was left."""
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            _require_offloaded(rows)
            rows.change(hidden=(OneOf((True, *crossing.SHOWN)), True))
            servers.set_system_metadata(rows.session, ctx.move.server, MOVE_KEY, ctx.move.id)
            other_copy.forget_consoles(rows)
        return {}

    def undo(self, ctx: Context) -> None:
        """Visible, without the mark."""
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            rows.change(host=(None, None), hidden=(OneOf((True, *crossing.SHOWN)), False))
            servers.set_system_metadata(rows.session, ctx.move.server, MOVE_KEY, None)


def _require_offloaded(rows: Rows) -> None:
    """Raise Conflict unless the rows stand as this move left them: on no host, off, in the unshelve's task."""
    rows.change(
        host=(None, None),
        vm_state=(VmState.SHELVED_OFFLOADED, VmState.SHELVED_OFFLOADED),
        task_state=(TaskState.UNSHELVING, TaskState.UNSHELVING),
        power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
    )
