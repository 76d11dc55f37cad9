"""Steps on the images of a server's disks while it moves into another cell: one a disk, under ids of our own choosing.

An id follows from move, alternate and disk, so that whoever makes an image twice makes one, and whoever looks for it
needs no note.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from droveway.flows import outcome
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import images
from droveway.flows.steps.hosts.command import has_disks
from droveway.persistence.journal import transfers
from droveway.persistence.journal.tables import Move
from droveway.printable import SHORT
from droveway.wire.values import SWAP

_DISK: Final = "droveway_disk"


def goes_by_image(ctx: Context) -> bool:
    """Whether the disks go through the image service, as `find_storage` found out for this alternate."""
    return ctx.move.transfer == transfers.IMAGE


def is_uploaded(ctx: Context) -> bool:
    """Whether there are disks, and each becomes an image."""
    return (goes_by_image(ctx) or ctx.move.keep_image) and has_disks(ctx)


def of_disks(move: Move, attempt: int) -> dict[str, str]:
    """The disks that cross, each with the id of its image on this alternate; swap is made anew."""
    return {
        disk.name: str(uuid.uuid5(uuid.UUID(move.id), f"{attempt}.{disk.name}"))
        for disk in before(move).guest.disks
        if disk.name != SWAP
    }


def kept(move: Move) -> list[str]:
    """The ids of the images that a move keeps until its end."""
    return list(of_disks(move, move.attempt).values()) if move.keep_image else []


def delete(ctx: Context, wanted: Iterable[str]) -> list[str]:
    """Delete the images, those that are there; raises StepError in an installation without an image service."""
    gone = list(wanted)
    for image in gone:
        with ctx.run.intent("image", f"delete {image}"):
            images.service(ctx).delete(image)
    return gone


class CreateImages(Step):
    """An image without data waits for each disk that goes through the image service, or is kept there."""

    does = "make an image for each disk that is uploaded, still empty"
    undoes = "delete the images"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """They belong to nobody's project but the service's, and say whose move and which server's disk they hold."""
        move = ctx.move
        if not is_uploaded(ctx):
            return {}
        made = of_disks(move, ctx.destination.attempt)
        formats = {disk.name: disk.format for disk in before(move).guest.disks}
        for disk, image in made.items():
            with ctx.run.intent("image", f"create {image}"):
                images.service(ctx).create(
                    image,
                    name=f"{move.server_name}-{disk}-moved-{move.id[:SHORT]}",
                    min_disk_gb=0,
                    properties={"droveway_move": move.id, "instance_uuid": move.server, _DISK: disk},
                    disk_format=formats[disk],
                    visibility="private",
                )
        return {"images": made} if made else {}

    def undo(self, ctx: Context) -> None:
        """Delete them, whole or not; a journal that was put back may not know that they were made."""
        if is_uploaded(ctx) or (ctx.run.is_behind() and ctx.run.cloud.images is not None):
            delete(ctx, of_disks(ctx.move, ctx.destination.attempt).values())

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete them too: Nova builds the server anew from the image that it was made of."""
        self.undo(ctx)


class DeleteImages(Step):
    """The destination has its own proved copy, so that no image is needed that is not to be kept."""

    does = "delete the images that are not to be kept"
    no_undo = "nobody needs them any more; those that are kept are undone with create_images"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Those of this alternate; an earlier one's went with its undo."""
        wanted = list(of_disks(ctx.move, ctx.destination.attempt).values())
        if ctx.move.keep_image:
            return {"kept": wanted} if wanted else {}
        behind = ctx.run.is_behind() and ctx.run.cloud.images is not None
        if not (goes_by_image(ctx) or behind):
            return {}
        return {"images": delete(ctx, wanted)}


class DeleteKeptImages(Step):
    """The end of a move that kept images: the server's disks are whole on the host that it stays on."""

    does = "delete the images that the move kept"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Nothing of a move that keeps none."""
        gone = delete(ctx, kept(ctx.move))
        return {"images": gone} if gone else {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Nova, which ends the move by itself, knows nothing of them."""
        return outcome.noted(**self.perform(ctx))
