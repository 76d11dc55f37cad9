"""Two hosts between which the disks of one server are copied, and what may befall them on the way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.worker_rig import MOVE, PROBE, SERVER, Cloud, cloud

from droveway.wire import commands
from droveway.workers.transfer import extents, frames
from droveway.workers.transfer.client import RemoteSource
from droveway.workers.transfer.sources import LocalSource

PART = f"{SERVER}.part-{MOVE}-beta"
ASIDE = f"{SERVER}_resize"


class Site:
    """A cloud whose server is set aside on alpha and offered to beta; counts what alpha serves."""

    def __init__(self, made: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = made
        self.served: list[tuple[str, int, int]] = []
        self.mangle: Callable[[memoryview], bytes | memoryview] = lambda data: data
        read = LocalSource.read

        def counting(
            source: LocalSource, disk: str, offset: int, length: int, into: memoryview
        ) -> tuple[bytes | memoryview, str]:
            data, checksum = read(source, disk, offset, length, into)
            self.served.append((disk, offset, length))
            return self.mangle(data), checksum

        monkeypatch.setattr(LocalSource, "read", counting)
        made.serve("alpha")

    def set_aside(self) -> None:
        self.cloud.run("alpha", "set_aside")
        self.offer()

    def offer(self, peer: str = "beta", **facts: Any) -> None:
        self.cloud.run("alpha", "offer_disks", commands.OfferDisks(peer=peer), **facts)

    @property
    def details(self) -> commands.CopyDisks:
        address = self.cloud.hosts["alpha"].transfer_address
        return commands.CopyDisks(variant="pull", source="alpha", address=address, probe=PROBE)

    def copy(self, **facts: Any) -> dict[str, Any]:
        return self.cloud.run("beta", "copy_disks", self.details, **facts)

    def remote(
        self, *, patience: float = 5.0, peer: str = "beta", server: str = SERVER, move: str = MOVE, epoch: int = 1
    ) -> RemoteSource:
        hello = frames.Hello(peer=peer, server=server, move=move, epoch=epoch)
        address = self.cloud.hosts["alpha"].transfer_address
        identity = self.cloud.hosts["beta"].identity
        return RemoteSource("alpha", address, hello, pause=lambda seconds: None, patience=patience, identity=identity)

    def source_disk(self, name: str = "disk") -> Path:
        return self.cloud.hosts["alpha"].directories.path(ASIDE, name)

    def part_disk(self, name: str = "disk") -> Path:
        return self.cloud.hosts["beta"].directories.path(PART, name)

    def same_bytes(self, name: str = "disk") -> bool:
        copy = self.cloud.hosts["beta"].directories.path(SERVER, name)
        return copy.read_bytes() == self.source_disk(name).read_bytes()


@contextlib.contextmanager
def set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool = False, **server: Any) -> Iterator[Site]:
    """A site whose server, made as ``server`` says, is set aside and offered."""
    with cloud(folder, tls=tls) as made:
        made.make_server(**server)
        site = Site(made, monkeypatch)
        site.set_aside()
        yield site


def at(effect: str, act: Callable[[], object], *, count: int = 1) -> Callable[..., None]:
    """A probe that acts once, at the n-th effect of that name."""
    left = [count]

    def probe(step: str, direction: str, phase: str, name: str) -> None:
        if name == effect:
            left[0] -= 1
            if left[0] == 0:
                act()

    return probe


def flip(path: Path, offset: int) -> None:
    """Change one bit and nothing that a look at the file's facts would show."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def chunks_of(path: Path) -> Iterator[tuple[int, int]]:
    """The chunks in which a disk is copied: (offset, length) in bytes."""
    with path.open("rb") as file:
        yield from extents.chunks(extents.data_extents(file.fileno(), path.stat().st_size))
