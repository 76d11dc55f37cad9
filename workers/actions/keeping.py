"""The action with which a copy stops being one: disks and guest of the server carry no move's mark any more."""

from __future__ import annotations

from typing import Any

from droveway.wire.commands import KeepCopy
from droveway.workers.actions.ownership import set_aside_name
from droveway.workers.actions.table import action
from droveway.workers.context import Context
from droveway.workers.directories import MARKER


@action()
def keep_copy(ctx: Context, details: KeepCopy) -> dict[str, Any]:
    """Take this move's mark off the server's disks, then off its guest: from then on they are the server's own.

    Nothing that a move does deletes what has no mark.  The server may be on its way elsewhere when a host that was away
    comes to it.  Raises StepError (``missing``) for a disk that was to be there.
    """
    for name in (ctx.server, set_aside_name(ctx.server)):
        marker = ctx.directories.marker(name)
        if marker is not None and (marker.move, marker.server) == (ctx.move, ctx.server):
            ctx.effect("unmark_disks")
            ctx.fence()
            ctx.directories.unlink(name, MARKER)
    present = ctx.directories.disks(ctx.server) if details.disks else []
    for disk in details.disks:
        if disk not in present:
            raise ctx.failed(
                f"{disk} of server {ctx.server} is not in {ctx.directories.path(ctx.server)} on {ctx.host.name}",
                code="missing",
            )
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None and guest.mark is not None and guest.mark.move == ctx.move:
        ctx.effect("unmark_guest")
        ctx.fence()
        ctx.hypervisor.unmark(ctx.server)
    ctx.effect("kept")
    return {}
