"""Defines the host steps of an unshelve: the root disk comes from an image, and no other host takes part."""

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
    """Has the destination download the root disk; a server whose root disk is a volume gets an empty directory."""

    action = "download_disks"
    where = Where.DESTINATION
    deadline = DEADLINE
    does = "download the root disk, verify it"
    undoes = "delete it; the image stays"

    def undo(self, ctx: Context) -> None:
        """Delete what was downloaded, once the image was seen whole or the server is to be deleted.

        When a user deletes a shelved server, Nova deletes the image too.  So the image of a server that is to be
        deleted is not looked for.  Two things say that the server is to be deleted: the move's request and the server's
        rows.  The rows alone are not enough: if the server was mapped to the other cell when the user deleted it, its
        rows in this cell stay until the move ends.
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
        """Tell whether the downloaded disk may be whole: it was proved so, or has its final name by now."""
        return ctx.result is not None or bool(describe(ctx, self.host(ctx), part="copy").disks)

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Remove the storage probe, which the destination's check has written again.

        A copy removes the probe when it is done, but the disks are copied already and are not copied again.
        """
        forget_probe(ctx, self.host(ctx))
        return {}

    def details(self, ctx: Context) -> commands.DownloadDisks:
        """Name the image as `record_before` found it."""
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
    """Starts the guest: the point of no return; no other host has anything of the server."""

    states = starting.UNSHELVE

    def prove_off(self, ctx: Context) -> None:
        """Prove nothing: the rows, which are read before each start, name this host, so no other can run the guest."""
