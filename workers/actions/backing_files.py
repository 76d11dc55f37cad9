"""Takes along the base files that overlay disks rest on; they lie in ``_base`` beside the servers, as Nova keeps them.

An overlay is copied as it is.  Its base is copied only to a host that has no base of that content, and is named by its
digest there.  An overlay over any other content would be silently corrupt.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from droveway.wire.commands import DiskInfo
from droveway.workers import names
from droveway.workers.context import Context
from droveway.workers.directories import BASES, BaseFile, CopiedDisk, Directory, SetAsideDisk, is_digest, open_file
from droveway.workers.transfer import extents
from droveway.workers.transfer.chunk_log import log_name
from droveway.workers.transfer.copying import Tally, copy_disk, readers
from droveway.workers.transfer.sources import Source, base_name

_CODE: Final = "backing-file"


def require(ctx: Context, disk: DiskInfo) -> None:
    """Raise StepError (``backing-file``) when the base of an overlay cannot go along; its content is not looked at."""
    path = Path(disk.backing)
    whose = f"{disk.name} of server {ctx.server} rests on {path}"
    if not disk.backing_format or path.resolve().parent != ctx.directories.path(BASES).resolve():
        raise ctx.failed(f"{whose}, which is no base of host {ctx.host.name}: flatten the disk first", code=_CODE)
    if not path.is_file():
        raise ctx.failed(f"{whose}, which is not there on {ctx.host.name}: restore it", code=_CODE)
    if ctx.hypervisor.disk_info(path, disk.backing_format).backing:
        raise ctx.failed(f"{whose}, which rests on a further file: flatten the disk first", code=_CODE)


def describe(ctx: Context, disk: DiskInfo) -> BaseFile:
    """Return the base of an overlay that is being set aside; raises StepError (``backing-file``) as `require` does.

    Raises it also when the content of the base is not what its name says.
    """
    require(ctx, disk)
    path = Path(disk.backing)
    with ctx.directories.open(BASES) as directory:
        digest = extents.digest(directory, path.name, ctx.check)
        file = open_file(directory, path.name)
        try:
            status = os.fstat(file)
        finally:
            os.close(file)
    if is_digest(path.name) and path.name != digest:
        raise ctx.failed(
            f"{disk.name} of server {ctx.server} rests on {path}, whose content is not what its name says on "
            f"{ctx.host.name}: restore it",
            code=_CODE,
        )
    return BaseFile(
        file=path.name,
        digest=digest,
        format=disk.backing_format,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
    )


def fetch(
    ctx: Context,
    own: Directory,
    bases: list[BaseFile],
    source: Callable[[], Source],
    tally: Tally,
) -> list[CopiedDisk]:
    """Fetch every base that this host has not; returns the bases that were copied."""
    ctx.directories.create(BASES)
    copied = []
    for base in bases:
        if not _is_here(ctx, base.digest):
            with readers(source) as sources:
                copied.append(_fetch(ctx, own, base, sources, tally))
    return copied


def _is_here(ctx: Context, digest: str) -> bool:
    with ctx.directories.open(BASES) as directory:
        try:
            found = extents.digest(directory, digest, ctx.check)
        except FileNotFoundError:
            return False
    if found != digest:
        raise ctx.fault(
            f"the base {ctx.directories.path(BASES, digest)} on {ctx.host.name} has other content than its name says: "
            "remove it",
            code=_CODE,
        )
    return True


def _fetch(ctx: Context, own: Directory, base: BaseFile, sources: list[Source], tally: Tally) -> CopiedDisk:
    """Copy and prove a base in the move's own directory, then give it its name among the bases."""
    name = base_name(base.digest)
    facts = SetAsideDisk(
        name=name, format=base.format, size=base.size, allocated=0, mtime_ns=base.mtime_ns, inode=base.inode
    )
    with ctx.directories.open(BASES) as bases:
        copied = copy_disk(ctx, sources, own.file, facts, tally)
        found = extents.digest(own.file, name, ctx.check)
        if found != base.digest:
            raise ctx.failed(
                f"the base {base.file} of server {ctx.server} was changed on {sources[0].host} after it was set aside",
                code=_CODE,
            )
        if ctx.hypervisor.disk_info(own.path(name), base.format).backing:
            raise ctx.failed(
                f"the base {base.file} of server {ctx.server} rests on a further file: flatten the disk first",
                code=_CODE,
            )
        ctx.replacing("base")
        try:
            names.rename(own.file, name, bases, base.digest)
        except FileExistsError:
            # Another move has fetched the base meanwhile, and guests may rest on that file already.
            _is_here(ctx, base.digest)
            own.unlink(name)
        os.fsync(bases)
        os.fsync(own.file)
    own.unlink(log_name(name))
    return msgspec.structs.replace(copied, checksum=found, source_checksum=base.digest)
