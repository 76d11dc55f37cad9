"""Whether a server's root disks still hold the bytes of its image: a copy of zeros is as long as its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from droveway.errors import DrovewayError
from droveway.lab.session import Lab
from droveway.persistence.nova.cell import Instance

HEAD: Final = 64 * 1024
"""Bytes at the start of a root disk that the guest itself may write."""


def require_whole(lab: Lab, server: str) -> None:
    """Raise DrovewayError when a root disk of the server, in use or set aside, is not its image from `HEAD` on."""
    image = _image(lab, server)
    if image is None:
        return
    wanted = image.read_bytes()[HEAD:]
    for host in sorted(lab.identity.hosts):
        for name in (server, f"{server}_resize"):
            disk = lab.hypervisor(host).instances / name / "disk"
            if disk.exists() and _read(disk, len(wanted)) != wanted:
                raise DrovewayError(f"bytes: {name}/disk on {host} does not hold what it held before")


def _image(lab: Lab, server: str) -> Path | None:
    for cell in lab.cells.names():
        with lab.cells.database(cell).read() as session:
            if image := session.scalar(sa.select(Instance.image_ref).where(Instance.uuid == server)):
                return lab.layout.images / image
    return None


def _read(disk: Path, length: int) -> bytes:
    with disk.open("rb") as file:
        file.seek(HEAD)
        return file.read(length)
