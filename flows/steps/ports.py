"""Steps on port bindings, always written by the conductor: INACTIVE first, activated once the guest is off."""

from __future__ import annotations

from typing import Any, ClassVar

from droveway.flows.before import PortBefore, before
from droveway.flows.step import Context, Step
from droveway.flows.steps.rows import availability_zone, is_deleted


class PortStep(Step):
    """A step that brings every port from one host to the other; on the same host there is nothing to do."""

    to_source: ClassVar[bool] = False
    """Whether the server goes back to its source."""

    def new_host(self, ctx: Context) -> str:
        """The host that the server goes to."""
        return ctx.move.source_host if self.to_source else ctx.destination.host

    def old_host(self, ctx: Context) -> str:
        """The host that it leaves."""
        return ctx.destination.host if self.to_source else ctx.move.source_host

    def owner(self, ctx: Context, port: PortBefore, host: str) -> str:
        """The port's device_owner on a host: Nova names the zone in it."""
        if host == ctx.move.source_host:
            return port.device_owner
        return f"compute:{availability_zone(ctx, host)}"

    def ports(self, ctx: Context) -> list[PortBefore]:
        """The ports that have to be bound anew."""
        return [] if ctx.same_host else before(ctx.move).ports


class ReservePorts(PortStep):
    """A binding on the destination that does nothing yet: a host that cannot bind is found out before the shutdown."""

    title: ClassVar[str] = "reserve_ports"
    does = "bind the ports on the destination, inactive"
    undoes = "delete those bindings"

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One INACTIVE binding a port."""
        ports = self.ports(ctx)
        for port in ports:
            with ctx.run.intent("network", f"bind {port.port} to {self.new_host(ctx)}"):
                ctx.run.network.ensure_binding(port.port, self.new_host(ctx), port.profile)
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Delete the new host's bindings; `MovePorts` has made the old host's active again by now."""
        for port in self.ports(ctx):
            with ctx.run.intent("network", f"unbind {port.port} from {self.new_host(ctx)}"):
                ctx.run.network.delete_binding(port.port, self.new_host(ctx))


class MovePorts(PortStep):
    """The new host's bindings become active, then the old host's go: a port at rest has one binding."""

    title: ClassVar[str] = "move_ports"
    does = "activate the ports on the destination"
    undoes = "make the source's bindings active again"

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Activate, then delete the old binding."""
        ports = self.ports(ctx)
        for port in ports:
            host = self.new_host(ctx)
            with ctx.run.intent("network", f"activate {port.port} on {host}"):
                ctx.run.network.activate(port.port, host, device_owner=self.owner(ctx, port, host))
                ctx.run.network.delete_binding(port.port, self.old_host(ctx))
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Re-create and activate the old host's binding before anything of the new one's goes.

        Nothing for a deleted server: its ports are about to go.
        """
        if is_deleted(ctx):
            return
        for port in self.ports(ctx):
            host = self.old_host(ctx)
            with ctx.run.intent("network", f"activate {port.port} on {host}"):
                ctx.run.network.ensure_binding(port.port, host, port.profile)
                ctx.run.network.activate(port.port, host, device_owner=self.owner(ctx, port, host))


class ReserveSourcePorts(ReservePorts):
    """Revert's: the source is the new host."""

    to_source = True
    does = "bind the ports on the source, inactive"


class MovePortsBack(MovePorts):
    """Revert's: the source is the new host."""

    to_source = True
    does = "activate the ports on the source"
    undoes = "make the destination's bindings active again"
