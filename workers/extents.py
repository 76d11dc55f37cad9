"""Where the data of a sparse file lies, and what it really holds on its medium."""

from __future__ import annotations

import errno
import functools
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Final, Self

from droveway.workers.directories import open_file

CHUNK: Final = 4 << 20
"""The most that is read, sent and written at once, in bytes; chunks lie on multiples of it."""

BLOCK: Final = 4096
_NO_DIRECT: Final = (errno.EINVAL, errno.EOPNOTSUPP)


def data_extents(file: int, size: int) -> list[tuple[int, int]]:
    """(offset, length) of all that is allocated with data in it, in bytes."""
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
    """The extents, cut where chunks begin."""
    for start, length in extents:
        offset, end = start, start + length
        while offset < end:
            stop = min(end, offset - offset % CHUNK + CHUNK)
            yield offset, stop - offset
            offset = stop


class Medium:
    """Reads a file past the page cache: with O_DIRECT where that is possible, else after dropping what is cached."""

    def __init__(self, directory: int, name: str) -> None:
        self._plain = open_file(directory, name)
        self.size = os.fstat(self._plain).st_size
        os.fdatasync(self._plain)
        os.posix_fadvise(self._plain, 0, 0, os.POSIX_FADV_DONTNEED)
        self._direct: int | None = None
        try:
            self._direct = open_file(directory, name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                os.close(self._plain)
                raise
        # O_DIRECT wants page-aligned memory, which an anonymous map is.
        self._memory = mmap.mmap(-1, CHUNK)
        self._view = memoryview(self._memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.release()
        self._memory.close()
        os.close(self._plain)
        if self._direct is not None:
            os.close(self._direct)

    def filled(self) -> list[int]:
        """The offsets of all chunks that hold data."""
        return sorted({offset - offset % CHUNK for offset, _ in chunks(data_extents(self._plain, self.size))})

    def chunk(self, offset: int) -> memoryview:
        """The chunk that begins at ``offset``, valid until the next call; the file's last one may be shorter."""
        length = min(CHUNK, self.size - offset)
        if self._direct is None:
            got = os.preadv(self._plain, [self._view[:length]], offset)
        else:
            got = os.preadv(self._direct, [self._view[: -(-length // BLOCK) * BLOCK]], offset)
        if got < length:
            raise OSError(errno.EIO, f"the file ends before {offset + length}")
        return self._view[:length]


def digest(directory: int, name: str, beat: Callable[[], None]) -> str:
    """A sha256 of the file's size and of all in it that is not zero, read past the cache.

    Equal for equal contents, however the zeros are stored; ``beat`` is called before each chunk.
    """
    with Medium(directory, name) as medium:
        whole = hashlib.sha256(f"{medium.size}".encode())
        for offset in medium.filled():
            beat()
            with medium.chunk(offset) as data:
                found = hashlib.sha256(data).digest()
                if found != _of_zeros(len(data)):
                    whole.update(f":{offset}:".encode() + found)
    return whole.hexdigest()


def checksum(data: bytes | memoryview) -> str:
    """The checksum of one chunk; sha256 is twice as fast as blake2b on processors that have it built in."""
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=64)
def _of_zeros(length: int) -> bytes:
    return hashlib.sha256(bytes(length)).digest()
