"""Defines the steps on the images of a server's disks while it moves into another cell: one image for each disk.

An image's id is derived from move, alternate and disk: a repeated step makes no second image, and finds the first one.
"""

from __future__ import annotations

import logging
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
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.journal import debts, transfers
from droveway.persistence.journal.moves import LEFT
from droveway.persistence.journal.tables import Move
from droveway.printable import SHORT
from droveway.wire.values import SWAP

LOG = logging.getLogger(__name__)

_DISK: Final = "droveway_disk"


def goes_by_image(ctx: Context) -> bool:
    """Tell whether the disks go through the image service, as `find_storage` decided for this alternate."""
    return ctx.move.transfer == transfers.IMAGE


def is_uploaded(ctx: Context) -> bool:
    """Tell whether the server has disks, and each becomes an image."""
    return (goes_by_image(ctx) or ctx.move.keep_image) and has_disks(ctx)


def of_disks(move: Move, attempt: int) -> dict[str, str]:
    """Return the disks that are copied, each with the id of its image on this alternate; swap is made anew instead."""
    return {
        disk.name: str(uuid.uuid5(uuid.UUID(move.id), f"{attempt}.{disk.name}"))
        for disk in before(move).guest.disks
        if disk.name != SWAP
    }


def kept(move: Move) -> list[str]:
    """Return the ids of the images that a move keeps until its end; empty where it keeps none.

    A move that ends before it has recorded its server has made no image.
    """
    recorded = move.keep_image and move.before is not None
    return list(of_disks(move, move.attempt).values()) if recorded else []


def delete(ctx: Context, wanted: Iterable[str]) -> list[str]:
    """Delete those of the images that are there; raises StepError in an installation without an image service."""
    gone = list(wanted)
    for image in gone:
        with ctx.run.intent("image", f"delete {image}"):
            images.service(ctx).delete(image)
    return gone


class CreateImages(Step):
    """Makes an image without data for each disk that goes through the image service, or is kept there."""

    does = "make an image for each disk that is uploaded, still empty"
    undoes = "delete the images"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Make the images in the service's own project; their properties name the move, the server and the disk."""
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
        """Delete the images, whole or not.

        The step looks for them too where a journal was put back, which may not know that they were made.
        """
        if is_uploaded(ctx) or (ctx.run.is_behind() and ctx.run.cloud.images is not None):
            delete(ctx, of_disks(ctx.move, ctx.destination.attempt).values())

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete the move's images: Nova rebuilds the server from the image that the user once created it from."""
        self.undo(ctx)


class DeleteImages(Step):
    """Deletes the images once the destination has its own proved copy, unless the move is to keep them."""

    does = "delete the images that are not to be kept"
    no_undo = "nobody needs them any more; those that are kept are undone with create_images"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the images of this alternate; the images of earlier alternates went when those were undone."""
        wanted = list(of_disks(ctx.move, ctx.destination.attempt).values())
        if ctx.move.keep_image:
            return {"kept": wanted} if wanted else {}
        behind = ctx.run.is_behind() and ctx.run.cloud.images is not None
        if not (goes_by_image(ctx) or behind):
            return {}
        return {"images": delete(ctx, wanted)}


class DeleteKeptImages(Step):
    """Deletes the images that the move kept, if the server's disks are whole on the host that it stays on."""

    does = "delete the images that the move kept"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the images, or name those that stay with the reason; a move that keeps none has nothing to delete."""
        images_kept = kept(ctx.move)
        if images_kept and (why := _unproved(ctx)):
            LOG.warning("Move %s leaves its images %s: %s", ctx.move.id[:SHORT], ", ".join(images_kept), why)
            return {"kept": images_kept, "why": why}
        gone = delete(ctx, images_kept)
        return {"images": gone} if gone else {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Delete the images too where Nova has ended the move: Nova does not know them."""
        return outcome.noted(**self.perform(ctx))


def _unproved(ctx: Context) -> str:
    """Say why the images may hold the server's only whole disks; empty when a host has shown them, or nobody needs any.

    A host may be declared down, or be away when Nova has ended the move.  The flow goes on without it, and leaves the
    other copy until that host has shown its own.
    """
    if is_deleted(ctx):
        return ""
    with ctx.run.journal.read() as session:
        hosts = debts.unproved(session, ctx.move.id)
    if hosts:
        return f"host {' and '.join(hosts)} has not shown yet that its copy of the server is whole"
    left = [
        str(run.result[LEFT])
        for run in ctx.run.step_runs()
        if run.result is not None
        and LEFT in run.result
        and (run.flow_uuid, run.direction) == (ctx.run.flow_uuid, "execute")
    ]
    return f"this flow could not clear up: {left[0]}" if left else ""
