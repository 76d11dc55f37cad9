"""All that a worker may ask of the cloud: what the references in its commands stand for, and images."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from droveway.clients.image import ACTIVE, GONE, QUEUED, SAVING, Data, ImageRecord, Images
from droveway.clients.volume import Volumes
from droveway.errors import StepError

__all__ = ["ACTIVE", "GONE", "QUEUED", "SAVING", "Data", "ImageRecord", "References"]


class References:
    """Resolves references with the worker's own service credential.

    What needs an image raises `droveway.errors.StepError` ``no-image-service`` where nobody said how Glance is reached,
    and ``image-gone`` for an image that is not there.
    """

    def __init__(self, volumes: Volumes, images: Images | None) -> None:
        self._volumes = volumes
        self._images = images

    def connection_info(self, attachment: str) -> dict[str, Any]:
        """How this host reaches the volume of the attachment, as os-brick takes it. May hold a secret.

        Raises `droveway.errors.StepError` ``volume-unconnected`` when the volume is exported to no host.
        """
        return self._volumes.connection_info(attachment)

    def image(self, image: str) -> ImageRecord:
        """The image as it is now."""
        return self._glance().require(image)

    def upload_image(self, image: str, data: Data) -> None:
        """Give the image these bytes, unless it has its data or somebody is about to give it."""
        self._glance().upload(image, data)

    def download_image(self, image: str, offset: int) -> Generator[bytes, None, None]:
        """The image's bytes from ``offset`` on, part by part; whoever stops before the end closes it."""
        return self._glance().download(image, offset)

    def _glance(self) -> Images:
        if self._images is None:
            raise StepError(
                "this host has no image service: say in [glance] of its configuration how Glance is reached",
                code="no-image-service",
            )
        return self._images
