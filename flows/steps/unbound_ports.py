"""Defines the steps on the ports of a server that is shelved or unshelved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from droveway.clients.network import DEVICE_KEYS
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import attached, port_profiles
from droveway.flows.steps.attached import AttachedPort
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import availability_zone, is_deleted


class UnbindPorts(Step):
    """Shelve: unbinds the ports from the host; they stay the server's."""

    does = "unbind the ports from the host"
    undoes = "bind them to it again"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Unbind each port; its profile loses what it says of the host's devices, as in Nova.

        Its device_owner and device_id stay.
        """
        starting.require_not_evacuated(ctx)
        ports = attached.ports(ctx)
        for port in ports:
            _unbind(ctx, port)
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Bind each port to the host again, with the profile that it had before the move; not for a deleted server."""
        if is_deleted(ctx):
            return
        starting.require_not_evacuated(ctx)
        for port in attached.ports(ctx):
            _bind(ctx, port, ctx.move.source_host, port.device_owner)


class BindPorts(Step):
    """Unshelve: binds the ports to the destination."""

    does = "bind the ports to the destination"
    undoes = "unbind them again"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write host and profile of each port in one request; raises DestinationFault where Neutron cannot bind it."""
        ports, host = attached.ports(ctx), ctx.destination.host
        owner = f"compute:{availability_zone(ctx, host)}"
        for port in ports:
            _bind(ctx, port, host, owner)
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Unbind each port again; not for a server that is deleted, whose ports are deleted with it."""
        if is_deleted(ctx):
            return
        for port in attached.ports(ctx):
            _unbind(ctx, port)


def _bind(ctx: Context, port: AttachedPort, host: str, owner: str) -> None:
    with attached.writing_port(ctx, f"bind {port.port} to {host}", port.port):
        network = ctx.run.cloud.network

        def write(profile: Mapping[str, Any]) -> None:
            network.bind(port.port, host, profile=profile, device_owner=owner)

        port_profiles.bind(ctx, port, host, write)


def _unbind(ctx: Context, port: AttachedPort) -> None:
    profile = {name: value for name, value in port.profile.items() if name not in DEVICE_KEYS}
    with attached.writing_port(ctx, f"unbind {port.port}", port.port):
        ctx.run.cloud.network.unbind(port.port, profile=profile)
