"""Gives a worker what it may ask of the cloud: how volumes are reached, and images.

A command for a worker holds only references: the ids of attachments in Cinder and of images in Glance. The worker looks
them up itself, so that no secret of a volume stands in a command.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from droveway.clients.image import ACTIVE, GONE, QUEUED, SAVING, Data, ImageRecord, Images
from droveway.clients.volume import Volumes
from droveway.errors import StepError

__all__ = ["ACTIVE", "GONE", "QUEUED", "SAVING", "Data", "ImageRecord", "References"]


class References:
    """Resolves references with the worker's own credentials.

    The methods for images raise `droveway.errors.StepError` ``no-image-service`` when the configuration does not say
    how Glance is reached, and ``image-gone`` for an image that does not exist.
    """

    def __init__(self, volumes: Volumes, images: Images | None) -> None:
        self._volumes = volumes
        self._images = images

    def connection_info(self, attachment: str) -> dict[str, Any]:
        """Return how this host reaches the attachment's volume, as os-brick takes it; it may hold a secret.

        Raises `droveway.errors.StepError` ``volume-unconnected`` when the volume is exported to no host.
        """
        return self._volumes.connection_info(attachment)

    def image(self, image: str) -> ImageRecord:
        """Return the image as it is now."""
        return self._glance().require(image)

    def upload_image(self, image: str, data: Data) -> None:
        """Send the image its data, unless it has data or another upload to it is under way."""
        self._glance().upload(image, data)

    def download_image(self, image: str, offset: int) -> Generator[bytes, None, None]:
        """Yield the image's bytes from ``offset`` on; a caller that stops before the end closes the generator."""
        return self._glance().download(image, offset)

    def _glance(self) -> Images:
        if self._images is None:
            raise StepError(
                "this host has no image service: say in [glance] of its configuration how Glance is reached",
                code="no-image-service",
            )
        return self._images
