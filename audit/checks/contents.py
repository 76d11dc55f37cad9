"""What disks hold that are set aside or kept, against the digests that were made of them when they were copied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import DiskDigest, MoveRow
from droveway.audit.snapshot import Snapshot
from droveway.wire.values import UUID

_NAME: Final = re.compile(rf"({UUID})_(?:resize|keep-({UUID}))")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Disks that hold other bytes than were copied from them: a revert would bring those back."""
    for disk in _known(snapshot):
        move, wanted = _wanted(snapshot, disk)
        if move is not None and disk.digest and wanted != disk.digest:
            yield _finding(
                disk,
                move,
                f"{disk.disk} in instances/{disk.name} on {disk.host} holds other bytes than the move {move.short} "
                f"copied from it",
                f"droveway move show {move.short}, then restore the disk from a backup before any revert",
            )


def unread(snapshot: Snapshot) -> Iterator[Finding]:
    """Disks that were not read to their end: the next audit goes on."""
    for disk in _known(snapshot):
        move, _ = _wanted(snapshot, disk)
        if move is not None and not disk.digest:
            yield _finding(
                disk,
                move,
                f"of {disk.disk} in instances/{disk.name} on {disk.host} {disk.read} of {disk.size} bytes were read, "
                f"so what it holds was not compared yet",
                "droveway audit",
            )


def _known(snapshot: Snapshot) -> Iterator[DiskDigest]:
    """Each once: hosts that share a directory all tell of it."""
    seen = set()
    for disk in snapshot.digests:
        store = snapshot.store_of(disk.host)
        place = (store.hosts if store is not None else disk.host, disk.name, disk.disk)
        if place not in seen:
            seen.add(place)
            yield disk


def _wanted(snapshot: Snapshot, disk: DiskDigest) -> tuple[MoveRow | None, str]:
    """The move that set it aside and the digest that it made of it; no move where that is not known."""
    named = _NAME.fullmatch(disk.name)
    if named is None:
        return None, ""
    standing = snapshot.standings.get(named[1])
    move = snapshot.move_by_id.get(named[2]) if named[2] else standing.move if standing is not None else None
    store = snapshot.store_of(disk.host)
    if move is None or move.server != named[1] or store is None or not snapshot.may_use(move.source_host, store):
        return None, ""
    whose = next((entry.move for entry in store.entries if entry.name == disk.name), "")
    wanted = snapshot.checksums.get((move.id, disk.disk), "")
    return (move, wanted) if wanted and whose in ("", move.id) else (None, "")


def _finding(disk: DiskDigest, move: MoveRow, detail: str, mend: str) -> Finding:
    subject = f"instances/{disk.name}/{disk.disk}"
    return Finding(Kind.DISK, subject, detail, mend, disk.host, move.server, move.id)
