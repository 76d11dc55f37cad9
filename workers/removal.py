"""The action that takes a deleted server off its host."""

from __future__ import annotations

from typing import Any

from droveway.wire import NoDetails
from droveway.workers.context import Context
from droveway.workers.ownership import discard, discard_parts, is_whatever, refuse_foreign, refuse_running


def remove_guest(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Undefine the server's guest and delete its directory; done when nothing of either is there.

    Its volumes and ports are disconnected before (`droveway.workers.connections`); what lies on a volume stays.
    """
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None:
        refuse_foreign(ctx, guest)
        refuse_running(ctx, "it is deleted")
        ctx.effect("undefine")
        ctx.fence()
        ctx.hypervisor.undefine(ctx.server)
    discard(ctx, ctx.server, is_whatever)
    discard_parts(ctx)
    ctx.effect("removed")
    return {}
