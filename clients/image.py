"""Glance: the images that servers are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from droveway.clients.rest import CONFLICT, NOT_FOUND, Adapter, Rest


@dataclass(frozen=True)
class ImageRecord:
    """An image; ``size`` in bytes, None before its data has come. ``properties`` holds ``trait:NAME`` and the like."""

    id: str
    name: str
    size: int | None
    min_disk_gb: int
    properties: dict[str, str]


class Images:
    """Glance; ``adapter`` is openstacksdk's ``connection.image`` or the embedded service.

    Every verb may be repeated and raises `droveway.errors.StepError` ``image-unavailable`` or ``image-failed``.
    """

    def __init__(self, adapter: Adapter, *, on_request: Callable[[str, str], None] | None = None) -> None:
        self._rest = Rest(adapter, "image", on_request)

    def images(self) -> list[ImageRecord]:
        """Every image, by id."""
        found: list[ImageRecord] = []
        path: str | None = "/images"
        while path:
            page = self._rest.get(path)
            found += [_image(row) for row in page["images"]]
            path = page.get("next", "").removeprefix("/v2")
        return sorted(found, key=lambda image: image.id)

    def create(self, image: str, *, name: str, min_disk_gb: int, properties: Mapping[str, str]) -> None:
        """Make an image under an id of our own choosing, still without data; done when it exists."""
        body = {
            **properties,
            "id": image,
            "name": name,
            "min_disk": min_disk_gb,
            "disk_format": "raw",
            "container_format": "bare",
        }
        response = self._rest.repeat(lambda: self._rest.send("POST", "/images", json=body))
        if response.status_code != CONFLICT:
            self._rest.done("POST", "/images", response)

    def upload(self, image: str, file: Path) -> None:
        """Give the image the file's bytes, unless it has its data."""
        row = self._rest.get(f"/images/{image}")
        if row["status"] == "active":
            return
        path = f"/images/{image}/file"

        def send() -> Any:
            with file.open("rb") as data:
                return self._rest.send("PUT", path, data=data, headers={"Content-Type": "application/octet-stream"})

        response = self._rest.repeat(send)
        if response.status_code != CONFLICT:
            self._rest.done("PUT", path, response)

    def delete(self, image: str) -> None:
        """Remove the image; done when it is gone."""
        path = f"/images/{image}"
        response = self._rest.repeat(lambda: self._rest.send("DELETE", path))
        if response.status_code != NOT_FOUND:
            self._rest.done("DELETE", path, response)


# What Glance itself says of an image; all else was set by somebody as a property.
_OWN: Final = frozenset({
    "checksum", "container_format", "created_at", "direct_url", "disk_format", "file", "id", "locations", "min_disk",
    "min_ram", "name", "os_hash_algo", "os_hash_value", "os_hidden", "owner", "protected", "schema", "self", "size",
    "status", "stores", "tags", "updated_at", "virtual_size", "visibility",
})  # fmt: skip


def _image(row: Mapping[str, Any]) -> ImageRecord:
    return ImageRecord(
        id=row["id"],
        name=row["name"] or "",
        size=row["size"],
        min_disk_gb=row["min_disk"],
        properties={key: str(value) for key, value in row.items() if key not in _OWN},
    )
