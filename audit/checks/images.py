"""Images that moves made: one lives only as long as its move is under way."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Phase, Snapshot
from droveway.printable import SHORT


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Images that a move left behind."""
    for image in snapshot.images:
        move = snapshot.move_by_id.get(image.move)
        standing = snapshot.standings.get(move.server) if move is not None else None
        if standing is not None and standing.move is move and standing.phase is Phase.MOVING:
            continue
        made = f"the move {image.move[:SHORT]}" if image.move else "a move"
        yield Finding(
            Kind.IMAGE,
            image.id,
            f"the image {image.name} ({image.id}) was made by {made}, which does not use it any more",
            f"openstack image delete {image.id}",
            server=move.server if move is not None else "",
            move=image.move,
        )
