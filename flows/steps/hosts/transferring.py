"""Defines the host steps that copy a server's disks into another cell: between workers, or by the image service.

Both ways make the same copy, which is compared with what the source reads, and have the same undo.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from droveway.errors import DestinationFault, StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.step import Where
from droveway.flows.steps import images, moved_images
from droveway.flows.steps.hosts import copying, host
from droveway.flows.steps.hosts.command import HostStep, has_disks, probe_name, query_host, same_directory
from droveway.flows.steps.moved_images import goes_by_image, is_uploaded
from droveway.persistence.journal import transfers
from droveway.wire import commands

PROBE: Final = "probe_transfer"
UPLOAD: Final = "upload_disks"
DOWNLOAD: Final = "download_disks"

_FLATTENED: Final = commands.UploadDisks(disks=[], aside=True)
"""The details by which the source removes the flattened disks that it had made for an upload."""


class FindStorage(host.FindStorage):
    """Finds the storage, and decides how the disks are transferred, while the guest still runs."""

    extra_actions = (PROBE,)
    does = "look for the destination's probe: is the storage shared? Else choose the way for the disks"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Decide how the disks are transferred; the result has the way and the reason, and the move's row has the way.

        Raises DestinationFault (``source-unreachable``) where the destination cannot get the disks.
        """
        found = dict(super().perform(ctx) or {})
        way, why = _way(ctx, found["variant"])
        with ctx.run.write() as session:
            session.get_one(type(ctx.move), ctx.move.id).transfer = way or None
        return found | {"transfer": way, "why": why}

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Return what was found out before the journal was put back."""
        return super().passed_by(ctx) | {"transfer": ctx.move.transfer or "", "why": ""}


class UploadDisks(HostStep):
    """Uploads the disks that were set aside into their images, and compares what the image service has then."""

    where = Where.SOURCE
    deadline = copying.DEADLINE
    does = "upload the disks, flattened; compare what the image service has then"
    undoes = "remove the flattened disks"
    gives = "uploaded"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Upload the disks; there is nothing to do where they go directly and are not kept as images."""
        return super().perform(ctx) if is_uploaded(ctx) else {"disks": []}

    def undo(self, ctx: Context) -> None:
        """Have the source remove what it flattened; the undo of `create_images` deletes the images."""
        if is_uploaded(ctx) or ctx.run.is_behind():
            super().undo(ctx)

    def details(self, ctx: Context) -> commands.UploadDisks:
        """Name each disk and the image that it goes into."""
        wanted = moved_images.of_disks(ctx.move, ctx.destination.attempt)
        return commands.UploadDisks(
            disks=[commands.ImageOfDisk(disk=disk, image=image) for disk, image in wanted.items()], aside=True
        )

    def undo_evacuated(self, ctx: Context) -> None:
        """Have the source remove the flattened disks, which are only the move's; a source that is away owes it."""
        try:
            self.undo(ctx)
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise
            self.owe(ctx, self.undo_details(ctx))


class CopyDisks(copying.CopyDisks):
    """Has the destination make its own verified copy, from the source or from the images of the disks."""

    does = "copy the disks, from the source or from their images; verify them"
    needs = ("storage", "uploaded")
    extra_actions = (*copying.CopyDisks.extra_actions, DOWNLOAD)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Copy the disks, and then have the source remove the flattened ones, which nobody needs any more.

        A server without disks gets an empty directory, for which the source is not asked.
        """
        empty = not (has_disks(ctx) or same_directory(ctx))
        copied = self._download(ctx) if empty or goes_by_image(ctx) else super().perform(ctx)
        if empty:
            return {**(copied or {}), "variant": "volume"}
        if is_uploaded(ctx):
            self._remove_flattened(ctx)
        return copied

    def undo(self, ctx: Context) -> None:
        """Delete the copy, and have the source remove the flattened disks.

        Where the flow failed before this step, the undo of `upload_disks` does the latter.
        """
        super().undo(ctx)
        if is_uploaded(ctx):
            self._remove_flattened(ctx)

    def pulls(self, ctx: Context) -> bool:
        """Tell whether the source offers its disks: there are some, and they do not go through images."""
        return has_disks(ctx) and not goes_by_image(ctx) and super().pulls(ctx)

    def _download(self, ctx: Context) -> dict[str, Any]:
        details = downloaded(ctx, ctx.inputs["uploaded"].get("disks") or [])
        return ctx.command(self.host(ctx), DOWNLOAD, details, deadline=self.deadline)

    def _remove_flattened(self, ctx: Context) -> None:
        source = ctx.move.source_host
        try:
            ctx.command(source, UPLOAD, _FLATTENED, direction="revert", part="flattened")
        except StepError as error:
            if error.error_code != DECLARED_DOWN:
                raise
            ctx.owe(source, UPLOAD, _FLATTENED, deadline=self.deadline, direction="revert")


def downloaded(ctx: Context, uploaded: list[dict[str, Any]]) -> commands.DownloadDisks:
    """Name the images that a host is to download, by what `UploadDisks` returned as ``uploaded``.

    Raises StepError (``image-gone``) unless the images hold now what the source put into them, and all disks are among
    them.  Otherwise a copy that lacks disks would pass for a whole one.
    """
    if {disk["disk"] for disk in uploaded} != moved_images.of_disks(ctx.move, ctx.destination.attempt).keys():
        raise StepError(
            f"the journal does not say what was uploaded of each disk of server {ctx.move.server_name}",
            code="image-gone",
        )
    wanted = []
    for disk in uploaded:
        image = images.require_whole(ctx, disk["image"], size=disk["size"], checksum=disk["checksum"])
        wanted.append(
            commands.DownloadedDisk(
                disk=disk["disk"],
                image=disk["image"],
                size=disk["size"],
                checksum=disk["checksum"],
                algorithm=image.algorithm,
                format=disk["format"],
            )
        )
    return commands.DownloadDisks(disks=wanted, probe=probe_name(ctx))


def _way(ctx: Context, variant: str) -> tuple[str, str]:
    """Decide how the disks are transferred, and say why; an empty way where none have to be.

    The ways are those of `droveway.persistence.journal.transfers`.
    """
    asked, source, destination = ctx.move.transfer_asked, ctx.move.source_host, ctx.destination.host
    if ctx.move.keep_image:
        images.service(ctx)
    if variant != "copy":
        return "", "no disk has to go from host to host"
    if asked == transfers.IMAGE:
        images.service(ctx)
        return transfers.IMAGE, "it was asked for"
    reached = _reached(ctx, source, destination)
    if reached.reached:
        return transfers.DIRECT, f"{destination} reaches the transfer port of {source}"
    why = f"{destination} does not reach the transfer port of {source} ({reached.why})"
    if asked == transfers.DIRECT:
        raise DestinationFault(
            f"{why}, and the disks are to go directly: ask for --transfer image, or auto",
            code="source-unreachable",
            host=destination,
        )
    if ctx.run.cloud.images is None:
        raise DestinationFault(
            f"{why}, and no image service is configured: open that port to it, or fill in [glance]",
            code="source-unreachable",
            host=destination,
        )
    return transfers.IMAGE, why


def _reached(ctx: Context, source: str, destination: str) -> commands.Reached:
    worker = ctx.run.workers().get(source)
    if worker is None:
        return commands.Reached(reached=False, why=f"the worker of {source} is away")
    details = commands.ProbeTransfer(source=source, address=worker.address)
    return msgspec.convert(query_host(ctx, destination, PROBE, part="transfer", details=details), type=commands.Reached)
