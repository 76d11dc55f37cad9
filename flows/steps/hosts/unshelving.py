"""The host steps of an unshelve: disks come from an image, and no other host is asked."""

from __future__ import annotations

from typing import Any

from droveway.errors import StepError
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.step import Where
from droveway.flows.steps import images
from droveway.flows.steps.hosts import host, starting
from droveway.flows.steps.hosts.command import HostStep, describe, forget_probe, probe_name
from droveway.flows.steps.hosts.copying import DEADLINE
from droveway.flows.steps.rows import is_deleted
from droveway.wire import commands


class CopyDisks(HostStep):
    """The destination makes the root disk from the image; a server on a volume gets an empty directory."""

    action = "download_disks"
    where = Where.DESTINATION
    deadline = DEADLINE
    does = "download the root disk, verify it"
    undoes = "delete it; the image stays"

    def undo(self, ctx: Context) -> None:
        """Delete what was downloaded once the image was seen whole, or nobody needs it any more.

        A server that its user deleted while it was mapped to the other cell has its rows in this one until the move's
        end, and its image went with the request.
        """
        image = before(ctx.move).image
        if image is not None and not (ctx.move.delete_requested or is_deleted(ctx)):
            try:
                images.require_whole(ctx, image.image, size=image.size, checksum=image.checksum)
            except StepError as error:
                if not self._may_be_whole(ctx):
                    super().undo(ctx)
                    return
                raise StepError(
                    f"{error.message}, so the copy on {self.host(ctx)} is not deleted: it may be all that there is",
                    code="last-copy",
                    host=self.host(ctx),
                ) from None
        super().undo(ctx)

    def _may_be_whole(self, ctx: Context) -> bool:
        """Whether the copy was proved, or has its name by now: a part of one is worth nothing without its image."""
        return ctx.result is not None or bool(describe(ctx, self.host(ctx), part="copy").disks)

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """The storage probe, which the check of the destination wrote anew, goes as it does after a copy."""
        forget_probe(ctx, self.host(ctx))
        return {}

    def details(self, ctx: Context) -> commands.DownloadDisks:
        """The image as `record_before` found it."""
        image = before(ctx.move).image
        wanted = (
            []
            if image is None
            else [
                commands.DownloadedDisk(
                    disk=images.ROOT,
                    image=image.image,
                    size=image.size,
                    checksum=image.checksum,
                    algorithm=image.algorithm,
                    format=image.format,
                )
            ]
        )
        return commands.DownloadDisks(disks=wanted, probe=probe_name(ctx))


class StartGuest(host.StartGuest):
    """The point of no return; no other host has anything of the server."""

    states = starting.UNSHELVE

    def prove_off(self, ctx: Context) -> None:
        """Nobody else could run it: its rows, which are read before each start, name this host alone."""
