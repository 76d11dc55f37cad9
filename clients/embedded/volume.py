"""Keeps the volumes of a lab and their attachments, with the answers and refusals of Cinder 3.44.

A volume is a sparse file.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from oslo_utils import units
from sqlalchemy import Engine, bindparam, select

from droveway.clients.embedded.services import (
    Answer,
    Attachment,
    LocalService,
    RefusalError,
    Request,
    VolumeRow,
    new_id,
)

_ATTACHMENTS_OF = select(Attachment).where(Attachment.volume == bindparam("volume"))


def volume_service(engine: Engine, folder: Path) -> LocalService:
    """Return the service; each volume's bytes lie in ``folder``."""
    return LocalService(
        engine,
        {
            ("POST", "/volumes"): functools.partial(_post_volume, folder),
            ("GET", "/volumes/{volume}"): _get_volume,
            ("POST", "/volumes/{volume}/action"): _volume_action,
            ("DELETE", "/volumes/{volume}"): functools.partial(_delete_volume, folder),
            ("GET", "/attachments/detail"): functools.partial(_attachments, folder),
            ("POST", "/attachments"): functools.partial(_post_attachment, folder),
            ("GET", "/attachments/{attachment}"): functools.partial(_get_attachment, folder),
            ("PUT", "/attachments/{attachment}"): functools.partial(_put_attachment, folder),
            ("POST", "/attachments/{attachment}/action"): _complete,
            ("DELETE", "/attachments/{attachment}"): _delete_attachment,
        },
    )


def _post_volume(folder: Path, request: Request) -> Answer:
    body = request.body["volume"]
    volume = VolumeRow(id=new_id(), name=body["name"], status="available", size_gb=body["size"], bootable=False)
    path = folder / volume.id
    try:
        with path.open("xb") as file:
            file.truncate(volume.size_gb * units.Gi)
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    request.session.add(volume)
    return Answer(202, {"volume": _volume_view(volume)})


def _get_volume(request: Request) -> Answer:
    volume = _volume(request)
    # As in Cinder, an attachment shows its host only when it is complete.
    shown = [
        {"attachment_id": row.id, "server_id": row.server, "host_name": row.connector["host"]}
        for row in _attachments_of(request, volume.id)
        if row.status == "attached" and row.connector
    ]
    return Answer(200, {"volume": {**_volume_view(volume), "attachments": shown}})


def _volume_action(request: Request) -> Answer:
    _volume(request).bootable = bool(request.body["os-set_bootable"]["bootable"])
    return Answer(200, {})


def _delete_volume(folder: Path, request: Request) -> Answer:
    volume = _volume(request)
    if volume.status != "available":
        raise RefusalError(400, f"the volume {volume.id} is {volume.status} and so cannot be deleted")
    (folder / volume.id).unlink(missing_ok=True)
    request.session.delete(volume)
    return Answer(202)


def _attachments(folder: Path, request: Request) -> Answer:
    query = select(Attachment)
    if "volume_id" in request.params:
        query = query.where(Attachment.volume == request.params["volume_id"])
    if "instance_id" in request.params:
        query = query.where(Attachment.server == request.params["instance_id"])
    return Answer(200, {"attachments": [_view(folder, row) for row in request.session.scalars(query)]})


def _post_attachment(folder: Path, request: Request) -> Answer:
    body = request.body["attachment"]
    volume = request.find(VolumeRow, body["volume_uuid"])
    server = body["instance_uuid"]
    if volume.status == "available":
        volume.status = "reserved"
    elif server not in {row.server for row in _attachments_of(request, volume.id)}:
        # A server that is moving may have a second attachment of the volume, for its other host.
        raise RefusalError(
            400, f"the volume {volume.id} must be available to be reserved, but its status is {volume.status}"
        )
    row = Attachment(id=new_id(), volume=volume.id, server=server, status="reserved", connector=None)
    request.session.add(row)
    return Answer(200, {"attachment": _view(folder, row)})


def _get_attachment(folder: Path, request: Request) -> Answer:
    return Answer(200, {"attachment": _view(folder, _attachment(request))})


def _put_attachment(folder: Path, request: Request) -> Answer:
    row = _attachment(request)
    present = _attachments_of(request, row.volume)
    # Cinder counts this attachment as well. So a repeat is refused too while there is another attachment.
    if len(present) > 1 and any(attachment.connector for attachment in present):
        raise RefusalError(409, f"duplicate connectors detected on volume {row.volume}")
    row.connector = request.body["attachment"]["connector"]
    row.status = "attaching"
    request.find(VolumeRow, row.volume).status = "attaching"
    return Answer(200, {"attachment": _view(folder, row)})


def _complete(request: Request) -> Answer:
    row = _attachment(request)
    row.status = "attached"
    request.find(VolumeRow, row.volume).status = "in-use"
    return Answer(204)


def _delete_attachment(request: Request) -> Answer:
    row = _attachment(request)
    request.session.delete(row)
    request.session.flush()
    left = {attachment.status for attachment in _attachments_of(request, row.volume)}
    volume = request.find(VolumeRow, row.volume)
    volume.status = next(
        (status for held, status in (("attached", "in-use"), ("attaching", "attaching")) if held in left),
        "reserved" if left else "available",
    )
    return Answer(200, {"attachments": []})


def _volume(request: Request) -> VolumeRow:
    return request.find(VolumeRow, request.names["volume"])


def _attachment(request: Request) -> Attachment:
    return request.find(Attachment, request.names["attachment"])


def _attachments_of(request: Request, volume: str) -> list[Attachment]:
    return list(request.session.scalars(_ATTACHMENTS_OF, {"volume": volume}))


def _volume_view(volume: VolumeRow) -> dict[str, Any]:
    return {
        "id": volume.id,
        "name": volume.name,
        "status": volume.status,
        "size": volume.size_gb,
        "bootable": str(volume.bootable).lower(),
    }


def _view(folder: Path, row: Attachment) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if row.connector:
        # As in Cinder, the driver's data stands beside its type.
        info = {"driver_volume_type": "local", "path": str(folder / row.volume), "attachment_id": row.id}
    return {
        "id": row.id,
        "volume_id": row.volume,
        "instance": row.server,
        "status": row.status,
        "attach_mode": "rw",
        "attached_at": "",
        "detached_at": "",
        "connection_info": info,
    }
