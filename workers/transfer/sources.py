"""The sources of a copy: a directory that was set aside, on this host or behind another worker."""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

import msgspec

from droveway.errors import StepError
from droveway.workers.directories import BASES, BaseFile, Directories, Manifest, SetAsideDisk, open_file
from droveway.workers.transfer import extents


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The stat data of a file, by which a change of the file shows; size in bytes.

    Nobody can set ``ctime_ns`` back.  But a new link or a change of permissions also changes it, without a change of
    the content.  So it is only compared during one copy, and the manifest does not record it.
    """

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


class DiskMap(msgspec.Struct, frozen=True, kw_only=True):
    """A disk's identity and where its data lies: (offset, length) in bytes."""

    identity: Identity
    extents: list[tuple[int, int]]


class Source(Protocol):
    """One reader of the disks that were set aside; its methods raise StepError with the disk and the host."""

    host: str

    def disk_map(self, disk: str) -> DiskMap:
        """Return the disk's identity and where its data lies."""

    def read(self, disk: str, offset: int, length: int, into: memoryview) -> tuple[memoryview, str]:
        """Read one chunk into ``into``, an `extents.memory`; returns it with the checksum that the source made."""

    def close(self) -> None:
        """Close what the source has opened."""


def source_changed(disk: str, server: str, host: str) -> StepError:
    """Return the error for a disk that has changed since it was set aside."""
    return StepError(
        f"{disk} of server {server} was changed on {host} after it was set aside", code="source-changed", host=host
    )


def base_name(digest: str) -> str:
    """Return the name under which a base is fetched, which is no name of a disk."""
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
        self._media: dict[str, extents.Medium] = {}
        self._known: dict[str, SetAsideDisk | BaseFile] = {disk.name: disk for disk in manifest.disks}
        if manifest.bases:
            self._bases = self._open.enter_context(directories.open(BASES))
            self._known |= {base_name(base.digest): base for base in manifest.bases}

    def close(self) -> None:
        """Close all files."""
        self._readers.clear()
        self._media.clear()
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._open.close()

    def file(self, disk: str) -> int:
        """Return the disk's descriptor, open for reading; raises StepError (``missing``)."""
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
        """Return where the disk's data lies; raises StepError when the disk has changed since it was set aside."""
        file, known = self.file(disk), self._known[disk]
        identity = _identity(file)
        if (identity.size, identity.mtime_ns, identity.inode) != (known.size, known.mtime_ns, known.inode):
            raise source_changed(disk, self.manifest.server, self.host)
        if isinstance(known, BaseFile):
            # A host may change a base's permissions for each guest that rests on it, and with them its ctime.  So the
            # ctime is left out; the content of the base is checked by its digest.
            identity = msgspec.structs.replace(identity, ctime_ns=0)
        return DiskMap(identity=identity, extents=extents.data_extents(file, identity.size))

    def read(self, disk: str, offset: int, length: int, into: memoryview) -> tuple[memoryview, str]:
        """Read one chunk into ``into``; returns it with its checksum."""
        file = self.file(disk)
        if disk not in self._readers:
            self._readers[disk] = extents.Direct(file)
        data = self._readers[disk].read(offset, length, into)
        self._require_whole(disk, data, length, offset)
        return data, extents.checksum(data)

    def proof(self, disk: str, offset: int, length: int) -> str:
        """Return the checksum of what the medium holds there now, read past the page cache.

        For a copy that shares its blocks with the source, this is the checksum with which the copy is compared
        (`droveway.workers.transfer.proving`).
        """
        if disk not in self._media:
            self.file(disk)
            self._media[disk] = self._open.enter_context(extents.Medium(*self._place(disk)))
        with self._media[disk].read(offset, length) as data:
            self._require_whole(disk, data, length, offset)
            return extents.checksum(data)

    def _require_whole(self, disk: str, data: memoryview, length: int, offset: int) -> None:
        if len(data) < length:
            raise StepError(
                f"{disk} of server {self.manifest.server} on {self.host} ends before {offset + length}: it was cut",
                code="source-changed",
                host=self.host,
            )

    def _place(self, disk: str) -> tuple[int, str]:
        known = self._known[disk]
        return (self._bases, known.file) if isinstance(known, BaseFile) else (self._directory, disk)


def _identity(file: int) -> Identity:
    status = os.fstat(file)
    return Identity(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino, ctime_ns=status.st_ctime_ns)
