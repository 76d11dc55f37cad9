"""Actions that make the destination's own copy of a server's disks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from droveway.errors import Fenced, StepError
from droveway.wire import CopyDisks, FitDisks, OfferDisks
from droveway.workers import bases, frames
from droveway.workers.context import Context, Host
from droveway.workers.copying import Tally, copy_disk, log_name, readers
from droveway.workers.directories import SWAP, BaseFile, CopiedDisk, Marker, SetAsideDisk, is_digest, is_disk
from droveway.workers.fence import standing_epoch
from droveway.workers.journal import Offer
from droveway.workers.ownership import (
    base_of,
    discard_copy,
    discard_parts,
    hold_storage,
    own_copy,
    own_manifest,
    part_name,
    refuse_running,
    require_storage,
    set_aside_name,
)
from droveway.workers.sources import LocalSource, Source
from droveway.workers.transfer import RemoteSource

SIDE_BY_SIDE: Final = 4
"""So many disks of a server are copied at once."""

EPHEMERAL: Final = "disk.eph0"


def offer_disks(ctx: Context, details: OfferDisks) -> dict[str, Any]:
    """Serve what was set aside to the peer; the value has the address to fetch it from."""
    own_manifest(ctx)
    refuse_running(ctx, "its disks are offered")
    ctx.effect("offer")
    ctx.journal.put_offer(Offer(server=ctx.server, move=ctx.move, peer=details.peer, epoch=ctx.epoch))
    ctx.effect("offered")
    return {"address": ctx.host.transfer_address}


def undo_offer_disks(ctx: Context, _: OfferDisks) -> dict[str, Any]:
    """Withdraw the offer."""
    ctx.effect("withdraw")
    ctx.journal.drop_offer(ctx.server, ctx.move)
    return {}


def admit(host: Host, hello: frames.Hello) -> LocalSource:
    """Open what the hello may fetch: offered to that peer for that move, by a claim that stands, its guest off.

    Raises StepError (``not-offered``, ``guest-runs``) or Fenced.
    """
    offer = host.journal.offer(hello.server)
    if offer is None or (offer.move, offer.peer) != (hello.move, hello.peer) or hello.epoch < offer.epoch:
        raise StepError(
            f"host {host.name} offers no disks of server {hello.server} to {hello.peer} for move {hello.move}",
            code="not-offered",
            host=host.name,
        )
    if standing_epoch(host.coordination, hello.move) != hello.epoch:
        raise Fenced(f"epoch {hello.epoch} of move {hello.move} no longer stands")
    name = set_aside_name(hello.server)
    manifest = host.directories.manifest(name)
    if manifest is None or manifest.move != hello.move:
        raise StepError(
            f"host {host.name} has set nothing of server {hello.server} aside for move {hello.move}",
            code="not-offered",
            host=host.name,
        )
    guest = host.hypervisor.guest(hello.server)
    if guest is not None and guest.running:
        raise StepError(
            f"the guest of server {hello.server} runs on {host.name}: its disks are not served",
            code="guest-runs",
            host=host.name,
        )
    return LocalSource(host.name, host.directories, name, manifest)


def copy_disks(ctx: Context, details: CopyDisks) -> dict[str, Any]:
    """Copy every disk but swap, prove the copies, give them their name and remove the storage probe.

    The value lists the disks with bytes and checksums of both ends; ``bytes`` is what crossed the wire in all.
    """
    hold_storage(ctx)
    if ctx.directories.exists(ctx.server):
        _clear_the_way(ctx)
    if not ctx.directories.exists(ctx.server):
        part = part_name(ctx)
        if ctx.directories.marker(part) is None:
            _fill(ctx, details, part)
        ctx.effect("rename")
        ctx.fence()
        ctx.directories.rename(part, ctx.server)
    ctx.effect("renamed")
    ctx.directories.remove_probe(details.probe)
    marker = ctx.directories.marker(ctx.server)
    disks = marker.disks if marker is not None else []
    fetched = marker.bases if marker is not None else []
    return {
        "variant": details.variant,
        "disks": [msgspec.to_builtins(disk) for disk in disks],
        "bases": [msgspec.to_builtins(base) for base in fetched],
        "bytes": sum(disk.sent for disk in [*disks, *fetched]) if details.variant == "pull" else 0,
    }


def undo_copy_disks(ctx: Context, _: CopyDisks) -> dict[str, Any]:
    """Delete this move's copy."""
    require_storage(ctx)
    discard_copy(ctx)
    discard_parts(ctx)
    ctx.journal.forget(ctx.stem)
    return {}


def fit_disks(ctx: Context, details: FitDisks) -> dict[str, Any]:
    """Rest overlays on this host's bases, grow root and ephemeral to the flavor, make swap anew; shrinks no disk.

    Nova's finish_migration.
    """
    own_copy(ctx)
    refuse_running(ctx, "its disks are grown")
    formats = ctx.directories.formats(ctx.server)
    _rebase(ctx)
    present = ctx.directories.disks(ctx.server)
    default = ctx.hypervisor.disk_format
    if details.root_bytes:
        if "disk" not in present:
            raise ctx.failed(f"server {ctx.server} has no root disk on {ctx.host.name} to grow", code="missing")
        _grow(ctx, "disk", formats.get("disk", default), details.root_bytes)
    wanted = {EPHEMERAL: (details.ephemeral_bytes, "ephemeral"), SWAP: (details.swap_bytes, "swap")}
    for disk, (size, kind) in wanted.items():
        if size and disk in present:
            _grow(ctx, disk, formats.get(disk, default), size)
        elif size:
            ctx.effect(f"create_{kind}")
            ctx.hypervisor.create_disk(ctx.directories.path(ctx.server, disk), size=size, kind=kind)
    names = ctx.directories.disks(ctx.server)
    ctx.effect("disk_info")
    ctx.directories.write_formats(ctx.server, ctx.server, {name: formats.get(name, default) for name in names})
    infos = [
        ctx.hypervisor.disk_info(ctx.directories.path(ctx.server, name), formats.get(name, default)) for name in names
    ]
    return {"disks": [msgspec.to_builtins(info) for info in infos]}


def _rebase(ctx: Context) -> None:
    marker = ctx.directories.marker(ctx.server)
    for disk in marker.disks if marker is not None else []:
        if disk.backing:
            ctx.effect("rebase")
            base = Path(base_of(ctx, disk))
            path = ctx.directories.path(ctx.server, disk.name)
            ctx.hypervisor.rebase_disk(path, disk.format, base, disk.backing_format)


def _grow(ctx: Context, disk: str, disk_format: str, size: int) -> None:
    path = ctx.directories.path(ctx.server, disk)
    if ctx.hypervisor.disk_info(path, disk_format).virtual_size < size:
        ctx.effect("grow")
        ctx.hypervisor.grow_disk(path, disk_format, size)


def _clear_the_way(ctx: Context) -> None:
    """Remove an earlier alternate's copy; raise DestinationFault (``in-the-way``) for what is no copy of this move."""
    marker = ctx.directories.marker(ctx.server)
    if marker is None or marker.move != ctx.move:
        owner = "no move of ours" if marker is None else f"move {marker.move}"
        raise ctx.fault(
            f"host {ctx.host.name} already has {ctx.directories.path(ctx.server)}, left by {owner}: "
            "see what it is and remove it",
            code="in-the-way",
        )
    if marker.host != ctx.host.name:
        # A destination that died left it on storage that this host shares, and the server has run since.
        discard_copy(ctx, of_any_host=True)


def _fill(ctx: Context, details: CopyDisks, part: str) -> None:
    """Make the copies in the move's own directory; its marker comes last and says that they were proved."""
    ctx.directories.create(part)
    copied, fetched = _copy_local(ctx, part) if details.variant == "local" else _pull(ctx, details, part)
    formats = {disk.name: disk.format for disk in copied}
    for disk in copied:
        found = ctx.hypervisor.disk_info(ctx.directories.path(part, disk.name), disk.format)
        if bool(found.backing) != bool(disk.backing):
            raise ctx.failed(
                f"{disk.name} of server {ctx.server} rests on {found.backing or 'nothing'}, which is not what was set "
                "aside",
                code="backing-file",
            )
    ctx.effect("disk_info")
    ctx.directories.write_formats(part, ctx.server, formats)
    for disk in copied:
        ctx.directories.unlink(part, log_name(disk.name))
    ctx.effect("marker")
    ctx.directories.write_record(
        part, Marker(move=ctx.move, epoch=ctx.epoch, server=ctx.server, host=ctx.host.name, disks=copied, bases=fetched)
    )


def _copy_local(ctx: Context, part: str) -> tuple[list[CopiedDisk], list[CopiedDisk]]:
    manifest = own_manifest(ctx)
    refuse_running(ctx, "its disks are copied")

    def source() -> LocalSource:
        return LocalSource(ctx.host.name, ctx.directories, set_aside_name(ctx.server), manifest)

    return _copy(ctx, part, manifest.disks, manifest.bases, source)


def _pull(ctx: Context, details: CopyDisks, part: str) -> tuple[list[CopiedDisk], list[CopiedDisk]]:
    limits = ctx.host.limits.of_transfer()

    def source() -> RemoteSource:
        hello = frames.Hello(peer=ctx.host.name, server=ctx.server, move=ctx.move, epoch=ctx.epoch)
        return RemoteSource(
            details.source, details.address, hello, pause=ctx.pause, identity=ctx.host.identity, limits=limits
        )

    with contextlib.closing(source()) as first:
        offered = first.offered()
    return _copy(ctx, part, offered.disks, offered.bases, source)


def _copy(
    ctx: Context, part: str, disks: list[SetAsideDisk], wanted: list[BaseFile], source: Callable[[], Source]
) -> tuple[list[CopiedDisk], list[CopiedDisk]]:
    """The disks, and the bases that had to be fetched for them."""
    for digest in {*(base.digest for base in wanted), *(disk.backing for disk in disks if disk.backing)}:
        if not is_digest(digest):
            raise ctx.failed(f"the source offers {digest!r}, which is no digest of a base", code="protocol")
    tally = Tally(ctx)
    fetched = bases.fetch(ctx, part, wanted, source, tally) if wanted else []

    def copy(disk: SetAsideDisk, directory: int) -> CopiedDisk:
        with readers(source) as sources:
            return copy_disk(ctx, sources, directory, disk, tally)

    return _side_by_side(ctx, part, disks, copy), fetched


def _side_by_side(
    ctx: Context, part: str, disks: list[SetAsideDisk], copy: Callable[[SetAsideDisk, int], CopiedDisk]
) -> list[CopiedDisk]:
    """Copy several disks at once; the first error ends them all once each has stopped."""
    wanted = [disk for disk in disks if disk.name != SWAP]
    for disk in wanted:
        if not is_disk(disk.name):
            raise ctx.failed(f"the source offers {disk.name!r}, which is no disk's name", code="protocol")
    with ctx.directories.open(part) as directory:
        if len(wanted) <= 1:
            copied = [copy(disk, directory) for disk in wanted]
        else:
            with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                copied = [future.result() for future in [pool.submit(copy, d, directory) for d in wanted]]
        os.fsync(directory)
    return copied
