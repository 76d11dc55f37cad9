"""The host steps by which a server's disks go into another cell: from worker to worker, or through the image service.

Both ways end in the same copy, proved against what the source reads, and with the same undo.
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
"""What the source is told to remove what it had made for an upload."""


class FindStorage(host.FindStorage):
    """Besides, the way for the disks is found here, while their guest still runs."""

    extra_actions = (PROBE,)
    does = "look for the destination's probe: is the storage shared? Else choose the way for the disks"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Which way and why go into the result, and the way into the move's row.

        Raises DestinationFault (``source-unreachable``) where the destination would get no disks.
        """
        found = dict(super().perform(ctx) or {})
        way, why = _way(ctx, found["variant"])
        with ctx.run.write() as session:
            session.get_one(type(ctx.move), ctx.move.id).transfer = way or None
        return found | {"transfer": way, "why": why}

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """As it was found out then."""
        return super().passed_by(ctx) | {"transfer": ctx.move.transfer or "", "why": ""}


class UploadDisks(HostStep):
    """The images get the disks that were set aside, and say what they got."""

    where = Where.SOURCE
    deadline = copying.DEADLINE
    does = "upload the disks, flattened; compare what the image service has then"
    undoes = "remove what was flattened for that"
    gives = "uploaded"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Nothing of a server whose disks go directly, and are not kept as images."""
        return super().perform(ctx) if is_uploaded(ctx) else {"disks": []}

    def undo(self, ctx: Context) -> None:
        """The images themselves go with `create_images`."""
        if is_uploaded(ctx) or ctx.run.is_behind():
            super().undo(ctx)

    def details(self, ctx: Context) -> commands.UploadDisks:
        """Which disk goes into which image."""
        wanted = moved_images.of_disks(ctx.move, ctx.destination.attempt)
        return commands.UploadDisks(
            disks=[commands.ImageOfDisk(disk=disk, image=image) for disk, image in wanted.items()], aside=True
        )

    def undo_evacuated(self, ctx: Context) -> None:
        """It is the move's own and no disk of the server's; a host that is away owes it."""
        try:
            self.undo(ctx)
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise
            self.owe(ctx, self.undo_details(ctx))


class CopyDisks(copying.CopyDisks):
    """The destination makes its own verified copy, from the source or from the images of its disks."""

    does = "copy the disks, from the source or from their images; verify them"
    needs = ("storage", "uploaded")
    extra_actions = (*copying.CopyDisks.extra_actions, DOWNLOAD)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Once the copy is whole the source removes what it flattened: it would lie there until the move's end.

        A server without disks gets an empty directory, for which nobody has to reach the source.
        """
        apart = not (has_disks(ctx) or same_directory(ctx))
        copied = self._download(ctx) if apart or goes_by_image(ctx) else super().perform(ctx)
        if apart:
            return {**(copied or {}), "variant": "volume"}
        if is_uploaded(ctx):
            self._remove_flattened(ctx)
        return copied

    def undo(self, ctx: Context) -> None:
        """The same of what the source has, as it withdraws an offer; `upload_disks` does it where no copy was begun."""
        super().undo(ctx)
        if is_uploaded(ctx):
            self._remove_flattened(ctx)

    def pulls(self, ctx: Context) -> bool:
        """Not what comes from images, and not nothing."""
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
    """What a host is told to fetch of the disks that were ``uploaded``, as `UploadDisks` returned it.

    Raises StepError (``image-gone``) unless the images hold, now, what the source put into them, and hold all disks: an
    empty copy is soon made.
    """
    if {disk["disk"] for disk in uploaded} != moved_images.of_disks(ctx.move, ctx.destination.attempt).keys():
        raise StepError(
            f"nobody knows of all disks of server {ctx.move.server_name} what was uploaded",
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
    """By which way the disks go, and why: see `droveway.persistence.journal.transfers`; none where none have to go."""
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
