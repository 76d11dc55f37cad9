"""Copies one disk from a source into a directory: resumable, verified on the medium, whatever carries the bytes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from droveway.errors import DestinationFault, StepError
from droveway.workers import extents
from droveway.workers.context import Context
from droveway.workers.directories import CopiedDisk, SetAsideDisk, open_file
from droveway.workers.sources import DiskMap, Identity, LocalSource, Source

SYNC_BYTES: Final = 16 << 20
"""After so many bytes what was written is synced and journaled: the most that a crash costs for each disk."""

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


def copy_disk(ctx: Context, source: Source, directory: int, disk: SetAsideDisk, tally: Tally) -> CopiedDisk:
    """Copy one disk and prove the copy.

    Raises DestinationFault (``checksum``, ``disk-full``) when this host's copy is not what was sent, and StepError
    (``checksum``, ``source-changed``) when the source's disk is not what it was.
    """
    where = source.disk_map(disk.name)
    tally.expect(sum(length for _, length in where.extents))
    with _copy_file(directory, disk.name, where.identity) as (file, log):
        if isinstance(source, LocalSource) and not log.done and _reflinked(source.file(disk.name), file):
            os.fdatasync(file)
            sent = 0
        else:
            sent = _fetch(ctx, source, disk.name, where, file, log, tally)
        ctx.effect("verify")
        with concurrent.futures.ThreadPoolExecutor(1) as other_end:
            sealing = other_end.submit(source.seal, disk.name, ctx.check)
            own = extents.digest(directory, disk.name, ctx.check)
            seal = sealing.result()
        if seal.identity != where.identity:
            raise StepError(
                f"{disk.name} of server {ctx.server} was changed on {source.host} while it was copied",
                code="source-changed",
                host=source.host,
            )
        if own != seal.digest:
            error = _differs(ctx, source, directory, disk.name, log)
            log.begin()
            raise error
        os.fsync(file)
    return CopiedDisk(
        name=disk.name,
        format=disk.format,
        size=where.identity.size,
        allocated=sum(length for _, length in where.extents),
        sent=sent,
        checksum=own,
        source_checksum=seal.digest,
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


def _fetch(ctx: Context, source: Source, disk: str, where: DiskMap, file: int, log: ChunkLog, tally: Tally) -> int:
    """Fetch every chunk that the log does not vouch for; returns the bytes that were sent."""
    sent = unsynced = 0
    wanted = list(extents.chunks(where.extents))
    missing = [chunk for chunk in wanted if chunk not in log.done]
    copy = extents.Direct(file)
    with _ahead(source, disk, missing) as coming:
        for offset, length in wanted:
            kept = (offset, length) in log.done
            if kept:
                tally.add(length, kept=True)
                continue
            ctx.effect("chunk")
            data, checksum = next(coming)
            if len(data) != length or extents.checksum(data) != checksum:
                raise StepError(
                    f"{disk} of server {ctx.server}: the chunk at {offset} from {source.host} reached "
                    f"{ctx.host.name} with another checksum",
                    code="checksum",
                    host=source.host,
                )
            copy.write(data, offset)
            log.add(offset, length, checksum)
            sent += length
            unsynced += length
            if unsynced >= SYNC_BYTES:
                log.sync(file)
                unsynced = 0
            tally.add(length)
    log.sync(file)
    return sent


@contextlib.contextmanager
def _ahead(
    source: Source, disk: str, wanted: list[tuple[int, int]]
) -> Iterator[Iterator[tuple[bytes | bytearray, str]]]:
    """The chunks in order; while one is dealt with, the next is on its way."""
    with concurrent.futures.ThreadPoolExecutor(1) as reader:

        def read() -> Iterator[tuple[bytes | bytearray, str]]:
            coming: concurrent.futures.Future[tuple[bytes | bytearray, str]] | None = None
            for offset, length in wanted:
                present, coming = coming, reader.submit(source.read, disk, offset, length)
                if present is not None:
                    yield present.result()
            if coming is not None:
                yield coming.result()

        yield read()


def _reflinked(source: int, copy: int) -> bool:
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True


def _differs(ctx: Context, source: Source, directory: int, disk: str, log: ChunkLog) -> StepError:
    """Whose fault it is that two digests differ: each side's chunks are compared with what was journaled of them."""
    copy = open_file(directory, disk)
    try:
        for (offset, length), checksum in log.done.items():
            ctx.check()
            if extents.checksum(os.pread(copy, length, offset)) != checksum:
                break
            if source.read(disk, offset, length)[1] != checksum:
                return StepError(
                    f"{disk} of server {ctx.server}: {source.host} now reads other data at {offset} than it sent to "
                    f"{ctx.host.name}; look at its disks",
                    code="checksum",
                    host=source.host,
                )
    finally:
        os.close(copy)
    return DestinationFault(
        f"{disk} of server {ctx.server}: {ctx.host.name} gives back other data than {source.host} sent; "
        "look at its disks",
        code="checksum",
        host=ctx.host.name,
    )
