"""Defines the steps on port bindings: a conductor makes them INACTIVE first, and active once the guest is off."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

from droveway.clients.network import ACTIVE
from droveway.errors import Evacuated
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import attached, port_profiles
from droveway.flows.steps.attached import AttachedPort
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import availability_zone, is_deleted, lives_on
from droveway.persistence.nova import evacuations


class PortStep(Step):
    """Brings every port from one host to the other; has nothing to do where both are one host."""

    to_source: ClassVar[bool] = False
    """Whether the server goes back to its source."""

    def new_host(self, ctx: Context) -> str:
        """Name the host that the server goes to."""
        return ctx.return_host if self.to_source else ctx.destination.host

    def old_host(self, ctx: Context) -> str:
        """Name the host that the server leaves."""
        return ctx.destination.host if self.to_source else ctx.move.source_host

    def owner(self, ctx: Context, port: AttachedPort, host: str) -> str:
        """Return the port's device_owner on a host: ``compute:`` and the availability zone, as in Nova."""
        if host == ctx.move.source_host:
            return port.device_owner
        return f"compute:{availability_zone(ctx, host)}"

    def ports(self, ctx: Context) -> list[AttachedPort]:
        """Return the server's present ports, which have to be bound anew; empty where both hosts are one."""
        return [] if ctx.same_host else attached.ports(ctx)

    @contextlib.contextmanager
    def writing(self, ctx: Context, call: str, port: AttachedPort) -> Iterator[None]:
        """Enclose a write on one port; ignore its failure if somebody deleted the port meanwhile.

        ``call`` says what is written; ``{port}`` in it stands for the port's id.
        """
        with attached.writing_port(ctx, call.format(port=port.port), port.port):
            yield


class ReservePorts(PortStep):
    """Makes inactive bindings on the destination, so that a host that cannot bind is found before the shutdown."""

    does = "bind the ports on the destination, inactive"
    undoes = "delete those bindings"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Make one INACTIVE binding for each port."""
        ports, host = self.ports(ctx), self.new_host(ctx)
        for port in ports:
            with self.writing(ctx, f"bind {{port}} to {host}", port):
                write = functools.partial(ctx.run.cloud.network.ensure_binding, port.port, host)
                port_profiles.bind(ctx, port, host, write)
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Delete the new host's bindings; the undo of `MovePorts` has made the old host's active again by now.

        If the journal was put back, the undo of `MovePorts` may not have run.  Then this undo makes the old host's
        bindings active first.  It leaves all bindings on a host that the server's rows name.
        """
        host = self.new_host(ctx)
        if ctx.same_host or lives_on(ctx, host):
            return
        deleted = is_deleted(ctx)
        bindings = {port.id: port.bindings for port in ctx.run.cloud.network.ports(ctx.move.server)}
        for port in self.ports(ctx):
            with self.writing(ctx, f"unbind {{port}} from {host}", port):
                bound = bindings.get(port.port, {})
                if not deleted and host in bound and bound.get(self.old_host(ctx)) != ACTIVE:
                    bring(ctx, port, self.old_host(ctx), self.owner(ctx, port, self.old_host(ctx)))
                ctx.run.cloud.network.delete_binding(port.port, host)

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete the inactive bindings on the destination; all others are Nova's."""
        host = self.new_host(ctx)
        if not (ctx.same_host or lives_on(ctx, host)):
            attached.unbind_idle(ctx, host)


class MovePorts(PortStep):
    """Makes the new host's bindings active and then deletes the old host's: afterwards each port has one binding."""

    does = "activate the ports on the destination"
    undoes = "make the source's bindings active again"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Activate each new binding, then delete the old one.

        A port that was attached since `reserve_ports` is bound first.
        """
        starting.require_not_evacuated(ctx)
        if ctx.same_host:
            return {"ports": self._name_providers(ctx, back=self.to_source)}
        ports, host = self.ports(ctx), self.new_host(ctx)
        for port in ports:
            with self.writing(ctx, f"activate {{port}} on {host}", port):
                bring(ctx, port, host, self.owner(ctx, port, host))
                ctx.run.cloud.network.delete_binding(port.port, self.old_host(ctx))
        _leave_to_evacuation(ctx, ports, host)
        return {"ports": len(ports)}

    def undo(self, ctx: Context) -> None:
        """Make each old binding again, if it is gone, and activate it; the undo of `ReservePorts` deletes the new ones.

        Does nothing for a deleted server, whose ports are deleted with it.
        """
        if is_deleted(ctx):
            return
        starting.require_not_evacuated(ctx)
        if ctx.same_host:
            self._name_providers(ctx, back=not self.to_source)
            return
        host, ports = self.old_host(ctx), self.ports(ctx)
        for port in ports:
            with self.writing(ctx, f"activate {{port}} on {host}", port):
                bring(ctx, port, host, self.owner(ctx, port, host))
        _leave_to_evacuation(ctx, ports, host)

    def _name_providers(self, ctx: Context, *, back: bool) -> int:
        """Let each port that asks for resources name its providers, with its binding left where it is.

        With ``back``, a port names the providers that it had before the move, otherwise those that the move claimed.
        Returns the number of such ports.
        """
        ports = [port for port in attached.ports(ctx) if port.resources is not None or port.asks is not None]
        for port in ports:
            write = functools.partial(ctx.run.cloud.network.set_profile, port.port)
            with self.writing(ctx, "name the providers of {port}", port):
                if back:
                    port_profiles.write_recorded(port, write)
                else:
                    write(port_profiles.claimed(port, ctx.destination.request))
        return len(ports)


def _leave_to_evacuation(ctx: Context, ports: list[AttachedPort], host: str) -> None:
    """Look once more whether Nova has evacuated the server; if so, activate again what Nova bound, and raise Evacuated.

    Neutron activates whichever binding is asked for last.  If this step activated its binding after Nova had activated
    another, the guest that Nova started has lost the port.
    """
    try:
        starting.require_not_evacuated(ctx)
    except Evacuated:
        with ctx.run.cells.database(ctx.cell).read() as session:
            refuge = evacuations.refuge(session, ctx.move.server)
        known = {port.port for port in ports}
        for port in ctx.run.cloud.network.ports(ctx.move.server):
            if port.id in known and refuge != host and port.bindings.get(refuge, ACTIVE) != ACTIVE:
                with ctx.run.intent("network", f"leave {port.id} to {refuge}"):
                    owner = f"compute:{availability_zone(ctx, refuge)}"
                    ctx.run.cloud.network.activate(port.id, refuge, device_owner=owner)
                    ctx.run.cloud.network.delete_binding(port.id, host)
        raise


def bring(ctx: Context, port: AttachedPort, host: str, owner: str) -> None:
    """Bind the port to the host unless it is, and make that binding the active one."""
    network = ctx.run.cloud.network
    port_profiles.bind(
        ctx, port, host, lambda to: network.bring(port.port, host, to, device_owner=owner, owned_by=port.owned_by)
    )
