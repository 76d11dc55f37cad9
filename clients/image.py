"""Glance: the images that servers are made from, and those that hold a server's disks for a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from oslo_utils import units

from droveway import deadlines
from droveway.clients.rest import ATTEMPTS, CONFLICT, NOT_FOUND, Adapter, Rest
from droveway.errors import StepError

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG = logging.getLogger(__name__)

QUEUED: Final = "queued"
"""The status of an image without data, also of one whose upload broke off."""
SAVING: Final = "saving"
"""The status of one whose data is on its way."""
ACTIVE: Final = "active"
"""The status of one that has its data, which nobody can change any more."""

GONE: Final = "image-gone"
"""The code of the StepError for an image that is not there."""

CHUNK: Final = units.Mi
"""Bytes that are sent or received at once."""

CHUNK_WITHIN: Final = 30.0
"""Seconds after which a chunk that does not come counts as lost."""

_PARTIAL: Final = 206


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image; ``size`` in bytes, None before its data has come. ``properties`` holds ``trait:NAME`` and the like."""

    id: str
    name: str
    size: int | None
    min_disk_gb: int
    properties: dict[str, str]
    status: str
    disk_format: str
    checksum: str
    """Of its bytes, as hexadecimal digits, by ``algorithm``; both are empty before they have come."""
    algorithm: str
    owner: str
    visibility: str


class Data(Protocol):
    """Bytes of known length that can be read again from their beginning, for an upload that has to be repeated."""

    def __len__(self) -> int:
        """How many bytes there are."""

    def __iter__(self) -> Iterator[Buffer]:
        """All of them, begun anew; each part may be overwritten once the next one is asked for."""


class Images:
    """Glance; ``adapter`` is openstacksdk's ``connection.image`` or the embedded service.

    Every verb may be repeated and raises `droveway.errors.StepError` ``image-unavailable`` or ``image-failed``; those
    that need an image raise ``image-gone`` when it is not there.
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

    def find(self, image: str) -> ImageRecord | None:
        """The image as it is now; None when it is not there."""
        path = f"/images/{image}"
        response = self._rest.repeat(lambda: self._rest.send("GET", path))
        if response.status_code == NOT_FOUND:
            return None
        return _image(self._rest.done("GET", path, response).json())

    def require(self, image: str) -> ImageRecord:
        """The image as it is now; raises ``image-gone`` when it is not there."""
        found = self.find(image)
        if found is None:
            raise _gone(image)
        return found

    def create(
        self,
        image: str,
        *,
        name: str,
        min_disk_gb: int,
        properties: Mapping[str, str],
        disk_format: str = "raw",
        owner: str | None = None,
        visibility: str | None = None,
    ) -> None:
        """Make an image under an id of our own choosing, still without data; done when it exists.

        Without ``owner`` and ``visibility`` they are those that the service gives to what this user makes.
        """
        body = {
            **properties,
            "id": image,
            "name": name,
            "min_disk": min_disk_gb,
            "disk_format": disk_format,
            "container_format": "bare",
        }
        body |= {key: value for key, value in (("owner", owner), ("visibility", visibility)) if value is not None}
        response = self._rest.repeat(lambda: self._rest.send("POST", "/images", json=body))
        if response.status_code != CONFLICT:
            self._rest.done("POST", "/images", response)

    def upload(self, image: str, data: Path | Data) -> None:
        """Give the image these bytes, unless it has its data or somebody is about to give it: see then what it has."""
        path = f"/images/{image}/file"
        body = _Body(_File(data) if isinstance(data, Path) else data)
        headers = {"Content-Type": "application/octet-stream"}

        def send() -> Any:
            # Looked at each time: what broke off may have arrived, and a whole disk is not sent in vain.
            if self.require(image).status != QUEUED:
                return None
            return self._rest.send("PUT", path, data=body, headers=headers)

        response = self._rest.repeat(send)
        if response is not None and response.status_code == NOT_FOUND:
            raise _gone(image)
        if response is not None and response.status_code != CONFLICT:
            self._rest.done("PUT", path, response)

    def download(self, image: str, offset: int = 0) -> Generator[bytes, None, None]:
        """The image's bytes from ``offset`` on, part by part; a stream that breaks off is gone on with where it ended.

        Whoever stops before the end closes it.
        """
        failures = 0
        while True:
            try:
                for chunk in self._stream(image, offset):
                    failures = 0
                    offset += len(chunk)
                    yield chunk
            except _CutError as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise StepError(
                        f"the image service broke off {ATTEMPTS} times while it gave image {image} ({error}): look at "
                        "its log",
                        code="image-unavailable",
                    ) from None
                LOG.info("The image service broke off at byte %s of image %s: %s", offset, image, error)
            else:
                return

    def delete(self, image: str) -> None:
        """Remove the image; done when it is gone."""
        path = f"/images/{image}"
        response = self._rest.repeat(lambda: self._rest.send("DELETE", path))
        if response.status_code != NOT_FOUND:
            self._rest.done("DELETE", path, response)

    def _stream(self, image: str, offset: int) -> Iterator[bytes]:
        path = f"/images/{image}/file"
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        response = self._rest.repeat(lambda: self._rest.send("GET", path, headers=headers, stream=True))
        with contextlib.closing(response):
            if response.status_code == NOT_FOUND:
                raise _gone(image)
            self._rest.done("GET", path, response)
            chunks = _received(response)
            if response.status_code != _PARTIAL:
                yield from _behind(chunks, offset)
                return
            where = response.headers.get("Content-Range", "")
            if not where.startswith(f"bytes {offset}-"):
                raise StepError(
                    f"the image service was asked for image {image} from byte {offset} on and gave {where!r}",
                    code="image-failed",
                )
            yield from chunks


class _CutError(Exception):
    """A stream broke off, or went silent."""


class _File:
    """A whole file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while data := file.read(CHUNK):
                yield data


class _Body:
    """What is sent, by whoever repeats it begun anew: it may take as long as it is, while no part takes too long."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Buffer]:
        for part in self._data:
            deadlines.renew()
            yield part
            deadlines.renew()


def _received(response: Any) -> Iterator[bytes]:
    """What comes, each part in time; raises `_CutError`."""
    parts = response.iter_content(CHUNK)
    while True:
        try:
            with deadlines.within(CHUNK_WITHIN):
                part = next(parts, b"")
        except OSError as error:  # requests' own errors are such too
            raise _CutError(str(error)) from None
        if not part:
            return
        yield part


def _behind(chunks: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """What of the chunks lies behind the offset: of a service that knows no ranges."""
    for chunk in chunks:
        if offset < len(chunk):
            yield chunk[offset:]
        offset = max(0, offset - len(chunk))


def _gone(image: str) -> StepError:
    return StepError(f"image {image} is not in the image service any more", code=GONE)


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
        status=row["status"],
        disk_format=row.get("disk_format") or "",
        checksum=row.get("os_hash_value") or "",
        algorithm=row.get("os_hash_algo") or "",
        owner=row.get("owner") or "",
        visibility=row.get("visibility") or "",
    )
