"""Finds where the data of a sparse file lies, and reads what the file really holds on its medium."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, Self

from oslo_utils import units

from droveway.workers.directories import open_file

CHUNK: Final = 4 * units.Mi
"""Most bytes that are read, sent and written at once; chunks begin at multiples of it."""

BLOCK: Final = 4096
_NO_DIRECT: Final = (errno.EINVAL, errno.EOPNOTSUPP)


def data_extents(file: int, size: int) -> list[tuple[int, int]]:
    """Return (offset, length) in bytes of each piece of the file that is allocated and has data.

    Preallocated space counts as data while the page cache holds some of it.  So the cache is first written and dropped.
    """
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    found, offset = [], 0
    while offset < size:
        try:
            start = os.lseek(file, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole to the end
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        found.append((start, end - start))
        offset = end
    return found


def chunks(extents: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the extents, cut at the multiples of `CHUNK`."""
    for start, length in extents:
        offset, end = start, start + length
        while offset < end:
            stop = min(end, offset - offset % CHUNK + CHUNK)
            yield offset, stop - offset
            offset = stop


def outside(present: list[tuple[int, int]], known: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of the extents ``present`` that are in none of ``known``; both lists are in order."""
    found, coming = [], iter([*known, (sys.maxsize, 0)])
    start, length = next(coming)
    for offset, size in present:
        begin, end = offset, offset + size
        while begin < end:
            while start + length <= begin:
                start, length = next(coming)
            if begin < start:
                found.append((begin, min(end, start) - begin))
            begin = max(begin, start + length)
    return found


def memory() -> memoryview:
    """Return memory for one chunk; O_DIRECT needs it to begin on a page, as an anonymous map does."""
    return memoryview(mmap.mmap(-1, CHUNK))


class Direct:
    """Reads and writes an open file past the page cache, if its file system can and whole blocks are asked for.

    Through the cache every byte is copied once more, and a sync waits until all of them are written.  The caller's
    buffers come from `memory`.
    """

    def __init__(self, file: int) -> None:
        """Use the open ``file``, which the caller closes."""
        self._file = file
        self._able = self._switch(on=True)

    def read(self, offset: int, length: int, into: memoryview) -> memoryview:
        """Read at most a chunk into ``into`` and return the part that it fills; it is shorter where the file ends."""
        whole = into[: -(-length // BLOCK) * BLOCK]
        got = self._past_the_cache(lambda: os.preadv(self._file, [whole], offset), offset)
        if got is None:
            got = self._through_the_cache(lambda: os.preadv(self._file, [whole[:length]], offset))
        return whole[: min(got, length)]

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of a chunk; it is durable after a sync."""
        if self._past_the_cache(lambda: _write_all(self._file, data, offset), offset, offset + len(data)) is None:
            self._through_the_cache(lambda: _write_all(self._file, data, offset))
            # This starts to write the cache out without waiting, so that the sync finds little left to do.
            os.posix_fadvise(self._file, offset, len(data), os.POSIX_FADV_DONTNEED)

    def _past_the_cache(self, transfer: Callable[[], int], *borders: int) -> int | None:
        if not self._able or any(border % BLOCK for border in borders):
            return None
        try:
            return transfer()
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
        self._able = False
        self._switch(on=False)
        return None

    def _through_the_cache(self, transfer: Callable[[], int]) -> int:
        if not self._able:
            return transfer()
        self._switch(on=False)
        try:
            return transfer()
        finally:
            self._switch(on=True)

    def _switch(self, *, on: bool) -> bool:
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
            return False
        return True


def _write_all(file: int, view: memoryview, offset: int) -> int:
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)
    return done


class Medium:
    """Reads what a file holds on its medium: past the page cache, or after dropping what is cached."""

    def __init__(self, directory: int, name: str) -> None:
        self._file = open_file(directory, name)
        self.size = os.fstat(self._file).st_size
        os.fdatasync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        self._direct = Direct(self._file)
        self._memory = memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def extents(self) -> list[tuple[int, int]]:
        """Return (offset, length) in bytes of each piece that is allocated and has data now."""
        return data_extents(self._file, self.size)

    def read(self, offset: int, length: int) -> memoryview:
        """Read at most a chunk, which is valid until the next call; it is shorter where the file ends."""
        os.posix_fadvise(self._file, offset, length, os.POSIX_FADV_DONTNEED)
        return self._direct.read(offset, length, self._memory)


def digest(directory: int, name: str, beat: Callable[[], None]) -> str:
    """Return a sha256 of the file's size and of all in it that is not zero, read past the cache.

    Files with equal content have equal digests, however they store zeros.  ``beat`` is called before each chunk.
    """
    with Medium(directory, name) as medium:
        whole = hashlib.sha256(f"{medium.size}".encode())
        for offset in sorted({offset - offset % CHUNK for offset, _ in chunks(medium.extents())}):
            beat()
            with medium.read(offset, CHUNK) as data:
                if not is_zero(data):
                    whole.update(f":{offset}:".encode() + hashlib.sha256(data).digest())
    return whole.hexdigest()


def checksum(data: bytes | memoryview) -> str:
    """Return the sha256 of one chunk; processors with sha256 built in are twice as fast with it as with blake2b."""
    return hashlib.sha256(data).hexdigest()


def is_zero(data: memoryview) -> bool:
    """Return whether the data is nothing but zeros."""
    return data.tobytes() == bytes(len(data))
