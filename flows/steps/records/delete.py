"""Defines the steps that delete a server at rest: none is undone, and each may find all of its work done."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, OWED, UNREACHABLE, Context
from droveway.flows.stands import NOTHING, Leaves, Power, Vm
from droveway.flows.step import Step, Where
from droveway.flows.steps import moved_images
from droveway.flows.steps.attached import volume_refs
from droveway.flows.steps.hosts.command import HostStep
from droveway.flows.steps.records import homes
from droveway.flows.steps.rows import api_rows, request_id, reserved_on
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.journal import moves
from droveway.persistence.nova import actions, deletion, servers, usage
from droveway.persistence.nova.actions import ActionRef
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.vm_states import TaskState
from droveway.wire import commands

DELETE_EVENT: Final = "compute_terminate_instance"

_FORWARD_ONLY: Final = "a server that is deleted does not come back"


class MarkDeleting(Step):
    """Shows in Nova's rows that the server is being deleted."""

    does = "mark the server as being deleted"
    no_undo = _FORWARD_ONLY
    gives = "home"
    leaves = Leaves({"task_state": TaskState.DELETING})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write task_state `deleting` and begin the action delete, as Nova's `API._delete`; return the host."""
        move, run = ctx.move, ctx.run
        with run.journal.read() as session:
            host = moves.home(session, move)
        with run.cells.transaction(ctx.cell, move.server, run.epoch) as session:
            row = session.scalar(sa.select(Instance).where(Instance.uuid == move.server, Instance.deleted == 0))
            if row is not None:
                homes.require_no_evacuation(ctx, row)
                host = row.host or ""
                present = OneOf((row.task_state,))
                compare_and_swap(session, row, task_state=(present, TaskState.DELETING), progress=(row.progress, 0))
                action = ActionRef(move.server, request_id(ctx))
                actions.begin(session, action, "delete", user_id=row.user_id, project_id=row.project_id)
                actions.open_event(session, action, DELETE_EVENT, host)
        return {"host": host}


class _AtHome(HostStep):
    """Commands the host that the server is on, and those that may still have something of it.

    Does nothing for a server that has no host.
    """

    where = Where.HOME
    no_undo = _FORWARD_ONLY
    owed_when_down = True
    needs = ("home",)

    def host(self, ctx: Context) -> str:
        """Name the host that the server was on when its delete began."""
        return homes.first_host(ctx)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Command each host's worker.

        A host to which the server came since is sent the commands of the earlier steps too.
        """
        return self.clear(ctx, homes.hold(ctx))

    def clear(self, ctx: Context, found: homes.Homes) -> dict[str, Any]:
        """Command each host that was ``found``; return the answer of the one that the server was on at first."""
        was, answer = self.host(ctx), dict[str, Any]()
        for host in found.every:
            if host == was:
                answer = self.command_host(ctx, host, must=host == found.now)
            else:
                _clear_host(ctx, host, must=host == found.now, until=type(self))
        return answer

    def command_host(self, ctx: Context, host: str, *, must: bool, part: str = "") -> dict[str, Any]:
        """Command the host and return its answer, or record that it owes the action and return `OWED`.

        If the host is declared down, it owes the action.  If the host is away, it owes the action unless it ``must`` be
        cleared now, since the server lives there.
        """
        details = self.details(ctx)
        if must or not ctx.run.owes(host):
            try:
                return ctx.command(host, self.action_name(), details, deadline=self.deadline, part=part)
            except StepError as error:
                if error.error_code != DECLARED_DOWN and (must or error.error_code != UNREACHABLE):
                    raise
        ctx.owe(host, self.action_name(), details, deadline=self.deadline)
        return dict(OWED)


class StopGuest(_AtHome):
    """Switches the guest off at once: Nova gives it no time to shut down either."""

    deadline = 180.0
    does = "switch the guest off"

    def details(self, ctx: Context) -> msgspec.Struct:  # noqa: ARG002 - the same for every server
        """Give the guest no time to shut down."""
        return commands.StopGuest(grace=0.0, restart=False)


class DisconnectGuest(_AtHome):
    """Has the host disconnect interfaces and volumes."""

    action = "disconnect"
    does = "disconnect interfaces and volumes"

    def details(self, ctx: Context) -> msgspec.Struct:
        """Name what the rows, Cinder and Neutron have: after a move that was half undone these may differ."""
        volumes = {each.volume: each for each in volume_refs(ctx)}
        for held in ctx.run.cloud.volumes.for_server(ctx.move.server):
            known = commands.VolumeRef(volume=held.volume, attachment=held.id, device="")
            volumes.setdefault(held.volume, known)
        ports = [
            commands.PortRef(port=port.id, mac=port.mac) for port in ctx.run.cloud.network.listed_ports(ctx.move.server)
        ]
        return commands.Connections(volumes=list(volumes.values()), ports=ports)


class RemoveGuest(_AtHome):
    """Has the host remove the guest's definition and its disks."""

    destroys = True
    deadline = 600.0
    does = "undefine the guest, delete its disks"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Remove the guest, and return the hosts on which nothing of the server is left."""
        found = homes.hold(ctx)
        return {**self.clear(ctx, found), homes.HOSTS: found.every}


class DeletePorts(Step):
    """Deletes the server's ports with all their bindings."""

    does = "delete the server's ports"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the ports that Neutron has of the server now, and return how many."""
        _follow(ctx)
        return {"ports": _delete_ports(ctx)}


class DeleteAttachments(Step):
    """Frees the server's volumes, and deletes those with delete_on_termination, as Nova does."""

    does = "free the server's volumes, delete those that go with it"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the attachments, empty ones too; a volume that another server has as well is not deleted."""
        _follow(ctx)
        held, going = free_volumes(ctx)
        return {"attachments": held, "deleted_volumes": going}


class DeleteImages(Step):
    """Deletes the image of a shelved server, and the images that its move has kept."""

    does = "delete the shelved server's image, and those that its move kept"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the images that the move kept, and the one that the rows name, as Nova's delete does.

        They stay where no image service is configured.
        """
        _follow(ctx)
        kept = moved_images.kept(ctx.move) if ctx.run.cloud.images is not None else []
        moved_images.delete(ctx, kept)
        with ctx.run.cells.database(ctx.cell).read() as session:
            image = servers.system_metadata(session, ctx.move.server).get(servers.SHELVED_IMAGE)
        if not image or ctx.run.cloud.images is None:
            return {"kept": image} if image else {}
        with ctx.run.intent("image", f"delete {image}"):
            ctx.run.cloud.images.delete(image)
        return {"image": image}


class ReleaseAllocation(Step):
    """Releases the allocations once nothing of the server is left on its host."""

    does = "release what the server and its move hold"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Empty the consumers of the server and of its migration, in one Placement call."""
        _follow(ctx)
        _release(ctx)
        return {}


class SettleRecords(Step):
    """Soft-deletes the server's rows in its cell."""

    does = "soft-delete the server's rows in its cell"
    no_undo = _FORWARD_ONLY
    leaves = Leaves({"task_state": None, "vm_state": Vm.DELETED, "power_state": Power.NONE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Soft-delete the rows as Nova's `instance_destroy` does, count the host's usage and end the action.

        Raises StepError (``being-evacuated``) where Nova has taken the server to another host right before; the next
        try clears that host.
        """
        found = _follow(ctx)
        move, run, reserved = ctx.move, ctx.run, reserved_on(ctx, *found.every)
        with run.cells.transaction(ctx.cell, move.server, run.epoch) as session:
            row = session.scalar(sa.select(Instance).where(Instance.uuid == move.server, Instance.deleted == 0))
            if row is not None:
                homes.require_cleared(row, found)
            deletion.remove_from_cell(session, move.server, reserved)
            usage.recompute(session, move.source_host, move.dest_host, *found.every, reserved=reserved)
            actions.close_event(session, ActionRef(move.server, request_id(ctx)), DELETE_EVENT)
        return {}


class ForgetRequest(Step):
    """Removes the server from the API database."""

    does = "forget the request spec, mark the mapping as deleted"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the request spec and the group membership, and mark the mapping with `queued_for_delete`."""
        with api_rows(ctx) as session:
            deletion.remove_from_api(session, ctx.move.server)
        return {}


_ON_A_HOST: Final[tuple[type[_AtHome], ...]] = (StopGuest, DisconnectGuest, RemoveGuest)


def _clear_host(ctx: Context, host: str, *, must: bool, until: type[_AtHome] = RemoveGuest) -> None:
    """Send another host the commands of all host steps up to ``until``; a command may find its work done."""
    for step in _ON_A_HOST[: _ON_A_HOST.index(until) + 1]:
        step(ctx.run).command_host(ctx, host, must=must, part=f"{step.step_name()}-at-{host}")


def _follow(ctx: Context) -> homes.Homes:
    """Clear each host to which Nova took the server since `remove_guest`, and all that Nova has made for it there."""
    found = homes.hold(ctx)
    cleared = homes.cleared(ctx)
    if left := [host for host in found.every if host not in cleared]:
        ctx.run.require_thawed()
        for host in left:
            _clear_host(ctx, host, must=host == found.now)
        _delete_ports(ctx)
        free_volumes(ctx)
        _release(ctx)
    return found


def _delete_ports(ctx: Context) -> int:
    ports = ctx.run.cloud.network.listed_ports(ctx.move.server)
    for port in ports:
        with ctx.run.intent("network", f"delete {port.id}"):
            ctx.run.cloud.network.delete_port(port.id)
    return len(ports)


def free_volumes(ctx: Context) -> tuple[int, list[str]]:
    """Free the server's volumes; return how many attachments were deleted, and which volumes were deleted."""
    volumes = ctx.run.cloud.volumes
    held = volumes.for_server(ctx.move.server)
    for attachment in held:
        with ctx.run.intent("volume", f"free {attachment.volume}"):
            volumes.delete_attachment(attachment.id)
    going = [volume for volume in _going_along(ctx) if not volumes.attachments(volume)]
    for volume in going:
        with ctx.run.intent("volume", f"delete {volume}"):
            volumes.delete_volume(volume)
    return len(held), going


def _going_along(ctx: Context) -> list[str]:
    with ctx.run.cells.database(ctx.cell).read() as session:
        rows = servers.volumes(session, ctx.move.server)
    return [row.volume_id for row in rows if row.delete_on_termination and row.volume_id]


def _release(ctx: Context) -> None:
    with ctx.run.intent("placement", "release the server"):
        ctx.run.cloud.placement.return_move(server=ctx.move.server, migration=ctx.move.id, release=True)
