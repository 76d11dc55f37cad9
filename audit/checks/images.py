"""Checks that an image which a move or a shelve made exists only while the move runs or the server is shelved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.checks import disks
from droveway.audit.findings import Finding, Kind
from droveway.audit.records import ImageView
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.persistence.nova.vm_states import VmState
from droveway.printable import SHORT

_KEPT: Final = frozenset({VmState.SHELVED, VmState.SHELVED_OFFLOADED, VmState.ERROR})
"""The vm_states in which the image that the rows name may hold the server's root disk."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find images that a move or a shelve left behind, and images that a shelved server lacks."""
    named = {
        standing.row.shelved_image
        for standing in snapshot.standings.values()
        if standing.row is not None and (standing.row.vm_state in _KEPT or standing.row.task_state is not None)
    }
    for image in snapshot.images or ():
        if image.id in named:
            continue
        if image.server:
            yield from _of_a_shelve(snapshot, image)
        else:
            yield from _of_a_move(snapshot, image)
    for standing in snapshot.standings.values():
        if standing.offloaded and not snapshot.has_image(standing):
            yield _not_whole(snapshot, standing)


def _of_a_move(snapshot: Snapshot, image: ImageView) -> Iterator[Finding]:
    move = snapshot.move_by_id.get(image.move)
    standing = snapshot.standings.get(move.server) if move is not None else None
    if standing is not None and move is not None and standing.move is move:
        kept = move.keep_image and standing.phase is Phase.VERIFYING
        if kept or standing.phase is Phase.MOVING:
            return
    if any(debt.move == image.move and debt.after and not debt.written_off for debt in snapshot.debts):
        # It is kept until that host has shown its copy: until then it may be the only whole one.
        return
    needed = None if standing is None else _may_be_needed(snapshot, standing, image)
    made = f"the move {image.move[:SHORT]}" if image.move else "a move"
    yield Finding(
        Kind.IMAGE,
        image.id,
        f"the image {image.name} ({image.id}) was made by {made}, which does not use it any more"
        + (f", but it may hold the last disks of {standing.name}: {needed[0]}" if standing and needed else ""),
        needed[1] if needed else f"openstack image delete {image.id}",
        server=move.server if move is not None else "",
        move=image.move,
    )


def _of_a_shelve(snapshot: Snapshot, image: ImageView) -> Iterator[Finding]:
    standing = snapshot.standings.get(image.server)
    if standing is None:
        why, mend = "does not exist", f"openstack image delete {image.id}"
    elif standing.phase is Phase.MOVING or (standing.row is not None and standing.row.task_state is not None):
        return
    elif standing.offloaded and not snapshot.has_image(standing):
        # The shelved server lacks the image that its row should name, and this image may be that one.
        return
    elif needed := _may_be_needed(snapshot, standing, image):
        why, mend = f"is not shelved, but {needed[0]}", needed[1]
    else:
        why = "is shelved, but does not use this image" if standing.offloaded else "is not shelved"
        mend = f"openstack image delete {image.id}"
    name = standing.name if standing is not None else image.server
    yield Finding(
        Kind.IMAGE,
        image.id,
        f"the image {image.name} ({image.id}) holds a root disk of the server {name}, which {why}",
        mend,
        server=image.server,
        move=standing.move_id if standing is not None else "",
    )


def _may_be_needed(snapshot: Snapshot, standing: Standing, image: ImageView) -> tuple[str, str] | None:
    """Say why the image may be the only whole copy of the server's root disk, and what to do; None when it is not."""
    if standing.placed and standing.host in snapshot.down:
        return f"its host {standing.host} is declared down", f"droveway host show {standing.host}"
    if any(True for _ in disks.missing(snapshot, standing)):
        return (
            "its disks are missing",
            f"droveway server show {standing.server}, then restore its root disk from the image {image.id}",
        )
    if standing.placed and standing.host not in snapshot.seen_hosts:
        return (
            f"nobody could look whether its disks are on {standing.host}",
            f"droveway host show {standing.host}",
        )
    return None


def _not_whole(snapshot: Snapshot, standing: Standing) -> Finding:
    image = standing.row.shelved_image if standing.row is not None else None
    found = next((each for each in snapshot.images or () if each.id == image), None)
    if image is None:
        return Finding(
            Kind.IMAGE,
            standing.server,
            f"{standing.name} is shelved and on no host, but names no image that holds its root disk",
            f"openstack image list --property instance_uuid={standing.server}, then name the right one as "
            "shelved_image_id in instance_system_metadata",
            server=standing.server,
            move=standing.move_id,
        )
    mend = f"droveway server show {standing.server}, then bring the image back from a backup under its id"
    return Finding(
        Kind.IMAGE,
        image,
        f"the image {image}, which holds the root disk of the shelved server {standing.name}, "
        + ("does not exist" if found is None else f"is {found.status}, and only an active one can be read"),
        mend if found is None else f"openstack image show {image}",
        server=standing.server,
        move=standing.move_id,
    )
