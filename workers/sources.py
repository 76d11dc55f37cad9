"""Where the disks of a copy come from: a directory that was set aside, here or behind another worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from droveway.errors import StepError
from droveway.workers import extents
from droveway.workers.directories import BASES, BaseFile, Directories, Manifest, SetAsideDisk, open_file


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What changes when a file is changed; size in bytes."""

    size: int
    mtime_ns: int
    inode: int


class DiskMap(msgspec.Struct, frozen=True, kw_only=True):
    """A disk's identity and where its data lies: (offset, length) in bytes."""

    identity: Identity
    extents: list[tuple[int, int]]


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What the source says at the end of a copy: its disk's identity now, and the digest of what its medium holds."""

    identity: Identity
    digest: str


class Source(Protocol):
    """One reader of the disks that were set aside; raises StepError naming disk and host."""

    host: str

    def disk_map(self, disk: str) -> DiskMap:
        """Where the disk's data lies."""

    def read(self, disk: str, offset: int, length: int) -> tuple[bytes | bytearray, str]:
        """One chunk and its checksum, made where the disk lies."""

    def seal(self, disk: str, beat: Callable[[], None]) -> Seal:
        """The disk as it is at the end of the copy."""


Opened = tuple[Source, Callable[[], None]]
"""A source, and what closes it."""


def base_name(digest: str) -> str:
    """The name under which a base is fetched; no disk's name."""
    return f"base-{digest}"


class LocalSource:
    """The disks in a directory of this host, and the bases below them; only those that the manifest names."""

    def __init__(self, host: str, directories: Directories, name: str, manifest: Manifest) -> None:
        self.host = host
        self.manifest = manifest
        self.where = directories.path(name)
        self._open = contextlib.ExitStack()
        self._directory = self._open.enter_context(directories.open(name))
        self._files: dict[str, int] = {}
        self._readers: dict[str, extents.Direct] = {}
        self._known: dict[str, SetAsideDisk | BaseFile] = {disk.name: disk for disk in manifest.disks}
        if manifest.bases:
            self._bases = self._open.enter_context(directories.open(BASES))
            self._known |= {base_name(base.digest): base for base in manifest.bases}

    def close(self) -> None:
        """Close all files."""
        self._readers.clear()
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._open.close()

    def file(self, disk: str) -> int:
        """The disk, open for reading."""
        if disk not in self._known:
            raise StepError(f"{disk} was not set aside in {self.where} on {self.host}", code="missing", host=self.host)
        if disk not in self._files:
            try:
                self._files[disk] = open_file(*self._place(disk))
            except FileNotFoundError:
                raise StepError(
                    f"{disk} is gone from {self.where} on {self.host}", code="missing", host=self.host
                ) from None
        return self._files[disk]

    def disk_map(self, disk: str) -> DiskMap:
        """Where the disk's data lies; raises StepError when it is not as it was set aside."""
        file, known = self.file(disk), self._known[disk]
        identity = _identity(file)
        if identity != Identity(size=known.size, mtime_ns=known.mtime_ns, inode=known.inode):
            raise StepError(
                f"{disk} of server {self.manifest.server} was changed on {self.host} after it was set aside",
                code="source-changed",
                host=self.host,
            )
        return DiskMap(identity=identity, extents=extents.data_extents(file, identity.size))

    def read(self, disk: str, offset: int, length: int) -> tuple[bytes, str]:
        """One chunk and its checksum."""
        file = self.file(disk)
        if disk not in self._readers:
            self._readers[disk] = extents.Direct(file)
        data = bytes(self._readers[disk].read(offset, length))
        if len(data) != length:
            raise StepError(
                f"{disk} of server {self.manifest.server} on {self.host} ends before {offset + length}: it was cut",
                code="source-changed",
                host=self.host,
            )
        return data, extents.checksum(data)

    def seal(self, disk: str, beat: Callable[[], None]) -> Seal:
        """The disk's digest, read anew past the cache, and its identity after that."""
        file = self.file(disk)
        found = extents.digest(*self._place(disk), beat)
        return Seal(identity=_identity(file), digest=found)

    def _place(self, disk: str) -> tuple[int, str]:
        known = self._known[disk]
        return (self._bases, known.file) if isinstance(known, BaseFile) else (self._directory, disk)


def _identity(file: int) -> Identity:
    status = os.fstat(file)
    return Identity(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)
