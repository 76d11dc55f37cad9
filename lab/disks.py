"""Writes the bytes of a lab's images and of a new server's disks."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Final

from oslo_utils import units

from droveway.lab.server_rows import NewServer
from droveway.wire.values import SWAP
from droveway.workers.directories import Directories
from droveway.workers.hypervisors import qcow2
from droveway.workers.hypervisors.base import Hypervisor

# An image is sparse: it has bytes at the start of every 4 MiB; in the first one they begin after the boot sector.
_STRIDE: Final = 4 * units.Mi
_EXTENT: Final = 256 * units.Ki
_BOOT_ROOM: Final = 64 * units.Ki
# A server's own bytes begin here: after the image's bytes in the first 4 MiB, and before those in the second. The
# smallest image has room for them.
_OWN: Final = 512 * units.Ki


def make_image(path: Path, *, name: str, size_mb: int, hypervisor: str) -> None:
    """Write a raw image of `size_mb` MiB: a boot program if the hypervisor needs one, and reproducible bytes."""
    size = size_mb * units.Mi
    source = random.Random(name)  # noqa: S311 - bytes to tell images apart, no secret
    with path.open("wb") as file:
        file.truncate(size)
        for start in range(0, size, _STRIDE):
            first = start or _BOOT_ROOM
            file.seek(first)
            file.write(source.randbytes(min(_EXTENT, size - first)))
    make_bootable(hypervisor, path)


def make_bootable(hypervisor: str, path: Path) -> None:
    """Put a boot program at the start of a raw disk, if the hypervisor needs one: a sandbox guest brings its own."""
    if hypervisor != "libvirt":
        return
    from droveway.lab import boot_image

    with path.open("r+b") as file:
        file.write(boot_image.assemble())


def make_snapshot(path: Path, *, base: Path, name: str) -> None:
    """Copy a raw image, and write reproducible bytes into it that only the server of that name has."""
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", "--", base, path], check=True)
    own = random.Random(f"{name}-shelved")  # noqa: S311 - bytes to tell disks apart, no secret
    with path.open("r+b") as file:
        file.seek(_OWN)
        file.write(own.randbytes(_EXTENT))


def make(hypervisor: Hypervisor, server: NewServer, images: Path) -> list[Path]:
    """Make the server's directory and its local disks, under Nova's names; the root disk first."""
    directories = Directories(hypervisor.instances)
    directories.create(server.uuid)
    folder = directories.path(server.uuid)
    flavor = server.fields
    made = []
    if server.image is not None:
        root = folder / "disk"
        _copy(hypervisor, images / server.image.id, root)
        if flavor["root_gb"]:
            hypervisor.grow_disk(root, hypervisor.disk_format, flavor["root_gb"] * units.Gi)
        made.append(root)
    for name, kind, size in (
        ("disk.eph0", "ephemeral", flavor["ephemeral_gb"] * units.Gi),
        (SWAP, "swap", flavor["swap"] * units.Mi),
    ):
        if size:
            hypervisor.create_disk(folder / name, size=size, kind=kind)
            made.append(folder / name)
    directories.write_formats(server.uuid, server.uuid, {path.name: hypervisor.disk_format for path in made})
    return made


def _copy(hypervisor: Hypervisor, image: Path, disk: Path) -> None:
    if hypervisor.disk_format == "raw":
        subprocess.run(["cp", "--sparse=always", "--reflink=auto", "--", image, disk], check=True)
    else:
        qcow2.convert(image, "raw", disk)
