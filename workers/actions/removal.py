"""The action that removes a deleted server from its host."""

from __future__ import annotations

from typing import Any

from droveway.wire.commands import NoDetails, PortRef, VolumeRef
from droveway.workers.actions.connections import disconnect_all
from droveway.workers.actions.ownership import discard, discard_parts, is_whatever, refuse_foreign, refuse_running
from droveway.workers.actions.table import action
from droveway.workers.context import Context


@action(thrifty=True)
def remove_guest(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Undefine the server's guest and delete its directory; does nothing when neither is there.

    Volumes and ports that Cinder and Neutron still know of were disconnected before (`workers/actions/connections.py`).
    Those that only this host still knows of are disconnected here: Nova deleted the server while the host was away, and
    forgot them.  The data on a volume stays.
    """
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None:
        refuse_foreign(ctx, guest)
        refuse_running(ctx, "it is deleted")
        ctx.effect("undefine")
        ctx.fence()
        ctx.hypervisor.undefine(ctx.server)
    _disconnect_forgotten(ctx)
    discard(ctx, ctx.server, is_whatever)
    discard_parts(ctx)
    ctx.effect("removed")
    return {}


def _disconnect_forgotten(ctx: Context) -> None:
    volumes = [volume for server, volume in ctx.hypervisor.connections() if server == ctx.server]
    ports = [port for server, port in ctx.hypervisor.plugged() if server == ctx.server]
    if volumes or ports:
        known = [VolumeRef(volume=volume, attachment="", device="") for volume in volumes]
        disconnect_all(ctx, known, [PortRef(port=port, mac="") for port in ports])
