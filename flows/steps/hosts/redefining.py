"""Defines anew a guest that is off, with what is attached now; the host first disconnects what was detached since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from droveway.flows.before import before
from droveway.flows.steps.attached import gone_since, port_refs, volume_refs
from droveway.flows.steps.hosts.command import describe, new_flavor
from droveway.flows.steps.rows import is_deleted
from droveway.wire import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from droveway.flows.run import Context


def on_source(ctx: Context, host: str) -> None:
    """Define the source's guest as it was, but with what is attached now: else it could not start."""
    details = commands.PrepareSourceGuest(
        definition=before(ctx.move).guest.definition, volumes=volume_refs(ctx), ports=port_refs(ctx)
    )
    ctx.command(host, "prepare_source_guest", details, direction="execute", part="prepare_source_guest")


def on_destination(ctx: Context, host: str, definition: str) -> None:
    """Define the destination's guest by this definition, but with the new sizes and what is attached now."""
    flavor = new_flavor(ctx)
    details = commands.DefineGuest(
        definition=definition,
        vcpus=flavor["vcpus"],
        memory_mb=flavor["memory_mb"],
        volumes=volume_refs(ctx),
        ports=port_refs(ctx),
    )
    anew(ctx, host, details)


def anew(ctx: Context, host: str, details: commands.DefineGuest) -> None:
    """Have the host define the guest again."""
    ctx.command(host, "define_guest", details, direction="execute", part="define_guest")


def disconnect_gone(ctx: Context, host: str) -> None:
    """Have the host disconnect what was detached from the server since before the move."""
    gone = gone_since(ctx)
    if gone.volumes or gone.ports:
        ctx.command(host, "disconnect", gone, direction="execute", part="disconnect")


def without_gone(ctx: Context, host: str, redefine: Callable[[Context], None]) -> None:
    """Disconnect what was detached since before the move, and define the guest again with ``redefine``.

    Nova did not tell this host of the detach, since the server's rows named the other host then.  Nothing is done if
    the guest runs.
    """
    if ctx.same_host or is_deleted(ctx):
        return
    gone = gone_since(ctx)
    if (gone.volumes or gone.ports) and not describe(ctx, host, part="gone").running:
        disconnect_gone(ctx, host)
        redefine(ctx)
