"""Images for a lab, with the answers and refusals of Glance. An image's bytes are a file."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from droveway.clients.embedded.services import Answer, ImageRow, LocalService, RefusalError, Request

_COLUMNS = ("id", "name", "min_disk", "disk_format", "container_format")


def image_service(engine: Engine, folder: Path) -> LocalService:
    """The service; each image's bytes lie in ``folder``."""
    return LocalService(
        engine,
        {
            ("GET", "/images"): _images,
            ("POST", "/images"): _post,
            ("GET", "/images/{image}"): lambda request: Answer(200, _view(_image(request))),
            ("PUT", "/images/{image}/file"): functools.partial(_put_file, folder),
            ("DELETE", "/images/{image}"): functools.partial(_delete, folder),
        },
    )


def _images(request: Request) -> Answer:
    return Answer(200, {"images": [_view(image) for image in request.session.scalars(select(ImageRow))]})


def _post(request: Request) -> Answer:
    body = request.body
    if request.session.get(ImageRow, body["id"]) is not None:
        raise RefusalError(409, f"the image {body['id']} exists already")
    image = ImageRow(
        id=body["id"],
        name=body["name"],
        status="queued",
        size=None,
        min_disk=body["min_disk"],
        properties={name: value for name, value in body.items() if name not in _COLUMNS},
    )
    request.session.add(image)
    return Answer(201, _view(image))


def _put_file(folder: Path, request: Request) -> Answer:
    image = _image(request)
    if image.status != "queued":
        raise RefusalError(409, f"the image {image.id} has its data already")
    if request.data is None:
        raise RefusalError(400, f"no data was sent for the image {image.id}")
    new = folder / f"{image.id}.new"
    with new.open("wb") as file:
        shutil.copyfileobj(request.data, file)
        file.flush()
        os.fsync(file.fileno())
        image.size = file.tell()
    new.rename(folder / image.id)
    image.status = "active"
    return Answer(204)


def _delete(folder: Path, request: Request) -> Answer:
    image = _image(request)
    (folder / image.id).unlink(missing_ok=True)
    request.session.delete(image)
    return Answer(204)


def _image(request: Request) -> ImageRow:
    return request.find(ImageRow, request.names["image"])


def _view(image: ImageRow) -> dict[str, Any]:
    return {
        **image.properties,
        "id": image.id,
        "name": image.name,
        "status": image.status,
        "size": image.size,
        "min_disk": image.min_disk,
        "min_ram": 0,
        "disk_format": "raw",
        "container_format": "bare",
    }
