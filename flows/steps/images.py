"""Defines the steps on the image of a shelved server, which holds the root disk until the server runs again.

The image's id is derived from the move's id: a repeated step makes no second image, and finds the first one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from droveway.clients.image import ACTIVE
from droveway.errors import StepError
from droveway.flows.before import before, shows_disks
from droveway.flows.run import DECLARED_DOWN, Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import describe
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.nova import servers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from droveway.clients.image import ImageRecord, Images

ROOT: Final = "disk"
"""The name of the root disk, the one that an image holds."""

_OF_IMAGE: Final = "image_"
"""The prefix of the system metadata that describe the image that a server was made from."""
_OWN_FIELDS: Final = frozenset({"min_ram", "min_disk", "disk_format", "container_format"})
_NOT_INHERITED: Final = frozenset({
    "bittorrent", "cache_in_nova", "img_signature", "img_signature_certificate_uuid", "img_signature_hash_method",
    "img_signature_key_type",
})  # fmt: skip
"""The defaults of Nova's `non_inheritable_image_properties`, and the properties of an image's signature."""


def image_of(move: str) -> str:
    """Return the id of the image that a shelve with this move id makes."""
    return str(uuid.uuid5(uuid.UUID(move), ROOT))


def service(ctx: Context) -> Images:
    """Return the image service; raises StepError (``no-image-service``) in an installation without one."""
    images = ctx.run.cloud.images
    if images is None:
        raise StepError(
            f"no image service is configured for server {ctx.move.server_name}: fill in [glance] on this conductor's "
            "machine",
            code="no-image-service",
        )
    return images


def find(ctx: Context, image: str) -> ImageRecord:
    """Return the image; raises StepError (``image-gone``) where it is not there or its data are not whole."""
    found = service(ctx).find(image)
    if found is None or found.status != ACTIVE:
        state = "is gone" if found is None else f"is {found.status} and not active"
        raise StepError(f"image {image} of server {ctx.move.server_name} {state}", code="image-gone")
    return found


def require_whole(ctx: Context, image: str, *, size: int, checksum: str) -> ImageRecord:
    """Return the image; raises StepError (``image-gone``) unless it holds, now, what was put into it."""
    found = find(ctx, image)
    if (found.size, found.checksum) != (size, checksum):
        raise StepError(
            f"image {image} of server {ctx.move.server_name} is not what was put into it: it has {found.size} bytes "
            f"with the checksum {found.checksum or 'none'}",
            code="image-gone",
        )
    return found


class CreateImages(Step):
    """Makes an image without data for the root disk; a server whose root disk is a volume needs none."""

    does = "make an image for the root disk, still empty"
    undoes = "delete the image"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Make the image with the name, owner and properties that Nova gives a snapshot of the server."""
        record, move = before(ctx.move), ctx.move
        if record.boot_from_volume:
            return {}
        with ctx.run.cells.database(ctx.cell).read() as session:
            metadata = servers.system_metadata(session, move.server)
        image = image_of(move.id)
        root = next((disk.format for disk in record.guest.disks if disk.name == ROOT), "raw")
        with ctx.run.intent("image", f"create {image}"):
            service(ctx).create(
                image,
                name=f"{move.server_name}-shelved",
                min_disk_gb=int(metadata.get(f"{_OF_IMAGE}min_disk") or 0),
                properties=_properties(metadata, record.user_id, record.project_id, move.server, move.id),
                disk_format=root,
                owner=record.project_id,
                visibility="private",
            )
        return {"image": image}

    def undo(self, ctx: Context) -> None:
        """Delete the image once the source has shown the disks; it stays where the source is declared down."""
        image = image_of(ctx.move.id)
        if not before(ctx.move).boot_from_volume and self._may_go(ctx, image):
            _delete(ctx, image)

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete the shelve's image: Nova rebuilds the server from the image that the user once created it from."""
        if not before(ctx.move).boot_from_volume:
            _delete(ctx, image_of(ctx.move.id))

    def _may_go(self, ctx: Context, image: str) -> bool:
        """Tell whether nobody needs the image: it holds a part of a disk only, or the source has the disks too."""
        found = service(ctx).find(image)
        return found is None or found.status != ACTIVE or is_deleted(ctx) or _has_disks(ctx, ctx.move.source_host)


class DeleteImages(Step):
    """Deletes the image once the server runs on disks of its own."""

    does = "delete the shelved server's image"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete the image once the host shows the disks; it stays where the host is declared down.

        The image of a server that Nova has deleted meanwhile is deleted without a look at a host.
        """
        image = before(ctx.move).image
        if image is None:
            return {}
        if not _is_gone(ctx) and not _has_disks(ctx, ctx.destination.host):
            return {"kept": image.image}
        _delete(ctx, image.image)
        return {"image": image.image}


def _is_gone(ctx: Context) -> bool:
    """Tell whether the server's rows are deleted.

    A server in task_state `deleting` does not count, since it may still need its image.  The argument ``deleting``
    means just that.
    """
    with ctx.run.cells.database(ctx.cell).reading() as connection:
        return servers.is_deleted_or_deleting(connection, ctx.move.server, deleting=True)


def _has_disks(ctx: Context, host: str) -> bool:
    """Tell whether the host shows the server's disks whole, now; False where it is declared down.

    Raises StepError (``last-copy``) where the host answers and does not have them whole.
    """
    try:
        guest = describe(ctx, host, part="disks")
    except StepError as error:
        if error.error_code != DECLARED_DOWN:
            raise
        return False
    if not shows_disks(guest, before(ctx.move)):
        raise StepError(
            f"host {host} does not hold the disks of server {ctx.move.server_name} whole, so its image is not "
            "deleted: it may be all that there is",
            code="last-copy",
            host=host,
        )
    return True


def _delete(ctx: Context, image: str) -> None:
    with ctx.run.intent("image", f"delete {image}"):
        service(ctx).delete(image)


def _properties(metadata: Mapping[str, str], user: str, project: str, server: str, move: str) -> dict[str, str]:
    inherited = {
        name: value
        for key, value in metadata.items()
        if key.startswith(_OF_IMAGE) and (name := key.removeprefix(_OF_IMAGE)) not in _OWN_FIELDS | _NOT_INHERITED
    }
    return {
        **inherited,
        "image_type": "snapshot",
        "image_location": "snapshot",
        "image_state": "available",
        "instance_uuid": server,
        "owner_id": project,
        "user_id": user,
        "droveway_move": move,
    }
