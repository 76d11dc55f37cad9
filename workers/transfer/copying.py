"""Copies one disk from a source into a directory; a copy can be resumed, and is proved from the medium."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from oslo_utils import units

from droveway import log_context
from droveway.errors import DestinationFault
from droveway.workers.context import Context
from droveway.workers.directories import CopiedDisk, SetAsideDisk, open_file
from droveway.workers.transfer import extents
from droveway.workers.transfer.chunk_log import ChunkLog
from droveway.workers.transfer.proving import Chunk, Proof
from droveway.workers.transfer.sources import DiskMap, Identity, LocalSource, Source, source_changed

SYNC_BYTES: Final = 16 * units.Mi
"""Bytes after which what was written is synced and logged: a crash costs at most so much for each disk."""

READERS: Final = 3
"""Chunks of a disk that are under way at once: one is read, another hashed, another sent."""

_Sent = tuple[memoryview, str]
"""A chunk's data and its checksum."""

_FICLONE: Final = 0x40049409
_NO_REFLINK: Final = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class Tally:
    """Adds up the progress of all disks of a copy, which the operator sees as one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._done = self._total = self._kept = 0

    def expect(self, count: int) -> None:
        """Add ``count`` bytes to what is to be copied."""
        with self._lock:
            self._total += count

    def add(self, count: int, *, kept: bool = False) -> None:
        """Add ``count`` bytes to what is done; ``kept`` says that an earlier run copied them."""
        with self._lock:
            self._done += count
            self._kept += count if kept else 0
            done, total, before = self._done, self._total, self._kept
        self._ctx.progress(done, total, kept=before, seconds=time.monotonic() - self._began)


def copy_disk(ctx: Context, sources: Sequence[Source], directory: int, disk: SetAsideDisk, tally: Tally) -> CopiedDisk:
    """Copy one disk and prove the copy; ``sources`` are readers of the same disks, which work side by side.

    Raises DestinationFault (``checksum``, ``disk-full``) when this host's copy is not what was sent or does not fit,
    and StepError (``source-changed``) when the source's disk has changed.
    """
    source = sources[0]
    where = source.disk_map(disk.name)
    data = sum(length for _, length in where.extents)
    if not isinstance(source, LocalSource):
        require_room(ctx, directory, disk.name, data)
    tally.expect(data)
    with (
        _copy_file(directory, disk.name, where.identity) as (file, log),
        Proof(ctx, source.host, directory, disk.name, log) as proof,
    ):
        missing = [chunk for chunk in extents.chunks(where.extents) if chunk not in log.done]
        if isinstance(source, LocalSource) and _reflinked(source.file(disk.name), file):
            sent, coming = 0, _cloned(source, disk.name, missing)
        else:
            sent, coming = sum(length for _, length in missing), _fetched(ctx, sources, disk.name, missing, file)
        try:
            with contextlib.closing(coming):
                _copy_and_prove(ctx, where, coming, file, log, tally, proof)
            own, sources_own = proof.finish(where)
        except DestinationFault:
            # A source that was changed after it was cloned makes the copy differ.  Then the change is the error to
            # report.
            _require_unchanged(ctx, source, disk.name, where)
            raise
        _require_unchanged(ctx, source, disk.name, where)
        os.fsync(file)
    return CopiedDisk(
        name=disk.name,
        format=disk.format,
        size=where.identity.size,
        allocated=sum(length for _, length in where.extents),
        sent=sent,
        checksum=own,
        source_checksum=sources_own,
        backing=disk.backing,
        backing_format=disk.backing_format,
    )


def require_room(ctx: Context, directory: int, disk: str, data: int) -> None:
    """Raise DestinationFault (``disk-full``) when ``data`` bytes do not fit here; a source may name any size.

    What an earlier run has written of the disk counts as room.
    """
    room = os.fstatvfs(directory)
    kept = 0
    with contextlib.suppress(FileNotFoundError):
        kept = os.stat(disk, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    if data > room.f_bavail * room.f_frsize + kept:
        raise ctx.fault(
            f"{disk} of server {ctx.server} has {data} bytes, and {ctx.host.name} has room for "
            f"{room.f_bavail * room.f_frsize + kept}: make room",
            code="disk-full",
        )


def _require_unchanged(ctx: Context, source: Source, disk: str, where: DiskMap) -> None:
    if source.disk_map(disk).identity != where.identity:
        raise source_changed(disk, ctx.server, source.host)


@contextlib.contextmanager
def _copy_file(directory: int, disk: str, identity: Identity) -> Iterator[tuple[int, ChunkLog]]:
    """Open the copy and its log and yield them; both are emptied unless the log fits the copy that is there."""
    file = open_file(directory, disk, os.O_RDWR | os.O_CREAT)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        log = ChunkLog(directory, disk, identity)
        stack.callback(log.close)
        if not log.done or os.fstat(file).st_size != identity.size:
            os.ftruncate(file, 0)
            os.ftruncate(file, identity.size)
            log.begin()
            os.fsync(directory)
        yield file, log


def _copy_and_prove(
    ctx: Context, where: DiskMap, coming: Iterator[str], file: int, log: ChunkLog, tally: Tally, proof: Proof
) -> None:
    """Copy the chunks that the log does not have yet, and have every chunk proved.

    The copying happens in the iterator ``coming`` (`_fetched`): for each of these chunks it first writes the chunk and
    then yields its checksum.  For a copy that shares its blocks with the source, it only yields (`_cloned`).
    """
    known = set(log.done)
    unproved = 0
    batch: list[Chunk] = []
    for offset, length in extents.chunks(where.extents):
        kept = (offset, length) in known
        if not kept:
            ctx.effect("chunk")
            log.add(offset, length, next(coming))
        tally.add(length, kept=kept)
        batch.append((offset, length))
        unproved += length
        if unproved >= SYNC_BYTES:
            _prove(ctx, batch, file, log, proof)
            batch, unproved = [], 0
    _prove(ctx, batch, file, log, proof)


def _prove(ctx: Context, batch: list[Chunk], file: int, log: ChunkLog, proof: Proof) -> None:
    log.sync(file)
    ctx.effect("verify")
    proof.add(batch)


def _cloned(source: LocalSource, disk: str, wanted: list[Chunk]) -> Generator[str, None, None]:
    """Yield the checksums of the chunks in order, for a copy that shares its blocks with the source."""
    for chunk in wanted:
        yield source.proof(disk, *chunk)


def _fetched(
    ctx: Context, sources: Sequence[Source], disk: str, wanted: list[Chunk], file: int
) -> Generator[str, None, None]:
    """Fetch and write the chunks in order, and yield the checksum that the source made of each.

    The chunk's bytes are not compared with the checksum here.  When the copy is proved, it is read back from the disk.
    That shows damage by the network and damage by the disk.
    """
    for chunk in wanted:
        # On a file system that cannot reserve blocks, the C library writes each of them.  That takes long, so the copy
        # can be stopped before every chunk.
        ctx.check()
        # A full disk shows before anything is sent.  Also, a later write into a hole would have to allocate blocks,
        # and the proof could not read the file meanwhile.
        os.posix_fallocate(file, *chunk)
    copy = extents.Direct(file)
    with contextlib.closing(_ahead(sources, disk, wanted)) as coming:
        for (offset, _), (data, checksum) in zip(wanted, coming, strict=True):
            copy.write(data, offset)
            yield checksum


@contextlib.contextmanager
def readers(source: Callable[[], Source]) -> Iterator[list[Source]]:
    """Open as many readers of the disks as one disk's copy uses side by side."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(contextlib.closing(source())) for _ in range(READERS)]


def _ahead(sources: Sequence[Source], disk: str, wanted: list[Chunk]) -> Generator[_Sent, None, None]:
    """Yield the chunks in order; while one is written, each source is already fetching another."""
    with contextlib.ExitStack() as stack:
        adopt = log_context.setter_of_these_ids()
        readers = [
            (stack.enter_context(concurrent.futures.ThreadPoolExecutor(1, initializer=adopt)), source)
            for source in sources
        ]
        memories = itertools.cycle([extents.memory() for _ in range(len(sources) + 1)])
        coming: collections.deque[concurrent.futures.Future[_Sent]] = collections.deque()
        for (offset, length), (reader, source) in zip(wanted, itertools.cycle(readers), strict=False):
            coming.append(reader.submit(source.read, disk, offset, length, next(memories)))
            if len(coming) > len(sources):
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _reflinked(source: int, copy: int) -> bool:
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True
