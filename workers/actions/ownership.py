"""Whose a directory or a guest is, and what may be done to it: every action asks here before it touches one."""

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
"""The note of which instances directory a step worked in; earlier releases noted an inode, as ``storage``."""

_SPARE_BITS: Final = 65

Proof = Callable[[str], bool]
"""Tells of the name of a directory whether what lies there may be deleted."""


def set_aside_name(server: str) -> str:
    """Nova's name of the directory that was set aside."""
    return f"{server}_resize"


def deleted_name(server: str) -> str:
    """Nova's name of a directory that waits for its deletion."""
    return f"{server}_del"


def kept_name(server: str, move: str) -> str:
    """The directory of what is kept: by a confirm for a time, by a host for one that is dead."""
    return f"{server}_keep-{move}"


def part_name(ctx: Context) -> str:
    """The directory in which this move makes its copy on this host, with which others may share their storage."""
    return f"{ctx.server}.part-{ctx.move}-{ctx.host.name}"


def gone_name(ctx: Context, move: str = "") -> str:
    """The name under which this move, or the one given, deletes: one that nobody takes for a server's directory."""
    return f"{ctx.server}.gone-{move or ctx.move}"


def in_use(ctx: Context, disks: Iterable[str]) -> list[Path]:
    """The paths that disks of these names have while the server uses them, the root disk first."""
    return [ctx.directories.path(ctx.server, disk) for disk in sorted(disks)]


def refuse_running(ctx: Context, why: str) -> None:
    """Raise StepError (``guest-runs``) while the server's guest runs on this host."""
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None and guest.running:
        raise ctx.failed(
            f"the guest of server {ctx.server} runs on {ctx.host.name}: stop it before {why}", code="guest-runs"
        )


def refuse_foreign(ctx: Context, guest: GuestRecord) -> None:
    """Raise StepError (``foreign``) when another move that lives marked the guest."""
    if guest.mark is not None and ctx.is_foreign(guest.mark.move):
        raise ctx.failed(
            f"the guest of server {ctx.server} on {ctx.host.name} belongs to move {guest.mark.move}, which has not "
            "ended: it is left alone",
            code="foreign",
        )


def discard(ctx: Context, name: str, is_ours: Proof, *, of_move: str = "") -> None:
    """Delete a directory, half deleted ones too: first it loses its name, then what lies in it.

    ``is_ours`` looks at it under the name that it has lost: a rename that waited in the kernel, for a server of files
    that was away, may take another directory than the one that was looked at before.  ``of_move``: whose the directory
    is, unless this move's own.  Raises StepError (``foreign``) for one that is not ours, which gets its name back.
    """
    gone = gone_name(ctx, of_move)
    _delete(ctx, gone, name, is_ours)
    if ctx.directories.exists(name):
        ctx.effect("discard")
        ctx.fence()
        ctx.directories.rename(name, gone)
        ctx.effect("delete")
        _delete(ctx, gone, name, is_ours)


def _delete(ctx: Context, gone: str, name: str, is_ours: Proof) -> None:
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


def is_copy(ctx: Context, *, of_any_host: bool = False) -> Proof:
    """Return the proof that a directory is the copy that this host, or any, made for this move."""

    def proof(name: str) -> bool:
        marker = ctx.directories.marker(name)
        return marker is not None and marker.move == ctx.move and (of_any_host or marker.host == ctx.host.name)

    return proof


def is_set_aside(ctx: Context, move: str = "") -> Proof:
    """Return the proof that a directory is what this move, or the one given, set aside."""

    def proof(name: str) -> bool:
        manifest = ctx.directories.manifest(name)
        return manifest is not None and (manifest.move, manifest.server) == (move or ctx.move, ctx.server)

    return proof


def is_whatever(_name: str) -> bool:
    """Prove nothing: a server that was deleted needs none of its directories."""
    return True


def discard_copy(ctx: Context, *, of_any_host: bool = False) -> None:
    """Delete the copy that this host made for this move, and only that: another alternate's may be in use.

    With ``of_any_host`` also another host's.  The server's own directory has no marker of the move.
    """
    is_ours = is_copy(ctx, of_any_host=of_any_host)
    if is_ours(ctx.server):
        refuse_running(ctx, "its copy is deleted")
        discard(ctx, ctx.server, is_ours)


def discard_renamed_copy(ctx: Context) -> None:
    """Delete the copy that this host made for this move and keeps under another name, since a host was dead."""
    kept = kept_name(ctx.server, ctx.move)
    if is_copy(ctx)(kept):
        discard(ctx, kept, is_copy(ctx))


def discard_parts(ctx: Context) -> None:
    """Delete what this move left unfinished."""
    ctx.effect("discard_parts")
    _delete(ctx, gone_name(ctx), ctx.server, is_copy(ctx, of_any_host=True))
    ctx.directories.remove(part_name(ctx))


def undefine_own(ctx: Context) -> None:
    """Undefine the guest when it is this move's; raises StepError when it runs or another living move's it is."""
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
    """The manifest of what this move set aside, in the directory of this name if it is another one; raises StepError.

    Its code is ``foreign`` when another move did it, ``missing`` when nothing is there: a host that was installed anew
    has nothing that anybody could remove.
    """
    name = name or set_aside_name(ctx.server)
    if not ctx.directories.exists(name):
        raise ctx.failed(
            f"nothing of server {ctx.server} is set aside on {ctx.host.name}: there is no {ctx.directories.path(name)}",
            code="missing",
        )
    manifest = ctx.directories.manifest(name)
    if manifest is None or manifest.move != ctx.move or manifest.server != ctx.server:
        owner = "nobody knows whom" if manifest is None else f"move {manifest.move}"
        raise ctx.failed(
            f"{ctx.directories.path(name)} on {ctx.host.name} was left by {owner}: see what it is and remove it",
            code="foreign",
        )
    return manifest


def base_of(ctx: Context, disk: CopiedDisk) -> str:
    """The path of the base that a copied overlay rests on here; empty for a disk that rests on nothing."""
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
    """``<uuid>``, opened once and proved to be the copy that this host made for this move; StepError (``foreign``).

    The mark is read through what was opened.  Of one move another host may have a copy too, on storage that both
    share: whoever slept until that one runs holds its own directory, which is gone.
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

    Where a file system was unmounted lies an empty directory, in which an undo would find nothing to do.
    """
    for step_key in (ctx.step_key, ctx.move):
        # The step's own note goes with its undo; by the move's a discard knows where its disks must be.
        if not ctx.journal.noted(step_key, _STORE, 0):
            ctx.journal.note(step_key, _STORE, _store_number(ctx.directories.identity()))
    require_storage(ctx)


def require_storage(ctx: Context, *, step_key: str = "") -> None:
    """For an undo: raises StepError unless the instances directory is the one that its step worked in, if it did.

    ``step_key``: of the step that worked there, unless it is this one (`Context.step_key`);
    a move's id stands for all of its.
    """
    present = _store_number(ctx.directories.known_identity())
    if ctx.journal.noted(step_key or ctx.step_key, _STORE, present) != present:
        raise _storage_away(ctx)


def _store_number(identity: str) -> int:
    """The half of an instances directory's id that a note has room for; 0 of one that has none."""
    return uuid.UUID(identity).int >> _SPARE_BITS if identity else 0


def _storage_away(ctx: Context) -> StepError:
    return ctx.failed(
        f"the servers' directory {ctx.directories.instances} of host {ctx.host.name} is not the one that move "
        f"{ctx.move[:SHORT]} worked in: mount it again",
        code="storage-away",
    )


def forget_manifest(ctx: Context) -> None:
    """Drop this move's manifest from disks that are in use again: what it says of them no longer holds."""
    manifest = ctx.directories.manifest(ctx.server)
    if manifest is None or manifest.move == ctx.move:
        # Without one there may be what a killed write of it has left.
        ctx.directories.unlink(ctx.server, MANIFEST)
