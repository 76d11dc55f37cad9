"""Defines the steps of a shelve on the rows: they write what Nova writes, so that Nova can unshelve the server."""

from __future__ import annotations

from typing import Any, Final

from droveway.flows import outcome
from droveway.flows.before import Before, before
from droveway.flows.run import Context
from droveway.flows.stands import Leaves, Power, Side, Vm
from droveway.flows.step import Step
from droveway.flows.steps import images
from droveway.flows.steps.records import leaving, other_copy
from droveway.flows.steps.records.forward import require_ports, require_recorded
from droveway.flows.steps.rows import begin_action, cell_rows, fail_action, failure, reserved_on, task
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.nova import actions, servers, usage
from droveway.persistence.nova.vm_states import PowerState, TaskState, VmState
from droveway.persistence.times import utcnow

AT: Final = "shelved_at"
HOST: Final = "shelved_host"
"""The keys of Nova's system metadata for when and where a server was shelved.

A server whose root disk is a volume has none of them.
"""


def event(record: Before) -> str:
    """Name the event of Nova's action.

    Nova shelves and offloads in two actions, but a server whose root disk is a volume is offloaded at once.
    """
    return "compute_shelve_offload_instance" if record.boot_from_volume else "compute_shelve_instance"


class MarkShelving(Step):
    """Says in Nova's rows that the server is being shelved and is off, before it is."""

    does = "mark the server as being shelved, and as about to be shut down"
    undoes = "clear the mark; the action ends with Error"
    leaves = Leaves(
        {"task_state": TaskState.SHELVING, "power_state": Power.OFF},
        {"task_state": None, "power_state": Power.BEFORE},
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Change task_state from NULL to `shelving`, and set power_state 4.

        A nova-compute that restarts does not change a server in task_state `shelving`.
        """
        record, here = before(ctx.move), ctx.move.source_host
        with cell_rows(ctx) as rows:
            if rows.instance.task_state is None:
                require_recorded(rows, record)
            rows.change(
                host=(here, here),
                vm_state=(record.vm_state, record.vm_state),
                task_state=(None, TaskState.SHELVING),
                power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
            )
            if record.image_ref:
                servers.set_system_metadata(rows.session, ctx.move.server, "image_base_image_ref", record.image_ref)
            begin_action(rows, record, "shelve")
            actions.open_event(rows.session, rows.action, event(record), here)
        require_ports(ctx, record)
        return {}

    def undo(self, ctx: Context) -> None:
        """Change task_state back to NULL, and power_state to what it was."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if fail_action(rows, fault):
                rows.change(
                    task_state=task(rows, TaskState.SHELVING, None),
                    power_state=(OneOf((rows.instance.power_state,)), before(ctx.move).power_state),
                )

    def undo_evacuated(self, ctx: Context) -> None:
        """End the move's own action with Error; the other rows are Nova's."""
        run = ctx.run
        leaving.close_rows(run.cells, ctx.cell, run.cloud.placement, ctx.move, run.flow_uuid, run.epoch)


class RecordShelved(Step):
    """Lets the rows name the image, before the disks are deleted."""

    does = "let the server's rows name the image"
    undoes = "take the name back"
    leaves = Leaves(
        {"vm_state": Vm.SHELVED, "task_state": TaskState.SHELVING_OFFLOADING},
        {"vm_state": Vm.BEFORE, "task_state": TaskState.SHELVING},
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write vm_state `shelved`, task_state `shelving_offloading`, and the time, host and image of the shelve.

        For a server whose root disk is a volume Nova writes none of that; its rows are only compared.
        """
        record, move = before(ctx.move), ctx.move
        here = move.source_host
        with cell_rows(ctx) as rows:
            if record.boot_from_volume:
                rows.change(
                    host=(here, here),
                    vm_state=(record.vm_state, record.vm_state),
                    task_state=(TaskState.SHELVING, TaskState.SHELVING),
                )
                return {}
            if rows.instance.vm_state != VmState.SHELVED:
                servers.set_system_metadata(rows.session, move.server, AT, utcnow().isoformat())
            rows.change(
                host=(here, here),
                vm_state=(record.vm_state, VmState.SHELVED),
                task_state=(TaskState.SHELVING, TaskState.SHELVING_OFFLOADING),
            )
            servers.set_system_metadata(rows.session, move.server, servers.SHELVED_IMAGE, images.image_of(move.id))
            servers.set_system_metadata(rows.session, move.server, HOST, here)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write all back as `mark_shelving` left it."""
        record = before(ctx.move)
        if record.boot_from_volume:
            return
        with cell_rows(ctx) as rows:
            # A state that somebody has reset since stays.
            if rows.instance.vm_state == VmState.SHELVED:
                rows.change(
                    vm_state=(VmState.SHELVED, record.vm_state),
                    task_state=task(rows, TaskState.SHELVING_OFFLOADING, TaskState.SHELVING),
                )
            for key in (AT, servers.SHELVED_IMAGE, HOST):
                servers.set_system_metadata(rows.session, ctx.move.server, key, None)


class SettleRecords(Step):
    """Lets the rows say that the server is on no host."""

    does = "let the server's rows name no host"
    no_undo = "past the point of no return"
    leaves = Leaves(
        {
            "task_state": None,
            "vm_state": Vm.OFFLOADED,
            "power_state": Power.OFF,
            "side": Side.NOWHERE,
            "zone": Side.NOWHERE,
        }
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write `shelved_offloaded`, and NULL for host, node, compute_id, launched_on and zone; delete console tokens.

        Where a person has reset the state since the disks were deleted, the first try raises Conflict with both states,
        and the move parks.  A retry writes `shelved_offloaded` all the same, since the server is on no host.
        """
        record, here = before(ctx.move), ctx.move.source_host
        reserved = reserved_on(ctx)
        seen = outcome.was_tried(ctx)
        with cell_rows(ctx) as rows:
            if rows.instance.vm_state != VmState.SHELVED_OFFLOADED:
                was = record.vm_state if record.boot_from_volume else VmState.SHELVED
                tasks = (TaskState.SHELVING, TaskState.SHELVING_OFFLOADING)
                rows.change(
                    vm_state=(OneOf((was, *outcome.RESET) if seen else (was,)), VmState.SHELVED_OFFLOADED),
                    task_state=task(rows, OneOf((*tasks, None) if seen else tasks), None),
                    power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
                    host=(here, None),
                    node=(record.node, None),
                    compute_id=(record.compute_id, None),
                    launched_on=(OneOf((rows.instance.launched_on,)), None),
                    availability_zone=(OneOf((rows.instance.availability_zone,)), None),
                )
                other_copy.forget_consoles(rows)
            usage.recompute(rows.session, here, reserved=reserved)
            actions.close_event(rows.session, rows.action, event(record))
        return {}
