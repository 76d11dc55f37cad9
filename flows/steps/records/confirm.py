"""Defines the steps of a confirm on the server's rows."""

from __future__ import annotations

from typing import Any

from droveway.flows import outcome
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import CLEARED, Leaves, Power, Vm
from droveway.flows.step import Step
from droveway.flows.steps.rows import (
    begin_action,
    cell_rows,
    clear_traces,
    fail_action,
    failure,
    reserved_on,
    task,
)
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.nova import actions, usage
from droveway.persistence.nova.vm_states import MigrationStatus, PowerState, VmState

CONFIRM_EVENT = "compute_confirm_resize"


class MarkConfirming(Step):
    """Shows in Nova's rows that the confirm is under way."""

    does = "mark the migration as being confirmed"
    undoes = "mark it as finished again"
    leaves = Leaves({"status": MigrationStatus.CONFIRMING}, {"status": MigrationStatus.FINISHED})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Set the migration to `confirming` and begin the action confirmResize.

        Raises Conflict, which keeps both copies, where the server no longer waits for confirm or revert.
        """
        with cell_rows(ctx) as rows:
            if not ctx.move.delete_requested:
                waits = (VmState.RESIZED, VmState.RESIZED)
                rows.change(vm_state=waits, task_state=task(rows, None, None))
            rows.change_status(MigrationStatus.FINISHED, MigrationStatus.CONFIRMING)
            begin_action(rows, before(ctx.move), "confirmResize")
            actions.open_event(rows.session, rows.action, CONFIRM_EVENT, ctx.move.source_host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Set the migration to `finished` again."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if fail_action(rows, fault):
                rows.change_status(MigrationStatus.CONFIRMING, MigrationStatus.FINISHED)


class SettleRecords(Step):
    """Ends the move: the server is an ordinary one on its new host."""

    does = "let the server be an ordinary one on its new host"
    no_undo = "past the point of no return"
    needs = ("destination_guest",)
    leaves = Leaves(
        {
            "status": MigrationStatus.CONFIRMED,
            "vm_state": Vm.FOUND,
            "power_state": Power.FOUND,
            **CLEARED,
        }
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Set the migration to `confirmed`, and remove the move's traces from the rows, as Nova's confirm does.

        The vm_state becomes active or stopped, by what the host said of the guest.  For a host that was declared down,
        or that did not show its copy after a confirm by Nova, the power_state in the row decides.
        """
        guest = ctx.inputs["destination_guest"]
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            rows.change_status(MigrationStatus.CONFIRMING, MigrationStatus.CONFIRMED)
            clear_traces(rows, ctx)
            if rows.instance.vm_state == VmState.RESIZED:
                seen = rows.instance.power_state == PowerState.RUNNING
                told = "declared_down" not in guest and guest.get("proved", True)
                running = bool(guest["running"]) if told else seen
                rows.change(
                    vm_state=(VmState.RESIZED, VmState.ACTIVE if running else VmState.STOPPED),
                    power_state=(
                        OneOf((rows.instance.power_state,)),
                        PowerState.RUNNING if running else PowerState.SHUTDOWN,
                    ),
                )
            usage.recompute(rows.session, ctx.move.source_host, ctx.destination.host, reserved=reserved)
            actions.close_event(rows.session, rows.action, CONFIRM_EVENT)
        return {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Finish the rows where Nova died between the two writes of its confirm: the server would wait for ever."""
        with cell_rows(ctx) as rows:
            row = rows.instance
            waits = row.vm_state == VmState.RESIZED and row.task_state is None and row.host == ctx.destination.host
        return outcome.noted(**(self.perform(ctx) if waits else {}))
