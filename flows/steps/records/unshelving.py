"""The record steps of an unshelve: they take up a server that was shelved here or by Nova."""

from __future__ import annotations

import platform
from typing import Any, Final

import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import ImageBefore, before
from droveway.flows.run import Context
from droveway.flows.stands import Leaves, Power, Side, Vm
from droveway.flows.step import Step
from droveway.flows.steps import gone_ports, images
from droveway.flows.steps.records import forward, shelving
from droveway.flows.steps.rows import (
    Rows,
    availability_zone,
    begin_action,
    cell_rows,
    compute_node,
    fail_action,
    fail_event,
    failure,
    power_state,
    reserved_on,
    task,
)
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import actions, servers, usage
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.persistence.times import utcnow
from droveway.wire.commands import DiskInfo, GuestState

IMAGE_EVENT: Final = "get_image_info"
SCHEDULE_EVENT: Final = "schedule_instances"
UNSHELVE_EVENT: Final = "compute_unshelve_instance"

_SHELVED: Final = (
    sa.select(Move.id, Move.before)
    .where(
        Move.server == sa.bindparam("server"),
        Move.kind == kinds.SHELVE.name,
        Move.state == State.DONE.value,
        Move.before.is_not(None),
    )
    .order_by(Move.created_at.desc())
)


class RecordBefore(forward.RecordBefore):
    """Keeps what the image and the rows say of the server, which is on no host that could be asked."""

    def guest(self, ctx: Context, image: ImageBefore | None) -> GuestState:
        """The guest as the shelve of this image found it; without a definition where Nova shelved it."""
        disks = []
        if image is not None:
            root = DiskInfo(name=images.ROOT, format=image.format, virtual_size=image.size, allocated=image.size)
            disks = [root]
        return GuestState(
            defined=False,
            running=False,
            starts=0,
            definition=_definition(ctx, image),
            move="",
            disks=disks,
            set_aside=False,
        )

    def image(self, ctx: Context) -> ImageBefore | None:
        """The image that the rows name; StepError (``image-gone``) without its data, or where none is named."""
        with ctx.run.cells.database(ctx.cell).read() as session:
            name = servers.system_metadata(session, ctx.move.server).get(servers.SHELVED_IMAGE)
            from_volume = any(each.boot for each in servers.attached(session, ctx.move.server) or ())
        if not name and not from_volume:
            raise StepError(
                f"server {ctx.move.server_name} has a root disk of its own, and its rows name no image that holds it",
                code="image-gone",
            )
        if not name:
            return None
        found = images.find(ctx, name)
        return ImageBefore(
            image=name,
            size=found.size or 0,
            checksum=found.checksum,
            algorithm=found.algorithm,
            format=found.disk_format,
        )


def _definition(ctx: Context, image: ImageBefore | None) -> str:
    with ctx.run.journal.read() as session:
        for move, record in session.execute(_SHELVED, {"server": ctx.move.server}):
            if image is None or image.image == images.image_of(move):
                return str(record["guest"]["definition"])
    return ""


class MarkUnshelving(Step):
    """Shows the unshelve to everybody who reads Nova's rows."""

    does = "mark the server as being unshelved"
    undoes = "clear the mark; the action ends with Error"
    leaves = Leaves({"task_state": TaskState.UNSHELVING}, {"task_state": None})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """task_state NULL becomes `unshelving`; the host stays NULL, so that no nova-compute takes the server."""
        record = before(ctx.move)
        with cell_rows(ctx) as rows:
            if rows.instance.task_state is None:
                forward.require_recorded(rows, record)
            rows.change(
                host=(None, None),
                vm_state=(VmState.SHELVED_OFFLOADED, VmState.SHELVED_OFFLOADED),
                task_state=(None, TaskState.UNSHELVING),
            )
            begin_action(rows, record, "unshelve")
            begun = [IMAGE_EVENT, SCHEDULE_EVENT] if record.image is not None else [SCHEDULE_EVENT]
            actions.turn(rows.session, rows.action, begun=begun, host=platform.node())
        forward.require_ports(ctx, record)
        return {}

    def undo(self, ctx: Context) -> None:
        """task_state back to NULL."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if fail_action(rows, fault):
                rows.change(task_state=task(rows, TaskState.UNSHELVING, None))


class SwitchRecords(Step):
    """The server lives on the destination from here, and is still off."""

    does = "let the server's rows name the destination"
    undoes = "let them name no host again"
    leaves = Leaves({"side": Side.DESTINATION, "zone": Side.DESTINATION}, {"side": Side.NOWHERE, "zone": Side.NOWHERE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """host, node, compute_id, launched_on and zone; a nova-compute that restarts leaves `unshelving` alone."""
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            name_destination(ctx, rows)
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
        return {}

    def undo(self, ctx: Context) -> None:
        """All NULL again."""
        chosen, fault = ctx.destination, failure(ctx)
        reserved = reserved_on(ctx, chosen.host)
        with cell_rows(ctx) as rows:
            name_no_host(ctx, rows)
            usage.recompute(rows.session, chosen.host, reserved=reserved)
            fail_event(rows, UNSHELVE_EVENT, fault)


def name_destination(ctx: Context, rows: Rows) -> None:
    """Let the rows name the destination, and Nova's action its event there; raises Conflict for any others."""
    chosen = ctx.destination
    node = compute_node(rows.session, chosen.host)
    rows.change(
        vm_state=(VmState.SHELVED_OFFLOADED, VmState.SHELVED_OFFLOADED),
        task_state=(TaskState.UNSHELVING, TaskState.UNSHELVING),
        host=(None, chosen.host),
        node=(None, chosen.node),
        compute_id=(None, node.id),
        launched_on=(None, chosen.host),
        availability_zone=(None, availability_zone(ctx, chosen.host)),
    )
    over = [IMAGE_EVENT, SCHEDULE_EVENT]
    actions.turn(rows.session, rows.action, over=over, begun=[UNSHELVE_EVENT], host=chosen.host)


def name_no_host(ctx: Context, rows: Rows) -> None:
    """Let the rows name no host again; raises Conflict where they name another than the destination."""
    chosen, row = ctx.destination, rows.instance
    rows.change(
        host=(chosen.host, None),
        node=(chosen.node, None),
        compute_id=(OneOf((row.compute_id,)), None),
        launched_on=(chosen.host, None),
        availability_zone=(OneOf((row.availability_zone,)), None),
    )


class FinishRecords(Step):
    """The server is active, whatever it was before it was shelved, as in Nova; stopped if its user stopped it since."""

    does = "let the server's rows say that it is active"
    no_undo = "past the point of no return"
    leaves = Leaves({"task_state": None, "vm_state": Vm.ACTIVE, "power_state": Power.AGAIN})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Active or stopped, task_state NULL, launched_at now; nothing says any more that it was shelved.

        What it claimed for ports that are gone since goes first: a user may ask for the next move as soon as it is
        written.

        A state that a person has reset since the start stays, and so does the server that was stopped behind it.
        """
        gone_ports.release(ctx, ctx.destination.request)
        reserved, record = reserved_on(ctx, ctx.destination.host), before(ctx.move)
        with cell_rows(ctx) as rows:
            found = rows.instance.vm_state
            if found == VmState.SHELVED_OFFLOADED:
                rows.change(
                    vm_state=(VmState.SHELVED_OFFLOADED, VmState.STOPPED if record.stopped else VmState.ACTIVE),
                    task_state=task(rows, TaskState.UNSHELVING, None),
                    launched_at=(OneOf((rows.instance.launched_at,)), utcnow()),
                )
            if found != VmState.STOPPED:
                rows.change(power_state=(OneOf((rows.instance.power_state,)), power_state(record)))
            for key in (shelving.AT, servers.SHELVED_IMAGE, shelving.HOST):
                servers.set_system_metadata(rows.session, ctx.move.server, key, None)
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
            actions.close_event(rows.session, rows.action, UNSHELVE_EVENT)
        return {}
