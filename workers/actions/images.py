"""Actions that move disks through the image service: one host uploads them as images, another downloads them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from droveway.clients.references import ACTIVE, GONE, QUEUED, SAVING, ImageRecord
from droveway.errors import StepError
from droveway.wire.commands import DiskInfo, DownloadDisks, DownloadedDisk, ImageOfDisk, UploadDisks, UploadedDisk
from droveway.wire.values import SWAP
from droveway.workers.actions import backing_files
from droveway.workers.actions.copies import make_copy, remove_copy, side_by_side
from droveway.workers.actions.ownership import (
    discard_parts,
    hold_storage,
    own_manifest,
    part_name,
    refuse_running,
    require_storage,
    set_aside_name,
)
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context
from droveway.workers.directories import CopiedDisk, Directory, Manifest, open_file
from droveway.workers.hypervisors import headers, qcow2
from droveway.workers.transfer import copying, extents
from droveway.workers.transfer.copying import Tally
from droveway.workers.transfer.limits import Bucket
from droveway.workers.transfer.sources import LocalSource, base_name

LOG = logging.getLogger(__name__)

POLL: Final = 1.0
"""Seconds between two looks at an image that another upload is filling."""

PATIENCE: Final = 30.0
"""Seconds for which an image service that does not answer is asked again; it may be restarting."""

SHA512: Final = "sha512"

_COMING: Final = frozenset({SAVING, "uploading", "importing"})
_AWAY: Final = "image-unavailable"
_CHECKSUM: Final = "checksum"

_Answer = TypeVar("_Answer")


@action()
def upload_disks(ctx: Context, details: UploadDisks) -> dict[str, Any]:
    """Upload each disk to an image and compare the bytes with what the image service says; the guest stays off.

    A disk that rests on another file is first flattened into this move's own directory.  The flat disk stays there
    until the undo or the removal of the server, so that a repeated run sends the same bytes.
    """
    refuse_running(ctx, "its disks are uploaded")
    hold_storage(ctx)
    tally = Tally(ctx)
    manifest = own_manifest(ctx) if details.aside else None
    with ctx.directories.opened(set_aside_name(ctx.server) if details.aside else ctx.server) as own:
        if manifest is not None:
            _require_all(ctx, manifest, details)
            _require_set_aside(ctx, manifest)
        formats = own.formats()
        uploaded = [_upload(ctx, own, formats, wanted, tally) for wanted in details.disks]
    if manifest is not None:
        _require_set_aside(ctx, manifest)
    ctx.effect("uploaded")
    # The guest may have been started meanwhile, and have written to its disks.
    refuse_running(ctx, "its disks are uploaded")
    return {"disks": [msgspec.to_builtins(each) for each in uploaded]}


@undo
def undo_upload_disks(ctx: Context, _: UploadDisks) -> dict[str, Any]:
    """Remove the flattened disks; the conductor deletes the images."""
    require_storage(ctx)
    discard_parts(ctx)
    ctx.journal.forget(ctx.step_key)
    return {}


@action(of_destination=True, fills_disk=True)
def download_disks(ctx: Context, details: DownloadDisks) -> dict[str, Any]:
    """Make this move's copy from images, prove it, give it the server's name and remove the storage probe.

    The answer has the same fields as that of `copy_disks`.
    """
    for disk in details.disks:
        headers.require_format(disk.format, f"the image of {disk.disk} of server {ctx.server}")

    def copy_into(own: Directory) -> tuple[list[CopiedDisk], list[CopiedDisk]]:
        tally = Tally(ctx)
        limits = ctx.host.limits.of_transfer()

        def download(disk: DownloadedDisk, directory: int) -> CopiedDisk:
            return _download(ctx, directory, disk, tally, limits)

        return side_by_side(ctx, own, {disk.disk: disk for disk in details.disks}, download), []

    return make_copy(ctx, copy_into, variant="image", probe=details.probe)


@undo
def undo_download_disks(ctx: Context, _: DownloadDisks) -> dict[str, Any]:
    """Delete the copy that this move made; the images stay."""
    return remove_copy(ctx)


def _require_all(ctx: Context, manifest: Manifest, details: UploadDisks) -> None:
    """Raise StepError (``missing``) unless images are given for exactly the disks that were set aside, without swap."""
    there = {disk.name for disk in manifest.disks if disk.name != SWAP}
    asked = {wanted.disk for wanted in details.disks}
    if there != asked:
        raise ctx.failed(
            f"of server {ctx.server} {', '.join(sorted(there)) or 'nothing'} was set aside on {ctx.host.name}, and "
            f"{', '.join(sorted(asked)) or 'nothing'} is to be uploaded",
            code="missing",
        )


def _require_set_aside(ctx: Context, manifest: Manifest) -> None:
    """Raise StepError for a disk or a base that has changed since the disks were set aside."""
    source = LocalSource(ctx.host.name, ctx.directories, set_aside_name(ctx.server), manifest)
    with contextlib.closing(source):
        for disk in manifest.disks:
            source.disk_map(disk.name)
        for base in manifest.bases:
            source.disk_map(base_name(base.digest))


def _upload(ctx: Context, own: Directory, formats: dict[str, str], wanted: ImageOfDisk, tally: Tally) -> UploadedDisk:
    disk = wanted.disk
    if disk not in formats:
        raise ctx.failed(f"server {ctx.server} has no {disk} on {ctx.host.name} to upload", code="missing")
    info = ctx.hypervisor.disk_info(own.path(disk), formats[disk])
    before = _identity(own, disk)
    with _self_contained(ctx, own, info) as (directory, disk_format):
        data = _Data(ctx, directory, disk, tally)
        image = _filled(ctx, wanted.image, data, disk_format)
        ctx.effect("compare")
        checksum = data.checksum(image.algorithm) if _is_known(image.algorithm) else ""
        _require_unchanged(ctx, own, disk, before)
        if not image.checksum or (image.size, image.checksum) != (len(data), checksum):
            given = f"checksum {image.checksum[:200]} ({image.algorithm})" if image.checksum else "no checksum"
            raise ctx.failed(
                f"image {image.id} differs from {disk} of server {ctx.server}: {ctx.host.name} reads {len(data)} bytes "
                f"with checksum {checksum or 'unknown'}, and the image service has {image.size} bytes with {given}",
                code=_CHECKSUM,
            )
    return UploadedDisk(disk=disk, image=image.id, size=len(data), checksum=image.checksum, format=disk_format)


@contextlib.contextmanager
def _self_contained(ctx: Context, own: Directory, info: DiskInfo) -> Iterator[tuple[Directory, str]]:
    """Yield the directory with the disk that can be sent, and its format: the server's own disk, or a flattened one."""
    if not info.backing:
        yield own, info.format
        return
    backing_files.require(ctx, info)
    part = part_name(ctx)
    ctx.directories.create(part)
    with ctx.directories.opened(part) as flat:
        _flatten(ctx, own, info, flat)
        yield flat, headers.QCOW2


def _flatten(ctx: Context, own: Directory, info: DiskInfo, flat: Directory) -> None:
    """Flatten the disk, unless that was done and the disk has not changed since.

    A file in the directory records the size, mtime and inode of the disk that was flattened.  The file is written last.
    """
    record, before = f"{info.name}-flattened", _identity(own, info.name)
    if flat.read(record) == before and info.name in flat.entries():
        return
    flat.unlink(record)
    needed = info.allocated + ctx.hypervisor.disk_info(Path(info.backing), info.backing_format).allocated
    free = ctx.directories.free_bytes()
    if free < needed:
        raise ctx.failed(
            f"{info.name} of server {ctx.server} needs {needed} bytes to be flattened, and {ctx.host.name} has {free} "
            "free: make room",
            code="disk-full",
        )
    ctx.replacing("flatten")
    qcow2.convert(own.path(info.name), info.format, flat.path(info.name), beat=ctx.check)
    _require_unchanged(ctx, own, info.name, before)
    ctx.effect("flattened")
    flat.write(record, before)


def _filled(ctx: Context, image: str, data: _Data, disk_format: str) -> ImageRecord:
    """Return the image once it has its data, from this upload or from one that was under way."""
    references, patience = ctx.host.references, _Patience(ctx)
    while True:
        found = patience.ask(lambda: references.image(image))
        if found.status == QUEUED:
            _require_same_format(ctx, found, data.disk, disk_format)
            ctx.replacing("upload")
            patience.ask(lambda: references.upload_image(image, data))
            found = patience.ask(lambda: references.image(image))
        if found.status == ACTIVE:
            _require_same_format(ctx, found, data.disk, disk_format)
            return found
        if found.status not in {QUEUED, *_COMING}:
            raise ctx.failed(
                f"image {image}, which is to hold {data.disk} of server {ctx.server}, is {found.status[:40]}", code=GONE
            )
        ctx.pause(POLL)


def _require_same_format(ctx: Context, image: ImageRecord, disk: str, disk_format: str) -> None:
    """Raise StepError (``disk-format``) for an image whose format is not the one that the disk was written in."""
    if image.disk_format != disk_format:
        raise ctx.failed(
            f"image {image.id} says that it is {image.disk_format[:40]!r}, and {disk} of server {ctx.server} becomes a "
            f"{disk_format} image",
            code=headers.CODE,
        )


def _download(
    ctx: Context, directory: int, wanted: DownloadedDisk, tally: Tally, limits: tuple[Bucket, ...]
) -> CopiedDisk:
    """Download one disk and prove it by a checksum of what was written.

    Data of an interrupted run is kept only if the whole disk then has the image's checksum; otherwise all is fetched
    anew.
    """
    disk = wanted.disk
    if wanted.checksum and not _is_known(wanted.algorithm):
        raise ctx.failed(
            f"the checksum of image {wanted.image} is a {wanted.algorithm[:40]!r}, which this host cannot compute",
            code=_CHECKSUM,
        )
    patience = _Patience(ctx)
    _require_recorded(ctx, patience.ask(lambda: ctx.host.references.image(wanted.image)), wanted)
    copying.require_room(ctx, directory, disk, wanted.size)
    tally.expect(wanted.size)
    file = open_file(directory, disk, os.O_RDWR | os.O_CREAT)
    try:
        kept = os.fstat(file).st_size if wanted.checksum else 0
        if kept > wanted.size:
            kept = 0
        os.ftruncate(file, kept)
        os.fsync(directory)
        tally.add(kept, kept=True)
        _receive(ctx, wanted, file, tally, limits)
        found = _proved(ctx, directory, wanted)
        if kept and found != wanted.checksum:
            LOG.info("What an earlier run left of %s of server %s is wrong: all is fetched anew", disk, ctx.server)
            kept = 0
            os.ftruncate(file, 0)
            tally.expect(wanted.size)
            _receive(ctx, wanted, file, tally, limits)
            found = _proved(ctx, directory, wanted)
        if wanted.checksum and found != wanted.checksum:
            os.ftruncate(file, 0)
            raise ctx.fault(
                f"{disk} of server {ctx.server}: {ctx.host.name} gives back other data than image {wanted.image} has; "
                "look at its disks, at the network and at the image service",
                code=_CHECKSUM,
            )
        if not wanted.checksum:
            LOG.info(
                "Image %s has no checksum, so only the size of %s of server %s was compared with it",
                *(wanted.image, disk, ctx.server),
            )
        _require_format(ctx, file, wanted)
        allocated = os.fstat(file).st_blocks * 512
    finally:
        os.close(file)
    return CopiedDisk(
        name=disk,
        format=wanted.format,
        size=wanted.size,
        allocated=allocated,
        sent=wanted.size - kept,
        checksum=found,
        source_checksum=wanted.checksum,
    )


def _require_recorded(ctx: Context, image: ImageRecord, wanted: DownloadedDisk) -> None:
    whose = f"image {image.id} of {wanted.disk} of server {ctx.server}"
    if image.status != ACTIVE:
        raise ctx.failed(f"{whose} is {image.status[:40]}: it has no data", code=GONE)
    if image.size != wanted.size or (wanted.checksum and image.checksum != wanted.checksum):
        raise ctx.failed(
            f"{whose} has {image.size} bytes and the checksum {image.checksum[:200] or 'none'}, which is not what was "
            f"recorded: {wanted.size} bytes and {wanted.checksum or 'none'}",
            code=_CHECKSUM,
        )


def _receive(ctx: Context, wanted: DownloadedDisk, file: int, tally: Tally, limits: tuple[Bucket, ...]) -> None:
    """Download what is missing behind the end of the file; zeros become holes, and the file is synced now and then."""
    patience = _Patience(ctx)
    done = unsynced = 0

    def stream() -> None:
        nonlocal done, unsynced
        done = os.fstat(file).st_size
        with contextlib.closing(ctx.host.references.download_image(wanted.image, done)) as chunks:
            for chunk in chunks:
                if done + len(chunk) > wanted.size:
                    raise _other_size(ctx, wanted, f"more than {done}")
                _take(ctx, limits, len(chunk))
                _write(file, chunk, done)
                done += len(chunk)
                unsynced += len(chunk)
                tally.add(len(chunk))
                patience.renew()
                if unsynced >= copying.SYNC_BYTES:
                    ctx.effect("chunk")
                    os.fdatasync(file)
                    unsynced = 0

    if os.fstat(file).st_size < wanted.size:
        ctx.effect("download")
        patience.ask(stream)
        if done < wanted.size:
            raise _other_size(ctx, wanted, f"{done}")
    ctx.effect("received")
    os.fsync(file)


def _other_size(ctx: Context, wanted: DownloadedDisk, found: str) -> StepError:
    return ctx.failed(
        f"the image service gives {found} bytes of image {wanted.image}, which has {wanted.size}", code=_CHECKSUM
    )


def _write(file: int, data: bytes, offset: int) -> None:
    """Write the data, or leave a hole for zeros; the file ends right behind the data either way."""
    left = memoryview(data)
    if extents.is_zero(left):
        os.ftruncate(file, offset + len(left))
        return
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def _proved(ctx: Context, directory: int, wanted: DownloadedDisk) -> str:
    """Return the checksum of the disk as it was written."""
    ctx.effect("verify")
    return _digest(ctx, directory, wanted.disk, wanted.algorithm if wanted.checksum else SHA512)


def _require_format(ctx: Context, file: int, wanted: DownloadedDisk) -> None:
    """Raise StepError for a disk that is no qcow2 although its image says so, or that rests on other files."""
    if wanted.format == headers.RAW:
        return
    whose = f"image {wanted.image} of {wanted.disk} of server {ctx.server}"
    header = headers.read(file, whose)
    if header is None:
        raise ctx.failed(f"{whose} is said to be {wanted.format}, and has no such header", code=headers.CODE)
    headers.require_self_contained(header, whose)
    if header.backing:
        raise ctx.failed(
            f"{whose} rests on {header.backing[:200]!r}: an image must not have a backing file", code="backing-file"
        )


class _Data:
    """Reads a disk's bytes past the page cache while they are sent, and hashes them."""

    def __init__(self, ctx: Context, directory: Directory, disk: str, tally: Tally) -> None:
        self.disk = disk
        self._ctx = ctx
        self._directory = directory
        self._tally = tally
        self._told = 0
        self._sent = ""
        with extents.Medium(directory.file, disk) as medium:
            self._size = medium.size
        tally.expect(self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        self._tally.add(-self._told)
        self._told = 0
        whole = hashlib.sha512()
        for data in _read(self._ctx, self._directory.file, self.disk, self._size):
            _take(self._ctx, (self._ctx.host.limits.sending,), len(data))
            whole.update(data)
            yield data
            self._told += len(data)
            self._tally.add(len(data))
        self._sent = whole.hexdigest()

    def checksum(self, algorithm: str) -> str:
        """Return the checksum of all bytes: of those that were sent, or of the disk read once more."""
        if self._sent and algorithm == SHA512:
            return self._sent
        return _digest(self._ctx, self._directory.file, self.disk, algorithm)


class _Patience:
    """Repeats calls for a while when the image service does not answer."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.renew()

    def renew(self) -> None:
        """Start the time anew, because the image service has answered."""
        self._ends = time.monotonic() + PATIENCE

    def ask(self, call: Callable[[], _Answer]) -> _Answer:
        """Return what ``call`` returns; it may be called several times."""
        while True:
            try:
                answer = call()
            except StepError as error:
                if error.error_code != _AWAY or time.monotonic() >= self._ends:
                    raise
                self._ctx.pause(POLL)
            else:
                self.renew()
                return answer


def _read(ctx: Context, directory: int, disk: str, size: int) -> Iterator[memoryview]:
    """Yield the disk's bytes, read past the page cache; each part is valid until the next one."""
    with extents.Medium(directory, disk) as medium:
        for offset in range(0, size, extents.CHUNK):
            ctx.check()
            length = min(extents.CHUNK, size - offset)
            try:
                data = medium.read(offset, length)
            except OSError as error:
                # The client of the image service would take an OSError for a lost connection.
                raise ctx.failed(f"{disk} of server {ctx.server} cannot be read: {error}", code="io") from None
            if len(data) < length:
                raise _changed(ctx, disk)
            yield data


def _digest(ctx: Context, directory: int, disk: str, algorithm: str) -> str:
    whole = hashlib.new(algorithm)
    with extents.Medium(directory, disk) as medium:
        size = medium.size
    for data in _read(ctx, directory, disk, size):
        whole.update(data)
    return whole.hexdigest()


def _is_known(algorithm: str) -> bool:
    """Return whether this host can make checksums of this kind; kinds without a fixed length do not count."""
    return algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake")


def _take(ctx: Context, limits: tuple[Bucket, ...], count: int) -> None:
    """Wait until so many bytes may be sent or received."""
    ctx.check()
    for limit in limits:
        while seconds := limit.take(count):
            ctx.pause(seconds)


def _identity(directory: Directory, disk: str) -> bytes:
    """Return a text of size, mtime and inode, which changes when the disk is written to or replaced."""
    file = open_file(directory.file, disk)
    try:
        os.fsync(file)
        status = os.fstat(file)
    finally:
        os.close(file)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode()


def _require_unchanged(ctx: Context, directory: Directory, disk: str, before: bytes) -> None:
    if _identity(directory, disk) != before:
        raise _changed(ctx, disk)


def _changed(ctx: Context, disk: str) -> StepError:
    return ctx.failed(
        f"{disk} of server {ctx.server} was changed on {ctx.host.name} while it was read", code="source-changed"
    )
