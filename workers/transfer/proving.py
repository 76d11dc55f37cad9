"""Proves a disk's copy while it is made: reads it back past the page cache and compares it with what was sent."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, Self

from droveway import log_context
from droveway.errors import DestinationFault
from droveway.workers.transfer import extents

if TYPE_CHECKING:
    from droveway.workers.context import Context
    from droveway.workers.transfer.chunk_log import ChunkLog
    from droveway.workers.transfer.sources import DiskMap

Chunk = tuple[int, int]
"""Offset and length of a chunk in bytes."""

AHEAD: Final = 2
"""Batches of chunks that may wait for their proof before the copying waits too."""

_Batch = tuple[list[Chunk], "concurrent.futures.Future[list[str]]"]


class Proof:
    """The proof of one disk's copy: the medium holds each chunk as ``source`` sent it, and nothing else.

    The log has the checksum of each chunk that was sent.
    """

    def __init__(self, ctx: Context, source: str, directory: int, disk: str, log: ChunkLog) -> None:
        self._ctx = ctx
        self._source = source
        self._disk = disk
        self._log = log
        self._batches: collections.deque[_Batch] = collections.deque()
        self._open = contextlib.ExitStack()
        self._medium = self._open.enter_context(extents.Medium(directory, disk))
        self._reader = self._open.enter_context(
            concurrent.futures.ThreadPoolExecutor(1, initializer=log_context.setter_of_these_ids())
        )
        self._own, self._sources = (hashlib.sha256(f"{self._medium.size}".encode()) for _ in range(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, chunks: list[Chunk]) -> None:
        """Queue chunks that were synced to the copy's medium; a thread then reads them back and compares them.

        When more than `AHEAD` batches are queued, it waits for the oldest one.  Raises as `finish` does when a chunk of
        that batch is not what was sent.
        """
        self._batches.append((chunks, self._reader.submit(self._read, chunks)))
        while len(self._batches) > AHEAD:
            self._check_batch()

    def finish(self, where: DiskMap) -> tuple[str, str]:
        """Return the digests of the copy and of its source: the first from the medium, the second from what was sent.

        Raises DestinationFault (``checksum``) when the copy is not what was sent.
        """
        while self._batches:
            self._check_batch()
        for chunk in extents.chunks(extents.outside(self._medium.extents(), where.extents)):
            self._ctx.check()
            with self._medium.read(*chunk) as data:
                if not extents.is_zero(data):
                    raise self._copy_differs()
        return self._own.hexdigest(), self._sources.hexdigest()

    def _read(self, chunks: list[Chunk]) -> list[str]:
        found = []
        for chunk in chunks:
            with self._medium.read(*chunk) as data:
                found.append(extents.checksum(data))
        return found

    def _check_batch(self) -> None:
        chunks, held = self._batches.popleft()
        self._ctx.check()
        for (offset, length), here in zip(chunks, held.result(), strict=True):
            sent = self._log.done[offset, length]
            if here != sent:
                raise self._copy_differs()
            for digest, checksum in ((self._own, here), (self._sources, sent)):
                digest.update(f":{offset}:{length}:{checksum}".encode())

    def _copy_differs(self) -> DestinationFault:
        self._log.begin()
        host = self._ctx.host.name
        return DestinationFault(
            f"{self._disk} of server {self._ctx.server}: {host} gives back other data than {self._source} sent; "
            "look at its disks and at the network between the two",
            code="checksum",
            host=host,
        )
