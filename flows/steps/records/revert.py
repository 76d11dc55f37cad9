"""Defines the steps of a revert on the server's rows."""

from __future__ import annotations

from typing import Any

from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import CLEARED, NOTHING, Flavor, Leaves, Power, Side, Vm
from droveway.flows.step import Step
from droveway.flows.steps.rows import (
    Place,
    api_rows,
    availability_zone,
    begin_action,
    cell_rows,
    changed_flavors,
    clear_traces,
    compute_node,
    fail_action,
    fail_event,
    failure,
    power_state,
    request_spec_after,
    reserved_on,
    source_place,
    switch,
    task,
)
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.nova import actions, servers, usage
from droveway.persistence.nova.vm_states import MigrationStatus, PowerState, TaskState, VmState
from droveway.persistence.times import utcnow

ACTION = "revertResize"
REVERT_EVENTS = ("compute_revert_resize", "compute_finish_revert_resize")


class MarkReverting(Step):
    """Shows in Nova's rows that the revert is under way."""

    does = "mark the server as being reverted"
    undoes = "let it wait for confirm or revert again"
    leaves = Leaves(
        {
            "task_state": TaskState.RESIZE_REVERTING,
            "status": MigrationStatus.REVERTING,
            "power_state": Power.OFF,
            "zone": Side.SOURCE,
        },
        {
            "task_state": None,
            "status": MigrationStatus.FINISHED,
            "power_state": Power.AGAIN,
            "zone": Side.DESTINATION,
        },
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write `resize_reverting`, status `reverting` and the source's zone, and begin the action revertResize.

        power_state 4 keeps a nova-compute that resumes guests on boot from starting the guest that is stopped next.
        """
        record = before(ctx.move)
        with cell_rows(ctx) as rows:
            if not ctx.move.delete_requested:
                rows.change(vm_state=(VmState.RESIZED, VmState.RESIZED))
            rows.change(
                task_state=task(rows, None, TaskState.RESIZE_REVERTING),
                power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
                availability_zone=(OneOf((rows.instance.availability_zone,)), record.availability_zone),
            )
            rows.change_status(MigrationStatus.FINISHED, MigrationStatus.REVERTING)
            begin_action(rows, record, ACTION)
            actions.open_event(rows.session, rows.action, REVERT_EVENTS[0], ctx.destination.host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write task_state NULL, status `finished`, the destination's zone, and `finish_records`' power_state."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if not fail_action(rows, fault):
                return
            rows.change(
                task_state=task(rows, TaskState.RESIZE_REVERTING, None),
                power_state=(OneOf((rows.instance.power_state,)), power_state(before(ctx.move))),
                availability_zone=(
                    OneOf((rows.instance.availability_zone,)),
                    availability_zone(ctx, ctx.destination.host),
                ),
            )
            rows.change_status(MigrationStatus.REVERTING, MigrationStatus.FINISHED)


class SwitchRecords(Step):
    """Lets the server's rows name the source again."""

    does = "let the server's rows name the source again"
    undoes = "let them name the destination"
    leaves = Leaves(
        {"side": Side.SOURCE, "cur": Flavor.OLD},
        {"side": Side.DESTINATION, "cur": Flavor.NEW},
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the source's host and node, and the old flavor."""
        record = before(ctx.move)
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            switch(
                rows,
                record,
                self._destination(ctx, compute_node(rows.session, ctx.destination.host).id),
                source_place(ctx, record),
                record.new_flavor,
                record.old_flavor,
            )
            changed_flavors(rows, cur=record.old_flavor)
            usage.recompute(rows.session, ctx.move.source_host, ctx.destination.host, reserved=reserved)
            first, second = ([event] for event in REVERT_EVENTS)
            actions.turn(rows.session, rows.action, over=first, begun=second, host=ctx.move.source_host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write the destination's host, node and flavor; the undo of `mark_reverting` writes its zone."""
        record = before(ctx.move)
        fault = failure(ctx)
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            switch(
                rows,
                record,
                source_place(ctx, record),
                self._destination(ctx, compute_node(rows.session, ctx.destination.host).id),
                record.old_flavor,
                record.new_flavor,
            )
            changed_flavors(rows, cur=record.new_flavor)
            usage.recompute(rows.session, ctx.move.source_host, ctx.destination.host, reserved=reserved)
            fail_event(rows, REVERT_EVENTS[1], fault)

    def _destination(self, ctx: Context, compute_id: int) -> Place:
        return Place(ctx.destination.host, ctx.destination.node, compute_id, before(ctx.move).availability_zone)


class RestoreRequestSpec(Step):
    """Restores the request spec, from which Nova schedules the server next."""

    does = "restore the request spec as it was before the move"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write request_specs.spec as it was before the move, with its device requests."""
        record = before(ctx.move)
        with api_rows(ctx) as session:
            row = servers.request_spec(session, ctx.move.server)
            compare_and_swap(session, row, spec=(request_spec_after(ctx), record.request_spec))
        return {}


class SettleRecords(Step):
    """Ends the move: the server is as it was before."""

    does = "let the server be as it was before the move"
    no_undo = "past the point of no return"
    leaves = Leaves(
        {
            "task_state": None,
            "status": MigrationStatus.REVERTED,
            "vm_state": Vm.BEFORE,
            "power_state": Power.AGAIN,
            **CLEARED,
        }
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Set the migration to `reverted`, write the old vm_state, and remove the move's traces."""
        record = before(ctx.move)
        reserved = reserved_on(ctx, ctx.destination.host, ctx.return_host)
        with cell_rows(ctx) as rows:
            rows.change_status(MigrationStatus.REVERTING, MigrationStatus.REVERTED)
            clear_traces(rows, ctx)
            if rows.instance.vm_state == VmState.RESIZED:
                rows.change(
                    vm_state=(VmState.RESIZED, record.vm_state),
                    task_state=task(rows, TaskState.RESIZE_REVERTING, None),
                    power_state=(OneOf((rows.instance.power_state,)), power_state(record)),
                    launched_at=(OneOf((rows.instance.launched_at,)), utcnow()),
                )
            hosts = sorted({ctx.move.source_host, ctx.return_host, ctx.destination.host})
            usage.recompute(rows.session, *hosts, reserved=reserved)
            for event in REVERT_EVENTS:
                actions.close_event(rows.session, rows.action, event)
        return {}
