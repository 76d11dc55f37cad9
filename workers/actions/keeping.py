"""The action that makes a copy the server's own: it deletes the disks' marker and takes the mark off the guest."""

from __future__ import annotations

from typing import Any

from droveway.wire.commands import KeepCopy
from droveway.workers.actions.ownership import set_aside_name
from droveway.workers.actions.table import action
from droveway.workers.context import Context
from droveway.workers.directories import MARKER


@action()
def keep_copy(ctx: Context, details: KeepCopy) -> dict[str, Any]:
    """Make this move's copy the server's own: delete the marker beside its disks, then take the mark off the guest.

    Nothing is renamed here: the name ``<uuid>_keep-<move>`` is for what a confirm or `rename_copy` keeps.  No move
    deletes disks without a marker, or a guest without a mark.  A host that was away may get this command when another
    move of the server has begun, so the disks may also be set aside.  Raises StepError (``missing``) for a disk of
    ``disks`` that is not there.
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
