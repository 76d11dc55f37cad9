"""Removes from ZooKeeper what belonged to moves that were purged from the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from droveway.clients.zookeeper import MOVES, TOMBSTONE, Coordination, epoch_path, move_path
from droveway.persistence.database import Database
from droveway.persistence.journal.tables import Move

KEPT: Final = ".kept"
"""The ending of the name under which the purge of a kept source has its fence; the name begins with the move's id."""

_AT_ONCE: Final = 500


def remove_move_nodes(coordination: Coordination, journal: Database, purged: Iterable[str] = ()) -> int:
    """Delete the nodes of moves that the journal does not know, and return how many were deleted.

    The nodes of moves that were ``purged`` a moment ago are all deleted.  Those of other unknown moves are deleted only
    if the move has ended.  An older copy of the journal that was put back does not know newer moves either, and their
    fences have to stand.
    """
    # Read before the journal: a move's node is made after its row.
    names = coordination.children(MOVES)
    known = _known(journal, {name.removesuffix(KEPT) for name in names})
    gone = set(purged)
    count = 0
    for name in names:
        move = name.removesuffix(KEPT)
        if move in known:
            continue
        found = coordination.get(epoch_path(name), sync=True)
        if move in gone or found is None or found[0] == TOMBSTONE:
            count += coordination.delete(move_path(name))
    return count


def _known(journal: Database, moves: set[str]) -> set[str]:
    wanted = sorted(moves)
    known: set[str] = set()
    with journal.read() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            known |= set(session.scalars(sa.select(Move.id).where(Move.id.in_(wanted[start : start + _AT_ONCE]))))
    return known
