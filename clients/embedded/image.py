"""Keeps the images of a lab, with the answers and refusals of Glance; an image's bytes are a file."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import Engine, select

from droveway.clients.embedded.services import Answer, ImageRow, LocalService, RefusalError, Request, Transfer
from droveway.clients.image import ACTIVE, CHUNK, QUEUED, SAVING

_COLUMNS: Final = ("id", "name", "min_disk", "container_format")
"""The keys of a request that have a column or are dropped; all other keys are kept and shown as properties."""

_DEFAULTS: Final = {"disk_format": "raw", "owner": None, "visibility": "shared"}
_NO_DATA: Final = {"os_hash_algo": None, "os_hash_value": None}

_RANGE: Final = re.compile(r"bytes=([0-9]+)-")


def image_service(engine: Engine, folder: Path) -> LocalService:
    """Return the service; each image's bytes lie in ``folder``."""
    service = _Images(folder)
    return LocalService(
        engine,
        {
            ("GET", "/images"): service.list,
            ("POST", "/images"): service.create,
            ("GET", "/images/{image}"): service.show,
            ("DELETE", "/images/{image}"): service.delete,
        },
        transfers={
            ("PUT", "/images/{image}/file"): service.upload,
            ("GET", "/images/{image}/file"): service.download,
        },
    )


class _Images:
    """Answers the requests to a lab's Glance.

    An upload is written to ``ID.part``, which its writer has locked. The kernel frees the lock of a writer that is
    killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self, request: Request) -> Answer:
        return Answer(200, {"images": [self._view(image) for image in request.session.scalars(select(ImageRow))]})

    def show(self, request: Request) -> Answer:
        return Answer(200, self._view(_image(request)))

    def create(self, request: Request) -> Answer:
        body = request.body
        if request.session.get(ImageRow, body["id"]) is not None:
            raise RefusalError(409, f"the image {body['id']} exists already")
        image = ImageRow(
            id=body["id"],
            name=body["name"],
            status=QUEUED,
            size=None,
            min_disk=body["min_disk"],
            properties={name: value for name, value in body.items() if name not in _COLUMNS},
        )
        request.session.add(image)
        return Answer(201, self._view(image))

    def delete(self, request: Request) -> Answer:
        image = _image(request)
        self._part(image.id).unlink(missing_ok=True)
        (self._folder / image.id).unlink(missing_ok=True)
        request.session.delete(image)
        return Answer(204)

    def upload(self, transfer: Transfer) -> Answer:
        """Store the bytes while no transaction is open, then make the image active in one transaction."""
        if transfer.data is None:
            raise RefusalError(400, f"no data was sent for the image {transfer.names['image']}")
        with self._writing(transfer.names["image"]) as part:
            with transfer.transaction() as request:
                image = _image(request)
                if image.status not in (QUEUED, SAVING):
                    raise RefusalError(409, f"the image {image.id} has its data already")
                image.status = SAVING
            os.ftruncate(part, 0)
            size, checksum = _write(part, transfer.data)
            with transfer.transaction() as request:
                image = _image(request)
                if not _is_at(part, self._part(image.id)):
                    raise RefusalError(409, f"the image {image.id} was made anew meanwhile")
                self._part(image.id).rename(self._folder / image.id)
                image.properties = {**image.properties, "os_hash_algo": "sha512", "os_hash_value": checksum}
                image.size = size
                image.status = ACTIVE
        return Answer(204)

    def download(self, transfer: Transfer) -> Answer:
        with transfer.transaction() as request:
            image = _image(request)
            if image.status != ACTIVE:
                raise RefusalError(409, f"the image {image.id} has no data yet")
            file = (self._folder / image.id).open("rb")
        size = os.fstat(file.fileno()).st_size
        wanted = _RANGE.fullmatch(transfer.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        if wanted and first >= size:
            file.close()
            raise RefusalError(416, f"the image {transfer.names['image']} has {size} bytes")
        file.seek(first)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size - first)}
        if not wanted:
            return Answer(200, headers=headers, file=file)
        return Answer(206, headers={**headers, "Content-Range": f"bytes {first}-{size - 1}/{size}"}, file=file)

    @contextlib.contextmanager
    def _writing(self, image: str) -> Iterator[int]:
        """Open and lock the image's part; raises the refusal 409 while another writer has it locked."""
        path = self._part(image)
        part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusalError(409, f"the image {image} is being uploaded") from None
            if not _is_at(part, path):  # the other writer has just ended
                raise RefusalError(409, f"the image {image} was being uploaded")
            try:
                yield part
            finally:
                if _is_at(part, path):
                    path.unlink()
        finally:
            os.close(part)

    def _has_writer(self, image: str) -> bool:
        try:
            part = os.open(self._part(image), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(part, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(part)
        return False

    def _part(self, image: str) -> Path:
        return self._folder / f"{image}.part"

    def _view(self, image: ImageRow) -> dict[str, Any]:
        status = image.status
        if status == SAVING and not self._has_writer(image.id):
            status = QUEUED  # as in Glance after an upload that broke off
        return {
            **_DEFAULTS,
            **_NO_DATA,
            **image.properties,
            "id": image.id,
            "name": image.name,
            "status": status,
            "size": image.size,
            "min_disk": image.min_disk,
            "min_ram": 0,
            "container_format": "bare",
        }


def _write(part: int, data: Any) -> tuple[int, str]:
    """Write and sync the data; returns its size in bytes and its checksum."""
    whole = hashlib.sha512()
    parts = iter(lambda: data.read(CHUNK), b"") if hasattr(data, "read") else cast("Iterable[bytes]", data)
    with os.fdopen(part, "wb", closefd=False) as file:
        for each in parts:
            whole.update(each)
            file.write(each)
        file.flush()
        os.fsync(part)
        return file.tell(), whole.hexdigest()


def _is_at(file: int, path: Path) -> bool:
    """Say whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _image(request: Request) -> ImageRow:
    return request.find(ImageRow, request.names["image"])
