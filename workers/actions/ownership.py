"""Tells which move a directory or a guest belongs to, and deletes what is this move's; every action asks here first."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from droveway.errors import StepError
from droveway.printable import SHORT
from droveway.workers.context import Context
from droveway.workers.directories import BASES, MANIFEST, CopiedDisk, Directory, Manifest, Marker
from droveway.workers.hypervisors.base import GuestRecord

_STORE: Final = "store"
"""The note that says which instances directory a step worked in; old releases noted an inode, as ``storage``."""

_SPARE_BITS: Final = 65

OwnerCheck = Callable[[str], bool]
"""Takes the name of a directory, and tells whether the directory is what the move may delete."""


def set_aside_name(server: str) -> str:
    """Return Nova's name of the directory that was set aside."""
    return f"{server}_resize"


def deleted_name(server: str) -> str:
    """Return Nova's name of a directory that is to be deleted soon."""
    return f"{server}_del"


def kept_name(server: str, move: str) -> str:
    """Return the name of a directory that is kept: by a confirm until a date, or by `rename_copy`."""
    return f"{server}_keep-{move}"


def part_name(ctx: Context) -> str:
    """Return the name of the directory in which this host makes the copy.

    The name contains the host's name, because two destinations of one move may share their storage.
    """
    return f"{ctx.server}.part-{ctx.move}-{ctx.host.name}"


def gone_name(ctx: Context, move: str = "") -> str:
    """Return the name that a directory gets right before it is deleted by this move, or by the given one.

    Nova takes no such name for a server's directory.
    """
    return f"{ctx.server}.gone-{move or ctx.move}"


def in_use(ctx: Context, disks: Iterable[str]) -> list[Path]:
    """Return the paths that these disks have while the server uses them, the root disk first."""
    return [ctx.directories.path(ctx.server, disk) for disk in sorted(disks)]


def refuse_running(ctx: Context, why: str) -> None:
    """Raise StepError (``guest-runs``) while the server's guest runs on this host."""
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None and guest.running:
        raise ctx.failed(
            f"the guest of server {ctx.server} runs on {ctx.host.name}: stop it before {why}", code="guest-runs"
        )


def refuse_foreign(ctx: Context, guest: GuestRecord) -> None:
    """Raise StepError (``foreign``) when the guest carries the mark of another move that has not ended."""
    if guest.mark is not None and ctx.is_foreign(guest.mark.move):
        raise ctx.failed(
            f"the guest of server {ctx.server} on {ctx.host.name} belongs to move {guest.mark.move}, which has not "
            "ended: it is left alone",
            code="foreign",
        )


def discard(ctx: Context, name: str, is_ours: OwnerCheck, *, of_move: str = "") -> None:
    """Delete a directory, also one that is half deleted: it is renamed first, and then its content is deleted.

    The rename may take another directory than the one that was checked: it can hang in the kernel while an NFS server
    is away.  So ``is_ours`` checks the directory again under its new name.  ``of_move`` is the move whose directory it
    is, if not this one.  Raises StepError (``foreign``) for a directory that is not ours, which gets its name back.
    """
    gone = gone_name(ctx, of_move)
    _delete(ctx, gone, name, is_ours)
    if ctx.directories.exists(name):
        ctx.effect("discard")
        ctx.fence()
        ctx.directories.rename(name, gone)
        ctx.effect("delete")
        _delete(ctx, gone, name, is_ours)


def _delete(ctx: Context, gone: str, name: str, is_ours: OwnerCheck) -> None:
    if not ctx.directories.exists(gone):
        return
    if not (ctx.directories.is_empty(gone) or is_ours(gone)):
        if not ctx.directories.exists(name):
            ctx.directories.rename(gone, name)
            gone = name
        raise ctx.failed(
            f"{ctx.directories.path(gone)} on {ctx.host.name} is not what move {ctx.move} wanted to delete: it is "
            "left alone",
            code="foreign",
        )
    ctx.directories.remove(gone)


def is_copy(ctx: Context, *, of_any_host: bool = False) -> OwnerCheck:
    """Return a function that tells whether the directory of a given name is a copy that this host made for this move.

    With ``of_any_host``, it may be any host's copy for this move.
    """

    def check(name: str) -> bool:
        marker = ctx.directories.marker(name)
        return marker is not None and marker.move == ctx.move and (of_any_host or marker.host == ctx.host.name)

    return check


def is_set_aside(ctx: Context, move: str = "") -> OwnerCheck:
    """Return a function that tells whether this move, or ``move``, set the directory of a given name aside."""

    def check(name: str) -> bool:
        manifest = ctx.directories.manifest(name)
        return manifest is not None and (manifest.move, manifest.server) == (move or ctx.move, ctx.server)

    return check


def is_whatever(_name: str) -> bool:
    """Accept every directory: a server that was deleted needs none of its directories."""
    return True


def discard_copy(ctx: Context, *, of_any_host: bool = False) -> None:
    """Delete the copy that this host made for this move; with ``of_any_host``, also one that another host made for it.

    Without ``of_any_host``, another host's copy on shared storage stays, because it may be in use.  The server's own
    directory has no marker of the move and is never deleted.
    """
    is_ours = is_copy(ctx, of_any_host=of_any_host)
    if is_ours(ctx.server):
        refuse_running(ctx, "its copy is deleted")
        discard(ctx, ctx.server, is_ours)


def discard_renamed_copy(ctx: Context) -> None:
    """Delete the copy that this host made for this move and then renamed (`rename_copy`)."""
    kept = kept_name(ctx.server, ctx.move)
    if is_copy(ctx)(kept):
        discard(ctx, kept, is_copy(ctx))


def discard_parts(ctx: Context) -> None:
    """Delete what this move left unfinished: half deleted directories and half made copies."""
    ctx.effect("discard_parts")
    _delete(ctx, gone_name(ctx), ctx.server, is_copy(ctx, of_any_host=True))
    ctx.directories.remove(part_name(ctx))


def undefine_own(ctx: Context) -> None:
    """Undefine the guest if it carries this move's mark.

    Raises StepError: ``guest-runs`` when it runs, ``foreign`` when it belongs to another move that has not ended.
    """
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None or guest.mark is None:
        return
    refuse_foreign(ctx, guest)
    if guest.mark.move == ctx.move:
        refuse_running(ctx, "its guest is undefined")
        ctx.effect("undefine")
        ctx.fence()
        ctx.hypervisor.undefine(ctx.server)


def own_manifest(ctx: Context, name: str = "") -> Manifest:
    """Return the manifest of what this move set aside, from ``<uuid>_resize`` or the directory of the given name.

    Raises StepError: ``foreign`` when the directory has no manifest of this move, ``missing`` when there is no
    directory, for example on a host that was installed anew.
    """
    name = name or set_aside_name(ctx.server)
    if not ctx.directories.exists(name):
        raise ctx.failed(
            f"nothing of server {ctx.server} is set aside on {ctx.host.name}: there is no {ctx.directories.path(name)}",
            code="missing",
        )
    manifest = ctx.directories.manifest(name)
    if manifest is None or manifest.move != ctx.move or manifest.server != ctx.server:
        owner = "an unknown owner" if manifest is None else f"move {manifest.move}"
        raise ctx.failed(
            f"{ctx.directories.path(name)} on {ctx.host.name} was left by {owner}: see what it is and remove it",
            code="foreign",
        )
    return manifest


def base_of(ctx: Context, disk: CopiedDisk) -> str:
    """Return the path of the base that a copied overlay rests on here; empty for a disk without a base."""
    return str(ctx.directories.path(BASES, disk.backing)) if disk.backing else ""


def own_copy(ctx: Context) -> None:
    """Raise StepError (``foreign``) unless ``<uuid>`` is the copy that this move made."""
    marker = ctx.directories.marker(ctx.server)
    if marker is None or marker.move != ctx.move or marker.server != ctx.server:
        raise ctx.failed(
            f"{ctx.directories.path(ctx.server)} on {ctx.host.name} is not the copy of move {ctx.move}: "
            "it is left alone",
            code="foreign",
        )


@contextlib.contextmanager
def own_copy_opened(ctx: Context) -> Iterator[tuple[Directory, Marker]]:
    """Open ``<uuid>`` once and yield it; raises StepError (``foreign``) unless this host made it for this move.

    On storage that two hosts share, two alternates of one move make their copies under the same name, one after the
    other.  While the first host's worker sleeps, its directory may be deleted and the second host may make its own.  So
    the marker is read from the directory that was opened here, and not by its name.
    """
    with ctx.directories.opened(ctx.server) as directory:
        marker = directory.marker()
        if marker is None or (marker.move, marker.server, marker.host) != (ctx.move, ctx.server, ctx.host.name):
            raise ctx.failed(
                f"{ctx.directories.path(ctx.server)} is not the copy that {ctx.host.name} made for move {ctx.move}: "
                "it is left alone",
                code="foreign",
            )
        yield directory, marker


def hold_storage(ctx: Context) -> None:
    """Remember which instances directory this step works in; raises StepError when another one is in its place.

    After an unmount an empty directory lies there, in which an undo would find nothing to do and report success.
    """
    for stem in (ctx.step_key, ctx.move):
        # Two notes: the step's own, which its undo drops, and the move's, which a later `discard` checks.
        if not ctx.journal.noted(stem, _STORE, 0):
            ctx.journal.note(stem, _STORE, _store_number(ctx.directories.identity()))
    require_storage(ctx)


def require_storage(ctx: Context, *, stem: str = "") -> None:
    """Raise StepError (``storage-away``) when the instances directory is not the one that the step worked in.

    Undos call this.  ``stem`` is the stem of the note that `hold_storage` wrote: a move's id, or this step's
    `Context.step_key` when it is empty.  When there is no such note, nothing is checked.
    """
    present = _store_number(ctx.directories.known_identity())
    if ctx.journal.noted(stem or ctx.step_key, _STORE, present) != present:
        raise _storage_away(ctx)


def _store_number(identity: str) -> int:
    """Return the half of an instances directory's id that fits into a note; 0 for a directory without an id."""
    return uuid.UUID(identity).int >> _SPARE_BITS if identity else 0


def _storage_away(ctx: Context) -> StepError:
    return ctx.failed(
        f"the servers' directory {ctx.directories.instances} of host {ctx.host.name} is not the one that move "
        f"{ctx.move[:SHORT]} worked in: mount it again",
        code="storage-away",
    )


def forget_manifest(ctx: Context) -> None:
    """Drop this move's manifest from disks that are in use again, because it no longer describes them."""
    manifest = ctx.directories.manifest(ctx.server)
    if manifest is None or manifest.move == ctx.move:
        # When there is no manifest, a killed write of one may have left its temporary file.
        ctx.directories.unlink(ctx.server, MANIFEST)
