"""The steps that delete a server at rest; each only goes forward and may find all of its work done."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.stands import NOTHING, Leaves, Power, Vm
from droveway.flows.step import Step, Where
from droveway.flows.steps import moved_images
from droveway.flows.steps.attached import volume_refs
from droveway.flows.steps.hosts.command import OWED, HostStep
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
    """Everybody who reads Nova's rows sees that the server goes."""

    does = "mark the server as being deleted"
    no_undo = _FORWARD_ONLY
    gives = "home"
    leaves = Leaves({"task_state": TaskState.DELETING})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """task_state `deleting`, action delete (Nova's `API._delete`); the value names the host of the server."""
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
    """A step on the host that the server is on, and on those that may still have something of it.

    Nothing for a server that has no host.
    """

    where = Where.HOME
    no_undo = _FORWARD_ONLY
    owed_when_down = True
    needs = ("home",)

    def host(self, ctx: Context) -> str:
        """The one that the server was on when its delete began."""
        return homes.before(ctx)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Command each host's worker; on a host that the server came to since, what the steps before did there too."""
        return self.clear(ctx, homes.hold(ctx))

    def clear(self, ctx: Context, found: homes.Homes) -> dict[str, Any]:
        """What the host said that the server was on when its delete began."""
        was, answer = self.host(ctx), dict[str, Any]()
        for host in found.every:
            if host == was:
                answer = self.command_host(ctx, host, must=host == found.now)
            else:
                _clear_host(ctx, host, must=host == found.now, until=type(self))
        return answer

    def command_host(self, ctx: Context, host: str, *, must: bool, part: str = "") -> dict[str, Any]:
        """The host's answer, or that it owes it: the host of a server that lives elsewhere is not waited for."""
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
    """The guest goes off at once: Nova gives it no time either."""

    deadline = 180.0
    does = "switch the guest off"

    def details(self, ctx: Context) -> msgspec.Struct:  # noqa: ARG002 - the same for every server
        """No grace."""
        return commands.StopGuest(grace=0.0, restart=False)


class DisconnectGuest(_AtHome):
    """The host gives up interfaces and volumes."""

    action = "disconnect"
    does = "disconnect interfaces and volumes"

    def details(self, ctx: Context) -> msgspec.Struct:
        """By rows and services alike: after a move that was undone half way they may differ."""
        volumes = {each.volume: each for each in volume_refs(ctx)}
        for held in ctx.run.cloud.volumes.for_server(ctx.move.server):
            known = commands.VolumeRef(volume=held.volume, attachment=held.id, device="")
            volumes.setdefault(held.volume, known)
        ports = [
            commands.PortRef(port=port.id, mac=port.mac) for port in ctx.run.cloud.network.listed_ports(ctx.move.server)
        ]
        return commands.Connections(volumes=list(volumes.values()), ports=ports)


class RemoveGuest(_AtHome):
    """The guest's definition and its disks go."""

    destroys = True
    deadline = 600.0
    does = "undefine the guest, delete its disks"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Note the hosts on which nothing of the server is left by now."""
        found = homes.hold(ctx)
        return {**self.clear(ctx, found), homes.HOSTS: found.every}


class DeletePorts(Step):
    """The server's ports go with every binding of theirs."""

    does = "delete the server's ports"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Whatever ports are there."""
        _follow(ctx)
        return {"ports": _delete_ports(ctx)}


class DeleteAttachments(Step):
    """The server's volumes are free; those with delete_on_termination go with it, as in Nova."""

    does = "free the server's volumes, delete those that go with it"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Whatever attachments are there, empty ones too; a volume that another server has as well stays."""
        _follow(ctx)
        held, going = free_volumes(ctx)
        return {"attachments": held, "deleted_volumes": going}


class DeleteImages(Step):
    """The image of a shelved server goes with it, and those that its move has kept."""

    does = "delete the shelved server's image, and those that its move kept"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """The one that the rows name, as in Nova's delete; in an installation without an image service it stays."""
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
    """Nothing of the server is left on its host, so nothing is held there."""

    does = "release what the server and its move hold"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Both consumers are emptied, in one Placement call."""
        _follow(ctx)
        _release(ctx)
        return {}


class SettleRecords(Step):
    """The cell's rows say that the server is gone."""

    does = "soft-delete the server's rows in its cell"
    no_undo = _FORWARD_ONLY
    leaves = Leaves({"task_state": None, "vm_state": Vm.DELETED, "power_state": Power.NONE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """As Nova's `instance_destroy`, with the host's usage and the action's end.

        A server that Nova takes to another host right before that keeps its rows: the next try follows it.
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
    """The API database forgets the server."""

    does = "forget the request spec, mark the mapping as deleted"
    no_undo = _FORWARD_ONLY
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """request_specs, group membership, `queued_for_delete`."""
        with api_rows(ctx) as session:
            deletion.remove_from_api(session, ctx.move.server)
        return {}


_ON_A_HOST: Final[tuple[type[_AtHome], ...]] = (StopGuest, DisconnectGuest, RemoveGuest)


def _clear_host(ctx: Context, host: str, *, must: bool, until: type[_AtHome] = RemoveGuest) -> None:
    """Do on another host what the steps do on the first one, up to this one: each finds it done."""
    for step in _ON_A_HOST[: _ON_A_HOST.index(until) + 1]:
        step(ctx.run).command_host(ctx, host, must=must, part=f"{step.step_name()}-at-{host}")


def _follow(ctx: Context) -> homes.Homes:
    """Clear each host that the server came to since `remove_guest`, and then all that Nova has made for it there."""
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
    """Free the server's volumes; how many attachments went, and the volumes that were deleted with them."""
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
