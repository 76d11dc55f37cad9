"""Reads what is attached to a server now: volumes as its rows name them, ports as Neutron has them.

A user may attach and detach while the move waits for confirm or revert, and an earlier request may take effect between
any two steps.  The record `Before` tells what was attached when the move began.  A step that needs what is attached now
reads it here anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from droveway.clients.network import ACTIVE, Port
from droveway.clients.port_resources import ALLOCATION, PortResources
from droveway.errors import Conflict, StepError
from droveway.flows.before import PortBefore, VolumeBefore, before
from droveway.flows.run import Context
from droveway.flows.steps.rows import availability_zone
from droveway.persistence.journal import kinds
from droveway.persistence.nova import servers
from droveway.wire.commands import Connections, PortRef, VolumeRef


class AttachedPort(PortBefore, frozen=True, kw_only=True):
    """Holds a port that the server has now, as it was before the move.

    A port that was attached later is described as if it had been attached on the source.
    """

    asks: PortResources | None = None
    """What the port asks Placement for now: somebody may have changed its QoS policy since."""
    owned_by: str = ""
    """The port's device_owner now."""


def volumes(ctx: Context) -> list[VolumeBefore]:
    """Return the volumes whose attachments the server's rows name now.

    For a server that is gone, return the volumes that it had before the move.
    A volume that Nova is still attaching has a row without an attachment, and is not returned.
    """
    with ctx.run.cells.database(ctx.cell).reading() as connection:
        found = servers.attached(connection, ctx.move.server)
    if found is None:
        return _recorded_volumes(ctx)
    on = _taken_over(ctx, {each.volume for each in found if each.attachment})
    return [
        VolumeBefore(
            volume=each.volume, attachment=on.get(each.volume, each.attachment), device=each.device, boot=each.boot
        )
        for each in found
        if each.attachment
    ]


def _taken_over(ctx: Context, volumes: Iterable[str]) -> dict[str, str]:
    """Return attachments that this move made and that the present rows do not name: volume → attachment.

    The flow had attached the volumes to the host that the flow leads to.  It had written the new attachments only into
    the rows in the cell that the server leaves.  In a forward flow that is the source's cell, in a revert the target's.
    If that cell was declared down since, nobody can read these rows, and this function asks Cinder for the attachments.
    Otherwise it returns nothing.
    """
    move, carries = ctx.move, kinds.of(ctx.run.kind).carries
    if not ctx.crosses_cells or ctx.attempt is None:
        return {}
    if carries is kinds.Carries.TO_DESTINATION:
        left, host = move.source_cell, ctx.destination.host
    elif carries is kinds.Carries.BACK:
        left, host = ctx.destination.cell, ctx.return_host
    else:
        return {}
    if ctx.cell == left or not ctx.run.cells.is_down(left):
        return {}
    return {
        volume: each.id
        for volume in sorted(volumes)
        for each in ctx.run.cloud.volumes.attachments(volume)
        if each.server == move.server and each.host == host
    }


def being_attached(ctx: Context) -> set[str]:
    """Return the volumes that Nova is attaching to the server now: their empty attachments are Nova's."""
    with ctx.run.cells.database(ctx.cell).read() as session:
        return {bdm.volume_id or "" for bdm in servers.volumes(session, ctx.move.server) if not bdm.attachment_id}


def ports(ctx: Context) -> list[AttachedPort]:
    """Return the ports that the server has in Neutron now.

    A port that the server had before the move is returned with the binding profile that it had then.
    """
    recorded = {port.port: port for port in ([] if ctx.move.before is None else before(ctx.move).ports)}
    found = []
    for port in ctx.run.cloud.network.listed_ports(ctx.move.server):
        known = recorded.get(port.id) or _come_later(ctx, port)
        found.append(AttachedPort(**msgspec.structs.asdict(known), asks=port.resources, owned_by=port.device_owner))
    return found


def _come_later(ctx: Context, port: Port) -> PortBefore:
    """Describe a port that was attached after the record was made, as if it had been attached on the source.

    If the port is bound to another host, its binding profile names resource providers of that host.  The source has
    none of these, so they are left out of the profile that is returned.
    """
    foreign = set() if port.host == ctx.move.source_host else {ALLOCATION}
    return PortBefore(
        port=port.id,
        mac=port.mac,
        profile={name: value for name, value in port.profile.items() if name not in foreign},
        device_owner=_owner_on_source(ctx),
        resources=port.resources,
    )


def free_reserved(ctx: Context, reserved: Iterable[str] = ()) -> None:
    """Delete empty attachments that the server's rows do not name.

    It looks at the ``reserved`` volumes, at those that the server has now and at those that it had before the move.
    """
    named = {volume.volume: volume.attachment for volume in volumes(ctx)}
    known = {volume.volume for volume in _recorded_volumes(ctx)} | named.keys() | set(reserved)
    for volume in sorted(known - being_attached(ctx)):
        for attachment in ctx.run.cloud.volumes.attachments(volume):
            ours = attachment.server == ctx.move.server and attachment.id != named.get(volume)
            if ours and attachment.host is None:
                with ctx.run.intent("volume", f"free {volume}"):
                    ctx.run.cloud.volumes.delete_attachment(attachment.id)


def unbind_idle(ctx: Context, host: str) -> None:
    """Delete the bindings on the host that are not the active ones of their ports."""
    for port in ctx.run.cloud.network.ports(ctx.move.server):
        if port.bindings.get(host, ACTIVE) != ACTIVE:
            with ctx.run.intent("network", f"unbind {port.id} from {host}"):
                ctx.run.cloud.network.delete_binding(port.id, host)


def require_on(ctx: Context, host: str) -> None:
    """Raise Conflict unless the server's rows name attachments on the host, and its ports are bound there."""
    for volume in volumes(ctx):
        held = {each.id: each.host for each in ctx.run.cloud.volumes.attachments(volume.volume)}
        if held.get(volume.attachment) != host:
            raise Conflict(
                f"volume {volume.volume} of server {ctx.move.server_name} is not attached to {host} by the attachment "
                f"{volume.attachment} that its rows name: somebody changed it"
            )
    for port in ctx.run.cloud.network.ports(ctx.move.server):
        if port.bindings.get(host) != ACTIVE:
            raise Conflict(
                f"port {port.id} of server {ctx.move.server_name} is not bound to {host} any more: somebody changed it"
            )


def is_attached(ctx: Context, port: str) -> bool:
    """Tell whether Neutron still has the port, as one of the server's."""
    return any(found.id == port for found in ctx.run.cloud.network.listed_ports(ctx.move.server))


@contextlib.contextmanager
def writing_port(ctx: Context, call: str, port: str) -> Iterator[None]:
    """Record the intent of a write on one port around it; ignore its failure if the port was deleted meanwhile."""
    with ctx.run.intent("network", call):
        try:
            yield
        except StepError:
            if is_attached(ctx, port):
                raise


def volume_refs(ctx: Context) -> list[VolumeRef]:
    """Return the volumes that are attached now in the form in which a worker gets them."""
    return [
        VolumeRef(volume=each.volume, attachment=each.attachment, device=each.device, boot=each.boot)
        for each in volumes(ctx)
    ]


def port_refs(ctx: Context) -> list[PortRef]:
    """Return the ports that are attached now in the form in which a worker gets them."""
    return [PortRef(port=port.port, mac=port.mac) for port in ports(ctx)]


def to_disconnect(ctx: Context) -> Connections:
    """Return what a host is to disconnect: what is attached now, and what was attached before the move.

    The host may still hold what was detached since.
    """
    held = {each.volume: each for each in volume_refs(ctx)}
    plugged = {each.port: each for each in port_refs(ctx)}
    if ctx.move.before is not None:
        for volume in _recorded_volumes(ctx):
            known = VolumeRef(volume=volume.volume, attachment=volume.attachment, device=volume.device)
            held.setdefault(volume.volume, known)
        for port in before(ctx.move).ports:
            plugged.setdefault(port.port, PortRef(port=port.port, mac=port.mac))
    return Connections(volumes=list(held.values()), ports=list(plugged.values()))


def gone_since(ctx: Context) -> Connections:
    """Return what was attached before the move and is not attached any more."""
    here = set(ids(ctx))
    detached = [
        VolumeRef(volume=each.volume, attachment=each.attachment, device=each.device)
        for each in before(ctx.move).volumes
        if each.volume not in here
    ]
    return Connections(
        volumes=detached,
        ports=[PortRef(port=port.port, mac=port.mac) for port in before(ctx.move).ports if port.port not in here],
    )


def ids(ctx: Context) -> list[str]:
    """Return the sorted ids of all volumes and ports that are attached now.

    A step compares the ids with those of an earlier look.
    """
    return sorted([each.volume for each in volumes(ctx)] + [port.port for port in ports(ctx)])


def ids_before(ctx: Context) -> list[str]:
    """Return the sorted ids of all volumes and ports that were attached before the move."""
    record = before(ctx.move)
    return sorted([each.volume for each in record.volumes] + [port.port for port in record.ports])


def _recorded_volumes(ctx: Context) -> list[VolumeBefore]:
    return [] if ctx.move.before is None else before(ctx.move).volumes


def _owner_on_source(ctx: Context) -> str:
    return f"compute:{availability_zone(ctx, ctx.move.source_host)}"
