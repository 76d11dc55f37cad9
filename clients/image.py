"""Speaks to Glance: the images that servers are made from, and those that hold a server's disks for a time."""

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
"""The status of an image that has no data, or whose upload broke off."""
SAVING: Final = "saving"
"""The status of an image whose data is being uploaded."""
ACTIVE: Final = "active"
"""The status of an image that has its data, which cannot be changed any more."""

GONE: Final = "image-gone"
"""The code of the StepError for an image that does not exist."""

CHUNK: Final = units.Mi
"""The bytes of a chunk, the part of an image that is sent or received at once."""

CHUNK_WITHIN: Final = 30.0
"""Seconds after which a chunk that has not arrived counts as lost."""

_PARTIAL: Final = 206
_NO_SUCH_RANGE: Final = 416


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image; ``size`` is in bytes, None while it has no data. ``properties`` holds ``trait:NAME`` and the like."""

    id: str
    name: str
    size: int | None
    min_disk_gb: int
    properties: dict[str, str]
    status: str
    disk_format: str
    checksum: str
    """The checksum of its data in hexadecimal digits, made by ``algorithm``; both are empty while it has no data."""
    algorithm: str
    owner: str
    visibility: str


class Data(Protocol):
    """Bytes of known length that can be read again from their beginning, for an upload that has to be repeated."""

    def __len__(self) -> int:
        """Return the number of bytes."""

    def __iter__(self) -> Iterator[Buffer]:
        """Yield all bytes from the beginning; a part is valid until the next one is asked for."""


class Images:
    """The client of Glance; ``adapter`` is openstacksdk's ``connection.image`` or the embedded service.

    Every method may be repeated. All raise `droveway.errors.StepError` with the codes ``image-unavailable`` and
    ``image-failed``; those that need an image raise ``image-gone`` when it does not exist.
    """

    def __init__(self, adapter: Adapter, *, on_request: Callable[[str, str], None] | None = None) -> None:
        self._rest = Rest(adapter, "image", on_request)

    def images(self) -> list[ImageRecord]:
        """Return every image, sorted by id."""
        found: list[ImageRecord] = []
        path: str | None = "/images"
        while path:
            page = self._rest.get(path)
            found += [_image(row) for row in page["images"]]
            path = page.get("next", "").removeprefix("/v2")
        return sorted(found, key=lambda image: image.id)

    def find(self, image: str) -> ImageRecord | None:
        """Return the image as it is now; None when it does not exist."""
        path = f"/images/{image}"
        response = self._rest.repeat(lambda: self._rest.send("GET", path))
        if response.status_code == NOT_FOUND:
            return None
        return _image(self._rest.done("GET", path, response).json())

    def require(self, image: str) -> ImageRecord:
        """Return the image as it is now; raises ``image-gone`` when it does not exist."""
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
        """Make an image without data under this id; nothing is done when it exists.

        Where ``owner`` and ``visibility`` are not given, Glance sets those of this user's images.
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
        """Send the image its data, unless it has data or another upload to it is under way.

        The caller has to look at the image afterwards, since the data of another upload may be different.
        """
        path = f"/images/{image}/file"
        body = _Body(_File(data) if isinstance(data, Path) else data)
        headers = {"Content-Type": "application/octet-stream"}

        def send() -> Any:
            # Glance may have received all of an upload whose answer was lost. Then the whole disk is not sent again.
            if self.require(image).status != QUEUED:
                return None
            return self._rest.send("PUT", path, data=body, headers=headers)

        response = self._rest.repeat(send)
        if response is not None and response.status_code == NOT_FOUND:
            raise _gone(image)
        if response is not None and response.status_code != CONFLICT:
            self._rest.done("PUT", path, response)

    def download(self, image: str, offset: int = 0) -> Generator[bytes, None, None]:
        """Yield the image's bytes from ``offset`` on, part by part.

        A stream that breaks off is asked for again from where it ended. A caller that stops before the end closes the
        generator.
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
        """Delete the image; nothing is done when it does not exist."""
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
            if response.status_code == _NO_SUCH_RANGE and self.require(image).size == offset:
                return  # the stream before broke off behind the last byte
            self._rest.done("GET", path, response)
            chunks = _received(response)
            if response.status_code != _PARTIAL:  # no range was asked for, or the service knows none
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
    """A download broke off, or no chunk came in time."""


class _File:
    """The bytes of a whole file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while data := file.read(CHUNK):
                yield data


class _Body:
    """The body of an upload, which a repeated request reads from its beginning.

    The upload may last as long as it needs: each chunk gives the request all the seconds of its time-out again.
    """

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
    """Yield the parts of a response; raises `_CutError` when one does not come in time."""
    parts = response.iter_content(CHUNK)
    while True:
        try:
            with deadlines.within(CHUNK_WITHIN):
                part = next(parts, b"")
        except OSError as error:  # the errors of requests are OSErrors too
            raise _CutError(str(error)) from None
        if not part:
            return
        yield part


def _behind(chunks: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """Yield the bytes of a response from the offset on; the response itself begins at byte 0."""
    for chunk in chunks:
        if offset < len(chunk):
            yield chunk[offset:]
        offset = max(0, offset - len(chunk))


def _gone(image: str) -> StepError:
    return StepError(f"image {image} is not in the image service any more", code=GONE)


# The keys of Glance itself; every other key is a property that somebody set.
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
