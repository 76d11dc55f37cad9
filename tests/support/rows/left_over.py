"""What moves that rest have left behind in ZooKeeper and of their claims: it should be nothing."""

from __future__ import annotations

import sqlalchemy as sa
from support.labs.small_lab import until

from droveway.clients.zookeeper import (
    BOARD,
    TOMBSTONE,
    Coordination,
    command_path,
    epoch_path,
    progress_path,
    result_path,
)
from droveway.lab.session import Lab
from droveway.persistence.journal.tables import Claim, Move

LONG = 180.0


def nodes(lab: Lab, session: Coordination) -> list[str]:
    """Every node of a job, a command, an answer or a progress."""
    folders = [folder(host) for host in lab.identity.hosts for folder in (command_path, result_path, progress_path)]
    return [f"{folder}/{name}" for folder in (BOARD, *folders) for name in session.children(folder)]


def of(lab: Lab, session: Coordination) -> list[str]:
    """These nodes, claims that were never given back, and nodes by which a move that has ended still has an epoch."""
    with lab.journal.read() as reading:
        kept = reading.execute(sa.select(Claim.move_id, Claim.owner).where(Claim.released_at.is_(None)))
        found = [f"claim of {owner} on {move}" for move, owner in kept]
        ended = list(reading.scalars(sa.select(Move.id).where(Move.ended_at.is_not(None))))
    epochs = {move: session.get(epoch_path(move)) for move in ended}
    found += [f"epoch of {move}" for move, node in epochs.items() if node is not None and node[0] != TOMBSTONE]
    return found + nodes(lab, session)


def await_none(lab: Lab, session: Coordination, seconds: float = LONG) -> None:
    """Wait until there is nothing of it."""
    seen: list[list[str]] = []

    def look() -> bool:
        seen[:] = [of(lab, session)]
        return seen == [[]]

    try:
        until(look, "the end of what moves left", seconds)
    except AssertionError:
        raise AssertionError(f"moves have left {seen[0]}") from None
