"""Computes digests of the disks that are set aside or kept, for an audit that compares them with the journal.

This module shares no code with what copies disks, so that a defect there cannot hide itself here.  A digest is the
sha256 of this text: the file's size, then ``:offset:length:sha256`` for each piece of data, all in bytes.  The pieces
are the file's data extents, cut at multiples of 4 MiB.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oslo_utils import units

from droveway.wire import queries
from droveway.wire.values import SWAP, UUID

BUDGET: Final = 10.0
"""Seconds of reading for one answer; the next answer goes on where this one ended."""

MAX_AGE: Final = 3600.0
"""Seconds after which a file is read again, although its stat data say that nothing has changed it."""

MOST: Final = 10000
"""Most files that are remembered."""

_PIECE: Final = 4 * units.Mi
_KEPT: Final = re.compile(rf"{UUID}_(?:resize|keep-{UUID})")
_DISK: Final = re.compile(r"disk(?:\.[a-z0-9]+)?")


@dataclasses.dataclass
class _Reading:
    """How far a file was read: the sha256 so far, the offset, and the digest once it is ``done``."""

    whole: Any
    offset: int = 0
    done: str = ""
    since: float = dataclasses.field(default_factory=time.monotonic)


class Digests:
    """Computes digests and remembers them by each file's stat data: whoever writes to a file changes its ctime."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Reading] = {}
        self._lock = threading.Lock()

    def of(self, instances: Path, seconds: float = BUDGET) -> Iterator[queries.Digest]:
        """Yield the digest of every disk that is set aside or kept below the directory ``instances``; raises OSError.

        Swap disks and links are left out.  A disk that was not read to its end within ``seconds`` has no digest yet.
        """
        ends = time.monotonic() + seconds
        with self._lock:
            for name in sorted(os.listdir(instances)):  # noqa: PTH208 - names are all that is wanted
                path = instances / name
                if not _KEPT.fullmatch(name) or path.is_symlink() or not path.is_dir():
                    continue
                for disk in sorted(each.name for each in path.iterdir()):
                    if _DISK.fullmatch(disk) and disk != SWAP and (found := self._one(path, disk, ends)):
                        yield found

    def _one(self, directory: Path, disk: str, ends: float) -> queries.Digest | None:
        try:
            file = os.open(directory / disk, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise
        try:
            status = os.fstat(file)
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            reading = self._known.get(key)
            if reading is None or (reading.done and time.monotonic() - reading.since > MAX_AGE):
                if len(self._known) >= MOST:
                    self._known.clear()
                reading = self._known[key] = _Reading(hashlib.sha256(f"{status.st_size}".encode()))
            if not reading.done:
                _go_on(file, status.st_size, reading, ends)
        finally:
            os.close(file)
        read = status.st_size if reading.done else reading.offset
        return queries.Digest(name=directory.name, disk=disk, digest=reading.done, read=read, size=status.st_size)


def _go_on(file: int, size: int, reading: _Reading, ends: float) -> None:
    # The kernel reports a preallocated extent as a hole.  While the page cache holds any page of the extent, the kernel
    # reports all of the extent as data, and the digest would have other pieces.  Read-ahead puts such pages into the
    # cache when somebody reads the data beside the extent.  So the cache of the file is dropped first.
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    for offset, length in list(_pieces(file, reading.offset, size)):
        if time.monotonic() >= ends:
            return
        os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)
        data = hashlib.sha256(os.pread(file, length, offset)).hexdigest()
        reading.whole.update(f":{offset}:{length}:{data}".encode())
        reading.offset = offset + length
    reading.done = reading.whole.hexdigest()


def _pieces(file: int, offset: int, size: int) -> Iterator[tuple[int, int]]:
    while offset < size:
        try:
            start = os.lseek(file, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # a hole to the end
        end = min(os.lseek(file, start, os.SEEK_HOLE), size, start - start % _PIECE + _PIECE)
        yield start, end - start
        offset = end
