"""Actions that set a server's disks aside, bring them back or delete them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from droveway.wire.commands import DiscardDestination, DiscardSource, NoDetails, PurgeKept, RestoreDisks
from droveway.wire.values import SWAP
from droveway.workers.actions import backing_files
from droveway.workers.actions.ownership import (
    deleted_name,
    discard,
    discard_copy,
    discard_renamed_copy,
    forget_manifest,
    hold_storage,
    is_copy,
    is_set_aside,
    kept_name,
    own_copy,
    own_manifest,
    part_name,
    refuse_foreign,
    refuse_running,
    require_storage,
    set_aside_name,
    undefine_own,
)
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context
from droveway.workers.directories import BaseFile, Directory, Manifest, SetAsideDisk, open_file


@action()
def set_aside(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Rename ``<uuid>`` to ``<uuid>_resize`` with a manifest of its disks in it (Nova's migrate_disk_and_power_off)."""
    name = set_aside_name(ctx.server)
    refuse_running(ctx, "its disks are set aside")
    hold_storage(ctx)
    if ctx.directories.exists(name):
        return _described(own_manifest(ctx))
    if not ctx.directories.exists(ctx.server):
        raise ctx.failed(
            f"server {ctx.server} has no directory {ctx.directories.path(ctx.server)} on {ctx.host.name}: "
            "its disks cannot be set aside",
            code="missing",
        )
    with ctx.directories.opened(ctx.server) as directory:
        manifest = _manifest(ctx, directory)
        ctx.replacing("manifest")
        directory.write_record(manifest)
    ctx.effect("rename")
    ctx.fence()
    ctx.directories.rename(ctx.server, name)
    ctx.effect("renamed")
    return _described(manifest)


@undo
def undo_set_aside(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Rename the directory back and drop the manifest.

    If a copy of this move lies under the server's name, it is deleted first.  On shared storage, a destination that is
    away now may have left it there.
    """
    name = set_aside_name(ctx.server)
    ctx.journal.drop_offer(ctx.server, ctx.move)
    require_storage(ctx)
    if ctx.directories.exists(name):
        own_manifest(ctx)
        refuse_running(ctx, "its disks are renamed")
        discard_copy(ctx, of_any_host=True)
        ctx.effect("rename")
        ctx.fence()
        ctx.directories.rename(name, ctx.server)
    ctx.effect("manifest")
    forget_manifest(ctx)
    ctx.journal.forget(ctx.step_key)
    return {}


@action(thrifty=True)
def restore_disks(ctx: Context, details: RestoreDisks) -> dict[str, Any]:
    """Rename what was set aside back to the server's name (Nova's finish_revert_migration).

    With ``same_directory``, source and destination keep their servers in one instances directory.  Then the copy has
    the server's name there, and is first renamed to ``<uuid>_del``.
    """
    name, deleted = set_aside_name(ctx.server), deleted_name(ctx.server)
    refuse_running(ctx, "its disks are renamed")
    hold_storage(ctx)
    if not ctx.directories.exists(name):
        if _is_restored(ctx):
            return {}
        raise ctx.failed(
            f"nothing of server {ctx.server} was set aside on {ctx.host.name} by move {ctx.move}", code="missing"
        )
    own_manifest(ctx)
    if details.same_directory and ctx.directories.exists(ctx.server):
        own_copy(ctx)
        ctx.effect("put_away")
        ctx.fence()
        ctx.directories.rename(ctx.server, deleted)
    ctx.effect("rename")
    ctx.fence()
    ctx.directories.rename(name, ctx.server)
    ctx.effect("renamed")
    return {}


@undo
def undo_restore_disks(ctx: Context, details: RestoreDisks) -> dict[str, Any]:
    """Set aside again what was brought back; with ``same_directory``, give the copy the server's name again."""
    name, deleted = set_aside_name(ctx.server), deleted_name(ctx.server)
    require_storage(ctx)
    if not ctx.directories.exists(name) and _is_restored(ctx):
        refuse_running(ctx, "its disks are renamed")
        ctx.effect("rename")
        ctx.fence()
        ctx.directories.rename(ctx.server, name)
    if details.same_directory and ctx.directories.exists(deleted) and not ctx.directories.exists(ctx.server):
        ctx.effect("take_back")
        ctx.fence()
        ctx.directories.rename(deleted, ctx.server)
    ctx.effect("renamed")
    ctx.journal.forget(ctx.step_key)
    return {}


@action(thrifty=True)
def discard_source(ctx: Context, details: DiscardSource) -> dict[str, Any]:
    """Delete or keep what was set aside, and undefine the source's guest (Nova's confirm_migration)."""
    name, kept = set_aside_name(ctx.server), kept_name(ctx.server, ctx.move)
    require_storage(ctx, stem=ctx.move)
    set_aside_here = ctx.directories.exists(name)
    if set_aside_here:
        own_manifest(ctx)
    ctx.journal.drop_offer(ctx.server, ctx.move)
    if details.undefine:
        _undefine_source(ctx)
    if not details.keep:
        discard(ctx, name, is_set_aside(ctx))
        # An earlier run of this step may have kept the directory.  When the server is deleted between two runs, the
        # conductor asks in the second one that nothing be kept.
        discard(ctx, kept, is_set_aside(ctx))
    elif set_aside_here:
        hold_storage(ctx)
        ctx.effect("keep")
        ctx.fence()
        ctx.directories.rename(name, kept)
    ctx.effect("discarded")
    return {"kept": kept if ctx.directories.exists(kept) else ""}


@action(thrifty=True)
def purge_kept(ctx: Context, details: PurgeKept) -> dict[str, Any]:
    """Delete what a confirm has kept; does nothing when it is not there."""
    kept = kept_name(ctx.server, details.of_move)
    require_storage(ctx, stem=details.of_move)
    if ctx.directories.exists(kept):
        manifest = ctx.directories.manifest(kept)
        if manifest is None or (manifest.move, manifest.server) != (details.of_move, ctx.server):
            raise ctx.failed(
                f"{ctx.directories.path(kept)} on {ctx.host.name} is not what move {details.of_move} kept: see what it "
                "is and remove it",
                code="foreign",
            )
    discard(ctx, kept, is_set_aside(ctx, details.of_move), of_move=details.of_move)
    ctx.effect("purged")
    ctx.journal.forget(ctx.step_key)
    return {}


@undo
def undo_purge_kept(ctx: Context, details: PurgeKept) -> dict[str, Any]:
    """Refuse the undo, so that what was kept stays until its time is over.

    The conductor records what is kept as a debt with a date, on which this host has to carry out `purge_kept`.  A
    conductor of an older release does not know such dates.  It pays every debt by asking the host for the undo of the
    debt's action, so it may ask for this undo before the date.
    """
    raise ctx.failed(f"what move {details.of_move} kept stays on {ctx.host.name} until its time is over")


@action(thrifty=True)
def discard_destination(ctx: Context, details: DiscardDestination) -> dict[str, Any]:
    """Undefine this move's guest and delete its copy, after the source's guest runs again (Nova's revert_resize).

    Only a guest with this move's mark is undefined.  When source and destination are one host, the guest there is
    already the source's again and has no mark.  With ``same_directory``, both keep their servers in one instances
    directory.  Then the copy has the name ``<uuid>_del`` (`restore_disks`).
    """
    require_storage(ctx, stem=ctx.move)
    undefine_own(ctx)
    if details.same_directory:
        discard(ctx, deleted_name(ctx.server), is_copy(ctx, of_any_host=True))
    else:
        if ctx.directories.exists(ctx.server):
            own_copy(ctx)
        discard(ctx, ctx.server, is_copy(ctx, of_any_host=True))
        discard_renamed_copy(ctx)
    ctx.directories.remove(part_name(ctx))
    ctx.effect("discarded")
    return {}


@action()
def rename_copy(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Rename this move's copy to ``<uuid>_keep-<move>`` and undefine its guest, when nobody knows if it is good.

    Under the server's name, a Nova that evacuates the server to this host would take the copy for the server's disks.
    Raises StepError: ``guest-runs`` while the copy is in use, ``foreign`` for a directory that took its place
    meanwhile.
    """
    is_ours, kept = is_copy(ctx), kept_name(ctx.server, ctx.move)
    require_storage(ctx, stem=ctx.move)
    undefine_own(ctx)
    if is_ours(ctx.server):
        refuse_running(ctx, "its copy is renamed")
        ctx.effect("rename")
        ctx.fence()
        ctx.directories.rename(ctx.server, kept)
        if not is_ours(kept):
            ctx.directories.rename(kept, ctx.server)
            own_copy(ctx)
    ctx.effect("renamed")
    return {"kept": kept if ctx.directories.exists(kept) else ""}


def _is_restored(ctx: Context) -> bool:
    manifest = ctx.directories.manifest(ctx.server)
    return manifest is not None and manifest.move == ctx.move


def _undefine_source(ctx: Context) -> None:
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None:
        return
    refuse_foreign(ctx, guest)
    if guest.mark is not None and guest.mark.move == ctx.move:
        raise ctx.failed(
            f"the guest of server {ctx.server} on {ctx.host.name} is the destination's: it is not undefined",
            code="foreign",
        )
    refuse_running(ctx, "its guest is undefined")
    ctx.effect("undefine")
    ctx.fence()
    ctx.hypervisor.undefine(ctx.server)


def _manifest(ctx: Context, directory: Directory) -> Manifest:
    found: dict[str, BaseFile] = {}
    disks = [_facts(ctx, directory, disk, known, found) for disk, known in directory.formats().items()]
    return Manifest(
        move=ctx.move, epoch=ctx.epoch, server=ctx.server, disks=disks, bases=sorted(found.values(), key=_digest)
    )


def _digest(base: BaseFile) -> str:
    return base.digest


def _facts(ctx: Context, directory: Directory, disk: str, disk_format: str, found: dict[str, BaseFile]) -> SetAsideDisk:
    file = open_file(directory.file, disk)
    try:
        os.fsync(file)
        status = os.fstat(file)
    finally:
        os.close(file)
    info = ctx.hypervisor.disk_info(directory.path(disk), disk_format)
    backing = info.backing if disk != SWAP else ""
    if backing and backing not in found:
        found[backing] = backing_files.describe(ctx, info)
    base = found.get(backing)
    return SetAsideDisk(
        name=disk,
        format=disk_format,
        size=status.st_size,
        allocated=status.st_blocks * 512,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
        backing=base.digest if base is not None else "",
        backing_format=base.format if base is not None else "",
    )


def _described(manifest: Manifest) -> dict[str, Any]:
    return {"disks": [msgspec.to_builtins(disk) for disk in manifest.disks]}
