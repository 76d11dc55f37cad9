"""A sandbox whose disks are looked after by qemu-img, as libvirt's are: its guests stay off."""

from __future__ import annotations

import subprocess
from pathlib import Path

from droveway.wire.commands import DiskInfo
from droveway.workers.hypervisors import headers, qcow2
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox


class Disked(Sandbox):
    """Its new disks are qcow2."""

    disk_format = "qcow2"

    def disk_info(self, path: Path, disk_format: str) -> DiskInfo:
        return qcow2.info(path, disk_format)

    def create_disk(self, path: Path, *, size: int, kind: str) -> None:
        qcow2.create(path, size, kind=kind)

    def grow_disk(self, path: Path, disk_format: str, size: int) -> None:
        qcow2.grow(path, disk_format, size)

    def rebase_disk(self, path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
        qcow2.rebase(path, disk_format, backing, backing_format)

    def _only_raw(self, disk_format: str) -> None:
        headers.require_format(disk_format, "a disk")


def qemu(*words: object) -> bytes:
    """What qemu-img prints."""
    return subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True).stdout
