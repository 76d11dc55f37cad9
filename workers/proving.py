"""Proves a disk's copy while it is made: both media are read past the cache and compared chunk by chunk."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, Self

from droveway.errors import DestinationFault, StepError
from droveway.workers import extents

if TYPE_CHECKING:
    from droveway.workers.context import Context
    from droveway.workers.copying import ChunkLog
    from droveway.workers.sources import DiskMap, Source

Chunk = tuple[int, int]
"""Offset and length in bytes."""

AHEAD: Final = 2
"""So many lots of chunks may wait to be proved before the copy waits for them."""

_Lot = tuple[list[Chunk], "concurrent.futures.Future[list[str]]", "concurrent.futures.Future[list[str]]"]


class Proof:
    """The proof of one disk's copy: what each chunk is on either medium, and that nothing lies beside them.

    ``source`` is a reader of its own, so that it is asked while the copy is asked for further chunks.
    """

    def __init__(self, ctx: Context, source: Source, directory: int, disk: str, log: ChunkLog) -> None:
        self._ctx = ctx
        self._source = source
        self._disk = disk
        self._log = log
        self._lots: collections.deque[_Lot] = collections.deque()
        self._open = contextlib.ExitStack()
        self._medium = self._open.enter_context(extents.Medium(directory, disk))
        self._here = self._open.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        self._there = self._open.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        self._own, self._sources = (hashlib.sha256(f"{self._medium.size}".encode()) for _ in range(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, chunks: list[Chunk]) -> None:
        """Have chunks proved that are on the copy's medium; raises as `finish` does for earlier ones."""
        self._lots.append((chunks, self._here.submit(self._read, chunks), self._there.submit(self._ask, chunks)))
        while len(self._lots) > AHEAD:
            self._settle()

    def finish(self, where: DiskMap) -> tuple[str, str]:
        """The digests of the copy and of its source, made of what their media hold.

        Raises DestinationFault (``checksum``) when the copy is not what was sent, and StepError (``checksum``,
        ``source-changed``) when the source is not.
        """
        while self._lots:
            self._settle()
        for chunk in extents.chunks(extents.outside(self._medium.extents(), where.extents)):
            self._ctx.check()
            with self._medium.read(*chunk) as data:
                if not extents.is_zero(data):
                    raise self._copy_differs()
        self._source.disk_map(self._disk)
        return self._own.hexdigest(), self._sources.hexdigest()

    def _read(self, chunks: list[Chunk]) -> list[str]:
        found = []
        for chunk in chunks:
            with self._medium.read(*chunk) as data:
                found.append(extents.checksum(data))
        return found

    def _ask(self, chunks: list[Chunk]) -> list[str]:
        return [self._source.proof(self._disk, *chunk) for chunk in chunks]

    def _settle(self) -> None:
        chunks, own, sources = self._lots.popleft()
        self._ctx.check()
        for (offset, length), here, there in zip(chunks, own.result(), sources.result(), strict=True):
            sent = self._log.done.get((offset, length), there)
            if here != sent or there != sent:
                self._here.shutdown()
                self._there.shutdown()
                # Whoever changed the source is to be told first: nothing else can be said of the copy then.
                self._source.disk_map(self._disk)
                raise self._copy_differs() if here != sent else self._source_differs(offset)
            for digest, checksum in ((self._own, here), (self._sources, there)):
                digest.update(f":{offset}:{length}:{checksum}".encode())

    def _copy_differs(self) -> DestinationFault:
        self._log.begin()
        host = self._ctx.host.name
        return DestinationFault(
            f"{self._disk} of server {self._ctx.server}: {host} gives back other data than {self._source.host} sent; "
            "look at its disks and at the network between the two",
            code="checksum",
            host=host,
        )

    def _source_differs(self, offset: int) -> StepError:
        return StepError(
            f"{self._disk} of server {self._ctx.server}: {self._source.host} now reads other data at {offset} than it "
            f"sent to {self._ctx.host.name}; look at its disks",
            code="checksum",
            host=self._source.host,
        )
