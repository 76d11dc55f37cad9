"""Actions that connect a server's volumes and ports on a host, and disconnect them."""

from __future__ import annotations

from typing import Any

from droveway.wire.commands import Connections, PortRef, VolumeRef
from droveway.workers.actions.ownership import refuse_running
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context
from droveway.workers.hypervisors.base import Port


@action(of_destination=True)
def connect(ctx: Context, details: Connections) -> dict[str, Any]:
    """Connect every volume and plug every port of the server."""
    connect_all(ctx, details.volumes, details.ports)
    return {}


@undo
def undo_connect(ctx: Context, details: Connections) -> dict[str, Any]:
    """Disconnect what was connected."""
    return disconnect(ctx, details)


@action(thrifty=True)
def disconnect(ctx: Context, details: Connections) -> dict[str, Any]:
    """Unplug every port and disconnect every volume; raises StepError while the guest runs."""
    disconnect_all(ctx, details.volumes, details.ports)
    return {}


@undo
def undo_disconnect(ctx: Context, details: Connections) -> dict[str, Any]:
    """Connect again what was disconnected."""
    return connect(ctx, details)


def connect_all(ctx: Context, volumes: list[VolumeRef], ports: list[PortRef]) -> None:
    """Connect the volumes and plug the ports; does nothing for those that are connected and plugged already."""
    for volume in ctx.volumes(volumes):
        ctx.effect("connect_volume")
        ctx.hypervisor.connect_volume(ctx.server, volume)
    for port in as_ports(ports):
        ctx.effect("plug")
        ctx.hypervisor.plug(ctx.server, port)
    ctx.effect("connected")


def disconnect_all(ctx: Context, volumes: list[VolumeRef], ports: list[PortRef]) -> None:
    """Unplug the ports and disconnect the volumes; does nothing for those that are not there.

    Raises StepError (``guest-runs``) while the guest runs.
    """
    refuse_running(ctx, "its volumes and ports are disconnected")
    for port in ports:
        ctx.effect("unplug")
        ctx.hypervisor.unplug(ctx.server, port.port)
    for volume in volumes:
        ctx.effect("disconnect_volume")
        ctx.hypervisor.disconnect_volume(ctx.server, volume.volume)
    ctx.effect("disconnected")


def as_ports(ports: list[PortRef]) -> list[Port]:
    """Convert the ports into those that the hypervisor takes."""
    return [Port(port=ref.port, mac=ref.mac) for ref in ports]
