"""Defines the steps of an unshelve on the rows, for a server that was shelved by a move or by Nova."""

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
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.persistence.nova import actions, servers, usage
from droveway.persistence.nova.cell import InstanceAction
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.persistence.times import utcnow
from droveway.wire.commands import DiskInfo, GuestState

IMAGE_EVENT: Final = "get_image_info"
SCHEDULE_EVENT: Final = "schedule_instances"
UNSHELVE_EVENT: Final = "compute_unshelve_instance"

_SHELVED: Final = (
    sa.select(Move.id, Move.before, MoveFlow.uuid)
    .join(MoveFlow, sa.and_(MoveFlow.move_id == Move.id, MoveFlow.kind == Move.kind))
    .where(
        Move.server == sa.bindparam("server"),
        Move.kind == kinds.SHELVE.name,
        Move.state == State.DONE.value,
        Move.before.is_not(None),
    )
    .order_by(Move.created_at.desc())
)

_LAST_REQUEST: Final = (
    sa.select(InstanceAction.request_id)
    .where(
        InstanceAction.instance_uuid == sa.bindparam("server"),
        InstanceAction.action == "shelve",
        InstanceAction.deleted == 0,
    )
    .order_by(InstanceAction.id.desc())
    .limit(1)
)
"""Selects the request id of the server's last shelve."""


class RecordBefore(forward.RecordBefore):
    """Records what the image and the rows say of the server, which is on no host that could be asked."""

    def guest(self, ctx: Context, image: ImageBefore | None) -> GuestState:
        """Describe the guest with the definition that it had when this tool shelved it, and the disk of its image.

        The definition is that of the shelve that made the image, and empty if Nova made the image.  A server whose root
        disk is a volume has no image: its list of actions in Nova tells whether this tool or Nova shelved it last.
        """
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
        """Return the image that the rows name; None for a server whose root disk is a volume.

        Raises StepError (``image-gone``) where the image is not whole, or where the rows name no image although the
        server's root disk is no volume.
        """
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
        shelves = session.execute(_SHELVED, {"server": ctx.move.server}).all()
    last = _last_request(ctx) if image is None and shelves else None
    for move, record, flow in shelves:
        mine = last == f"req-{flow}" if image is None else image.image == images.image_of(move)
        if mine:
            return str(record["guest"]["definition"])
    return ""


def _last_request(ctx: Context) -> str | None:
    with ctx.run.cells.database(ctx.cell).read() as session:
        return session.scalar(_LAST_REQUEST, {"server": ctx.move.server})


class MarkUnshelving(Step):
    """Shows the unshelve in Nova's rows."""

    does = "mark the server as being unshelved"
    undoes = "clear the mark; the action ends with Error"
    leaves = Leaves({"task_state": TaskState.UNSHELVING}, {"task_state": None})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Change task_state from NULL to `unshelving`; the host stays NULL, so no nova-compute takes the server."""
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
        """Change task_state back to NULL."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if fail_action(rows, fault):
                rows.change(task_state=task(rows, TaskState.UNSHELVING, None))


class SwitchRecords(Step):
    """Lets the rows name the destination, on which the server is still off."""

    does = "let the server's rows name the destination"
    undoes = "let them name no host again"
    leaves = Leaves({"side": Side.DESTINATION, "zone": Side.DESTINATION}, {"side": Side.NOWHERE, "zone": Side.NOWHERE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write host, node, compute_id, launched_on and zone.

        A nova-compute that restarts does not change a server in task_state `unshelving`.
        """
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            name_destination(ctx, rows)
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write NULL into host, node, compute_id, launched_on and zone again."""
        chosen, fault = ctx.destination, failure(ctx)
        reserved = reserved_on(ctx, chosen.host)
        with cell_rows(ctx) as rows:
            name_no_host(ctx, rows)
            usage.recompute(rows.session, chosen.host, reserved=reserved)
            fail_event(rows, UNSHELVE_EVENT, fault)


def name_destination(ctx: Context, rows: Rows) -> None:
    """Let the rows name the destination, and open the event of Nova's action there.

    Raises Conflict unless the rows are those of a shelved server that this move unshelves.
    """
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
    """Let the rows name no host again; raises Conflict where they name another host than the destination."""
    chosen, row = ctx.destination, rows.instance
    rows.change(
        host=(chosen.host, None),
        node=(chosen.node, None),
        compute_id=(OneOf((row.compute_id,)), None),
        launched_on=(chosen.host, None),
        availability_zone=(OneOf((row.availability_zone,)), None),
    )


class FinishRecords(Step):
    """Writes that the server is active, or stopped if its user has stopped it since the unshelve began.

    As in Nova, a server becomes active even if it was stopped when it was shelved.
    """

    does = "let the server's rows say that it is active"
    no_undo = "past the point of no return"
    leaves = Leaves({"task_state": None, "vm_state": Vm.ACTIVE, "power_state": Power.AGAIN})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write active or stopped, task_state NULL and launched_at, and remove what says that it was shelved.

        First it releases what was claimed for ports that are gone since: a user may ask for the next move as soon as
        the rows are written.

        If a person has reset the state since the guest's start, vm_state and task_state stay as they are.  If the user
        has stopped the server after that, power_state stays as it is too.
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
