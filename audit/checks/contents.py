"""Compares disks that were set aside or kept with the digests that were made when they were copied.

A disk that is set aside is the source's copy, renamed, while the move waits. A kept disk is one that a confirmed move
leaves on the source for a time.
"""

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
    """Find disks whose contents have changed since they were copied: a revert would bring the changed ones back."""
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
    """Note the disks that were not yet read to their end; the next audit goes on with them."""
    for disk in _known(snapshot):
        move, _ = _wanted(snapshot, disk)
        if move is not None and not disk.digest:
            yield _finding(
                disk,
                move,
                f"{disk.read} of {disk.size} bytes were read of {disk.disk} in instances/{disk.name} on {disk.host}, "
                "so what it holds was not compared yet",
                "droveway audit",
            )


def _known(snapshot: Snapshot) -> Iterator[DiskDigest]:
    """Yield each disk once; all hosts that share a directory report its disks."""
    seen = set()
    for disk in snapshot.digests:
        store = snapshot.store_of(disk.host)
        place = (store.hosts if store is not None else disk.host, disk.name, disk.disk)
        if place not in seen:
            seen.add(place)
            yield disk


def _wanted(snapshot: Snapshot, disk: DiskDigest) -> tuple[MoveRow | None, str]:
    """Return the move that set the disk aside and the digest that it made; no move when that is not known."""
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
