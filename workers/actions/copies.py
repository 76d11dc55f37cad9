"""Actions that make the destination's own copy of a server's disks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from droveway import log_context
from droveway.errors import Fenced, StepError
from droveway.wire.commands import CopyDisks, FitDisks, OfferDisks, ProbeTransfer
from droveway.wire.values import SWAP, harmless
from droveway.workers.actions import backing_files
from droveway.workers.actions.ownership import (
    base_of,
    discard_copy,
    discard_parts,
    discard_renamed_copy,
    hold_storage,
    own_copy_opened,
    own_manifest,
    part_name,
    refuse_running,
    require_storage,
    set_aside_name,
)
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context, Host
from droveway.workers.directories import (
    DISK_INFO,
    BaseFile,
    CopiedDisk,
    Directory,
    Marker,
    SetAsideDisk,
    is_digest,
    is_disk,
)
from droveway.workers.fence import standing_epoch
from droveway.workers.hypervisors import headers
from droveway.workers.journal import Offer
from droveway.workers.transfer import frames
from droveway.workers.transfer.chunk_log import log_name
from droveway.workers.transfer.client import RemoteSource
from droveway.workers.transfer.copying import Tally, copy_disk, readers
from droveway.workers.transfer.sources import LocalSource, Source

SIDE_BY_SIDE: Final = 4
"""Most disks of a server that are copied at the same time."""

EPHEMERAL: Final = "disk.eph0"

PROBE_PATIENCE: Final = 5.0
"""Seconds within which the source's transfer port has to answer `probe_transfer`."""

_NO_WAY: Final = frozenset({"source-unreachable", "certificate", "address", "protocol"})
"""Error codes that mean that no disk could be fetched from the source."""

Copies = tuple[list[CopiedDisk], list[CopiedDisk]]
"""The copied disks, and the bases that had to be fetched for them."""

_Disk = TypeVar("_Disk")


@action()
def offer_disks(ctx: Context, details: OfferDisks) -> dict[str, Any]:
    """Let the peer fetch what was set aside; the answer has the address to fetch it from."""
    own_manifest(ctx)
    refuse_running(ctx, "its disks are offered")
    ctx.effect("offer")
    ctx.journal.put_offer(Offer(server=ctx.server, move=ctx.move, peer=details.peer, epoch=ctx.epoch))
    ctx.effect("offered")
    return {"address": ctx.host.transfer_address}


@undo
def undo_offer_disks(ctx: Context, _: OfferDisks) -> dict[str, Any]:
    """Withdraw the offer."""
    ctx.effect("withdraw")
    ctx.journal.drop_offer(ctx.server, ctx.move)
    return {}


def admit(host: Host, hello: frames.Hello) -> LocalSource:
    """Open the disks that the hello of a peer asks for.

    Raises StepError (``not-offered``) unless they are set aside and offered to this peer for this move, Fenced unless
    the peer's epoch stands, and StepError (``guest-runs``) while the guest runs.
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


@action(of_destination=True, thrifty=True)
def probe_transfer(ctx: Context, details: ProbeTransfer) -> dict[str, Any]:
    """Report whether the source's transfer port answers this host as it would for a copy, and why not."""
    hello = frames.Hello(peer=ctx.host.name, server=ctx.server, move=ctx.move, epoch=ctx.epoch, probe=True)
    source = RemoteSource(
        details.source,
        details.address,
        hello,
        pause=ctx.pause,
        patience=PROBE_PATIENCE,
        identity=ctx.host.identity,
    )
    ctx.effect("probe")
    try:
        with contextlib.closing(source):
            source.offered()
    except StepError as error:
        if error.error_code not in _NO_WAY:
            raise
        return {"reached": False, "why": harmless(error.message)}
    return {"reached": True, "why": ""}


@action(of_destination=True, fills_disk=True)
def copy_disks(ctx: Context, details: CopyDisks) -> dict[str, Any]:
    """Copy every disk but swap, prove the copies, give their directory the server's name and remove the storage probe.

    The answer lists the disks.  Each has its sizes in bytes and two checksums: of the source's disk and of the copy.
    ``bytes`` is how many bytes crossed the network for all disks together.
    """

    def copy_into(own: Directory) -> Copies:
        return _copy_local(ctx, own) if details.variant == "local" else _pull(ctx, details, own)

    return make_copy(ctx, copy_into, variant=details.variant, probe=details.probe)


@undo
def undo_copy_disks(ctx: Context, _: CopyDisks) -> dict[str, Any]:
    """Delete the copy that this move made."""
    return remove_copy(ctx)


def make_copy(ctx: Context, copy_into: Callable[[Directory], Copies], *, variant: str, probe: str) -> dict[str, Any]:
    """Make this move's copy in its own directory, give the directory the server's name and remove the storage probe.

    ``copy_into`` copies the disks into the directory that it gets.
    """
    hold_storage(ctx)
    if ctx.directories.exists(ctx.server):
        _clear_the_way(ctx)
    if not ctx.directories.exists(ctx.server):
        part = part_name(ctx)
        if ctx.directories.marker(part) is None:
            _fill(ctx, copy_into, part)
        ctx.effect("rename")
        ctx.fence()
        ctx.directories.rename(part, ctx.server)
    ctx.effect("renamed")
    ctx.directories.remove_probe(probe)
    marker = ctx.directories.marker(ctx.server)
    disks = marker.disks if marker is not None else []
    fetched = marker.bases if marker is not None else []
    return {
        "variant": variant,
        "disks": [msgspec.to_builtins(disk) for disk in disks],
        "bases": [msgspec.to_builtins(base) for base in fetched],
        "bytes": sum(disk.sent for disk in [*disks, *fetched]) if variant != "local" else 0,
    }


def remove_copy(ctx: Context) -> dict[str, Any]:
    """Delete what `make_copy` made, whole or not: the undo of every action that calls it."""
    require_storage(ctx)
    discard_copy(ctx)
    discard_renamed_copy(ctx)
    discard_parts(ctx)
    ctx.journal.forget(ctx.step_key)
    return {}


@action(of_destination=True, fills_disk=True)
def fit_disks(ctx: Context, details: FitDisks) -> dict[str, Any]:
    """Rest overlays on this host's bases, grow root and ephemeral disk to the flavor, make swap anew; shrinks no disk.

    This is Nova's finish_migration.  The directory is opened once and proved to be this move's copy, and everything is
    written through it.  So a worker that slept meanwhile never writes into another directory that has got its name.
    """
    with own_copy_opened(ctx) as (copy, marker):
        refuse_running(ctx, "its disks are grown")
        _rebase(ctx, copy, marker)
        formats = {disk.name: disk.format for disk in marker.disks}
        if details.root_bytes:
            if "disk" not in formats:
                raise ctx.failed(f"server {ctx.server} has no root disk on {ctx.host.name} to grow", code="missing")
            _grow(ctx, copy, "disk", formats["disk"], details.root_bytes)
        wanted = {EPHEMERAL: (details.ephemeral_bytes, "ephemeral"), SWAP: (details.swap_bytes, "swap")}
        made = {disk: ctx.hypervisor.disk_format for disk, (size, _) in wanted.items() if size and disk not in formats}
        ctx.replacing("disk_info")
        # The formats are recorded before the disks are made, because no disk without a recorded format is ever opened.
        copy.write(DISK_INFO, ctx.directories.format_record(ctx.server, formats | made))
        present = copy.disks()
        for disk, (size, kind) in wanted.items():
            if size and disk in present:
                _grow(ctx, copy, disk, (formats | made)[disk], size)
            elif size:
                ctx.replacing(f"create_{kind}")
                ctx.hypervisor.create_disk(copy.path(disk), size=size, kind=kind)
        infos = [ctx.hypervisor.disk_info(copy.path(disk), known) for disk, known in copy.formats().items()]
    return {"disks": [msgspec.to_builtins(info) for info in infos]}


def _rebase(ctx: Context, copy: Directory, marker: Marker) -> None:
    for disk in marker.disks:
        if disk.backing:
            ctx.replacing("rebase")
            base = Path(base_of(ctx, disk))
            ctx.hypervisor.rebase_disk(copy.path(disk.name), disk.format, base, disk.backing_format)


def _grow(ctx: Context, copy: Directory, disk: str, disk_format: str, size: int) -> None:
    if ctx.hypervisor.disk_info(copy.path(disk), disk_format).virtual_size < size:
        ctx.replacing("grow")
        ctx.hypervisor.grow_disk(copy.path(disk), disk_format, size)


def _clear_the_way(ctx: Context) -> None:
    """Remove an earlier alternate's copy; raises DestinationFault (``in-the-way``) for what is no copy of this move."""
    marker = ctx.directories.marker(ctx.server)
    if marker is None or marker.move != ctx.move:
        owner = "no move of ours" if marker is None else f"move {marker.move}"
        raise ctx.fault(
            f"host {ctx.host.name} already has {ctx.directories.path(ctx.server)}, left by {owner}: "
            "see what it is and remove it",
            code="in-the-way",
        )
    if marker.host != ctx.host.name:
        # An earlier destination, with which this host shares its storage, died and left this copy.  The server may have
        # run on its source since, and then the copy is out of date.
        discard_copy(ctx, of_any_host=True)


def _fill(ctx: Context, copy_into: Callable[[Directory], Copies], part: str) -> None:
    """Make the copies in the move's own directory; the marker is written last and says that they were proved."""
    ctx.directories.create(part)
    with ctx.directories.opened(part) as own:
        disks, fetched = copy_into(own)
        formats = {disk.name: disk.format for disk in disks}
        for disk in disks:
            found = ctx.hypervisor.disk_info(own.path(disk.name), disk.format)
            if bool(found.backing) != bool(disk.backing):
                raise ctx.failed(
                    f"{disk.name} of server {ctx.server} rests on {found.backing or 'nothing'}, which is not what was "
                    "recorded",
                    code="backing-file",
                )
        ctx.effect("disk_info")
        own.write(DISK_INFO, ctx.directories.format_record(ctx.server, formats))
        for disk in disks:
            own.unlink(log_name(disk.name))
        ctx.effect("marker")
        own.write_record(
            Marker(
                move=ctx.move,
                epoch=ctx.epoch,
                server=ctx.server,
                host=ctx.host.name,
                disks=disks,
                bases=fetched,
            )
        )


def _copy_local(ctx: Context, own: Directory) -> Copies:
    manifest = own_manifest(ctx)
    refuse_running(ctx, "its disks are copied")

    def source() -> LocalSource:
        return LocalSource(ctx.host.name, ctx.directories, set_aside_name(ctx.server), manifest)

    return _copy(ctx, own, manifest.disks, manifest.bases, source)


def _pull(ctx: Context, details: CopyDisks, own: Directory) -> Copies:
    limits = ctx.host.limits.of_transfer()

    def source() -> RemoteSource:
        hello = frames.Hello(peer=ctx.host.name, server=ctx.server, move=ctx.move, epoch=ctx.epoch)
        return RemoteSource(
            details.source, details.address, hello, pause=ctx.pause, identity=ctx.host.identity, limits=limits
        )

    with contextlib.closing(source()) as first:
        offered = first.offered()
    return _copy(ctx, own, offered.disks, offered.bases, source)


def _copy(
    ctx: Context, own: Directory, disks: list[SetAsideDisk], bases: list[BaseFile], source: Callable[[], Source]
) -> Copies:
    for digest in {*(base.digest for base in bases), *(disk.backing for disk in disks if disk.backing)}:
        if not is_digest(digest):
            raise ctx.failed(f"the source offers {digest!r}, which is no digest of a base", code="protocol")
    for name, disk_format in _formats_in(disks, bases):
        headers.require_format(disk_format, f"{name} of server {ctx.server}")
    tally = Tally(ctx)
    fetched = backing_files.fetch(ctx, own, bases, source, tally) if bases else []

    def copy(disk: SetAsideDisk, directory: int) -> CopiedDisk:
        with readers(source) as sources:
            return copy_disk(ctx, sources, directory, disk, tally)

    return side_by_side(ctx, own, {disk.name: disk for disk in disks}, copy), fetched


def side_by_side(
    ctx: Context, own: Directory, disks: Mapping[str, _Disk], copy: Callable[[_Disk, int], CopiedDisk]
) -> list[CopiedDisk]:
    """Copy several disks at once, each by its name; the first error is raised when all of them have stopped."""
    wanted = [disk for name, disk in disks.items() if name != SWAP]
    for name in disks:
        if name != SWAP and not is_disk(name):
            raise ctx.failed(f"the source offers {name!r}, which is no disk's name", code="protocol")
    if len(wanted) <= 1:
        copied = [copy(disk, own.file) for disk in wanted]
    else:
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE, initializer=log_context.setter_of_these_ids()) as pool:
            copied = [future.result() for future in [pool.submit(copy, d, own.file) for d in wanted]]
    os.fsync(own.file)
    return copied


def _formats_in(disks: list[SetAsideDisk], bases: list[BaseFile]) -> Iterator[tuple[str, str]]:
    """Yield every format that the source names, with the name of the disk or base that is said to have it."""
    for disk in disks:
        yield disk.name, disk.format
        if disk.backing:
            yield f"the base of {disk.name}", disk.backing_format
    for base in bases:
        yield f"the base {base.digest[:12]}", base.format
