"""Copies one disk from a source into a directory: resumable, verified on the medium, whatever carries the bytes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from droveway.workers import extents
from droveway.workers.context import Context
from droveway.workers.directories import CopiedDisk, SetAsideDisk, open_file
from droveway.workers.proving import Chunk, Proof
from droveway.workers.sources import DiskMap, Identity, LocalSource, Source

SYNC_BYTES: Final = 16 << 20
"""After so many bytes what was written is synced and journaled: the most that a crash costs for each disk."""

_Sent = tuple[memoryview, str]
"""A chunk's data and its checksum."""

_FICLONE: Final = 0x40049409
_NO_REFLINK: Final = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class Tally:
    """How far all disks of a copy are; its sum is what the operator sees."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._done = self._total = self._kept = 0

    def expect(self, count: int) -> None:
        """So many bytes more are to be copied."""
        with self._lock:
            self._total += count

    def add(self, count: int, *, kept: bool = False) -> None:
        """So many bytes are here; ``kept`` from an earlier run."""
        with self._lock:
            self._done += count
            self._kept += count if kept else 0
            done, total, before = self._done, self._total, self._kept
        self._ctx.progress(done, total, kept=before, seconds=time.monotonic() - self._began)


class ChunkLog:
    """The chunks of one disk that are safely on the medium, one line each: offset, length, checksum.

    The first line pins the source's identity: when it differs, nothing of the log holds.  A torn last line has no
    newline and is not read.
    """

    def __init__(self, directory: int, disk: str, identity: Identity) -> None:
        self.name = log_name(disk)
        self.done: dict[tuple[int, int], str] = {}
        self._pending: list[str] = []
        self._head = msgspec.json.encode(identity).decode() + "\n"
        self._file = open_file(directory, self.name, os.O_RDWR | os.O_CREAT)
        self._load()

    def _load(self) -> None:
        with open(self._file, "rb", closefd=False) as stream:
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1].decode()
        if not whole.startswith(self._head):
            return
        for line in whole[len(self._head) :].splitlines():
            offset, length, checksum = line.split()
            self.done[int(offset), int(length)] = checksum
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def begin(self) -> None:
        """Forget all and pin the source as it is now."""
        self.done.clear()
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, self._head.encode())
        os.fdatasync(self._file)

    def add(self, offset: int, length: int, checksum: str) -> None:
        """The chunk was written; `sync` makes that count."""
        self.done[offset, length] = checksum
        self._pending.append(f"{offset} {length} {checksum}\n")

    def sync(self, data: int) -> None:
        """First the data, then the lines that vouch for it."""
        os.fdatasync(data)
        os.write(self._file, "".join(self._pending).encode())
        os.fdatasync(self._file)
        self._pending.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def log_name(disk: str) -> str:
    """The name of a disk's chunk log; not a disk's name."""
    return f"{disk}-chunks"


def copy_disk(
    ctx: Context, source: Source, prover: Source, directory: int, disk: SetAsideDisk, tally: Tally
) -> CopiedDisk:
    """Copy one disk and prove the copy; ``prover`` is a second reader of the same disks.

    Raises DestinationFault (``checksum``, ``disk-full``) when this host's copy is not what was sent, and StepError
    (``checksum``, ``source-changed``) when the source's disk is not what it was.
    """
    where = source.disk_map(disk.name)
    tally.expect(sum(length for _, length in where.extents))
    with (
        _copy_file(directory, disk.name, where.identity) as (file, log),
        Proof(ctx, prover, directory, disk.name, log) as proof,
    ):
        cloned = isinstance(source, LocalSource) and not log.done and _reflinked(source.file(disk.name), file)
        known = set(extents.chunks(where.extents)) if cloned else set(log.done)
        sent = _fetch(ctx, source, disk.name, where, known, file, log, tally, proof)
        own, sources = proof.finish(where)
        os.fsync(file)
    return CopiedDisk(
        name=disk.name,
        format=disk.format,
        size=where.identity.size,
        allocated=sum(length for _, length in where.extents),
        sent=sent,
        checksum=own,
        source_checksum=sources,
        backing=disk.backing,
        backing_format=disk.backing_format,
    )


@contextlib.contextmanager
def _copy_file(directory: int, disk: str, identity: Identity) -> Iterator[tuple[int, ChunkLog]]:
    """The copy and its log, open; begun anew unless the log vouches for what is there."""
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


def _fetch(
    ctx: Context,
    source: Source,
    disk: str,
    where: DiskMap,
    known: set[Chunk],
    file: int,
    log: ChunkLog,
    tally: Tally,
    proof: Proof,
) -> int:
    """Fetch every chunk that is not ``known`` to be here, and have all proved; returns the bytes that were sent."""
    sent = unproved = 0
    wanted = list(extents.chunks(where.extents))
    missing = [chunk for chunk in wanted if chunk not in known]
    lot: list[Chunk] = []
    for offset, length in missing:
        ctx.check()  # a file system that cannot set blocks aside has each of them written
        # A full disk is found before anything is sent, and a write into a hole would keep the proof from reading.
        os.posix_fallocate(file, offset, length)
    copy = extents.Direct(file)
    with _ahead(source, disk, missing) as coming:
        for offset, length in wanted:
            kept = (offset, length) in known
            if not kept:
                ctx.effect("chunk")
                data, checksum = next(coming)
                copy.write(data, offset)
                log.add(offset, length, checksum)
                sent += length
            tally.add(length, kept=kept)
            lot.append((offset, length))
            unproved += length
            if unproved >= SYNC_BYTES:
                _prove(ctx, lot, file, log, proof)
                lot, unproved = [], 0
    _prove(ctx, lot, file, log, proof)
    return sent


def _prove(ctx: Context, lot: list[Chunk], file: int, log: ChunkLog, proof: Proof) -> None:
    log.sync(file)
    ctx.effect("verify")
    proof.add(lot)


@contextlib.contextmanager
def _ahead(source: Source, disk: str, wanted: list[Chunk]) -> Iterator[Iterator[_Sent]]:
    """The chunks in order; while one is written, the next is on its way.

    What the wire spoils is found as what a medium spoils: by the proof of what was written.
    """
    memories = itertools.cycle([extents.memory(), extents.memory()])
    with concurrent.futures.ThreadPoolExecutor(1) as reader:

        def each() -> Iterator[_Sent]:
            coming: concurrent.futures.Future[_Sent] | None = None
            for (offset, length), then in itertools.zip_longest(wanted, wanted[1:]):
                present, coming = coming, reader.submit(source.read, disk, offset, length, next(memories), then)
                if present is not None:
                    yield present.result()
            if coming is not None:
                yield coming.result()

        yield each()


def _reflinked(source: int, copy: int) -> bool:
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True
