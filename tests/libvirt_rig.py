"""Two libvirt hosts and what tests do to them from outside."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypervisor_contract import Rig
from support.daemons.libvirt_daemons import kill_daemon

from droveway.lab import boot_image
from droveway.lab.boot_guests import BootGuests
from droveway.lab.libvirt_hosts import LibvirtHost
from droveway.workers.hypervisors import qcow2

DISK_BYTES = 64 << 20


def make_image(path: Path) -> None:
    """A bootable qcow2 image, readable by everyone."""
    raw = path.with_suffix(".raw")
    raw.write_bytes(boot_image.assemble())
    os.truncate(raw, DISK_BYTES)
    qcow2.convert(raw, "raw", path)
    raw.unlink()
    path.chmod(0o644)


def make_overlay(path: Path, base: Path, size: int) -> None:
    """A new disk of ``size`` bytes over a qcow2 image."""
    formats = ("-q", "-f", "qcow2", "-F", "qcow2")
    subprocess.run(["qemu-img", "create", *formats, "-b", base, path, str(size)], check=True)


class LibvirtRig(Rig):
    least_memory_of_a_giant_mb = 1 << 26

    def __init__(self, folder: Path, hosts: list[LibvirtHost]) -> None:
        self.base = folder / "base.qcow2"
        if not self.base.exists():
            make_image(self.base)
        self.volumes = folder / "volumes"
        self.volumes.mkdir(exist_ok=True)
        self.daemon = hosts[0]
        self.opened: list[BootGuests] = []
        self.host, self.peer = (self._open(host) for host in hosts)

    def _open(self, host: LibvirtHost) -> BootGuests:
        made = BootGuests(host.name, host.root, uri=host.uri, run_dir=host.consoles, volumes=self.volumes)
        self.opened.append(made)
        return made

    def make_disk(self, path: Path) -> None:
        make_overlay(path, self.base, DISK_BYTES)

    def make_volume(self, path: Path) -> None:
        path.write_bytes(boot_image.assemble().ljust(1 << 20, b"\0"))

    def reopen(self) -> BootGuests:
        return self._open(self.daemon)

    def guest_pid(self, server: str) -> int:
        guest = self.host.guest(server)
        assert guest is not None
        return int((self.daemon.dir / "run/libvirt/qemu/run" / f"{guest.name}.pid").read_text())

    def foreign_machine(self, definition: str) -> str:
        return re.sub(r"machine=(['\"])[^'\"]*", r"machine=\1pc-i440fx-99.0", definition)

    def unknown_part(self, definition: str) -> str:
        return definition.replace("<devices>", "<devices><bogus/>")

    def renamed(self, definition: str, server: str, name: str) -> str:
        text = re.sub("<name>[^<]*</name>", f"<name>{name}</name>", definition)
        return re.sub("<uuid>[^<]*</uuid>", f"<uuid>{server}</uuid>", text)

    @contextmanager
    def crash(self) -> Iterator[None]:
        kill_daemon(self.daemon)
        yield
        self.daemon.start()
