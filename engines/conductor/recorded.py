"""Mirrors in ZooKeeper what only the journal knows of a running move, in case an older copy of the journal is put back.

These facts are the server as it was before, the destinations that were tried, and how the disks are stored.  The move
changes the very things that they were read from, so they cannot be read again.  An older journal that is adopted gets
from the mirror what it lacks.  A mirror that is lost is written anew from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import orm

from droveway.clients.zookeeper import MOVES, Coordination, record_path
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal import attempts, kinds, moves
from droveway.persistence.journal.tables import Move, MoveAttempt


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Names a destination that the move tried, by the columns of its row in the journal."""

    attempt: int
    cell: str
    host: str
    node: str
    provider: str
    request: dict[str, Any]


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what the journal recorded of a move."""

    before: dict[str, Any] | None = None
    """The server as `record_before` found it."""
    storage: str | None = None
    """The variant that `find_storage` found on the last destination."""
    tried: Sequence[Tried] = ()
    """The hosts that the move tried, in two groups.

    First come the destinations, with the numbers 1, 2 and so on.  Then come the hosts that reverts tried, whose numbers
    are below 0.
    """


class Store(Protocol):
    """Keeps the mirrors of moves, in a place that is not put back together with the journal."""

    def get(self, move: str) -> tuple[bytes, int] | None:
        """Return the mirror and its version, or None."""

    def put(self, move: str, data: bytes, version: int | None) -> bool:
        """Replace the mirror of this version, or make it (None); False when another version stands."""

    def moves(self) -> list[str]:
        """List the ids of the moves that may have one."""


class InZooKeeper:
    """Keeps each mirror in a node of its move's folder, which goes when the move is purged.

    Each method raises `droveway.errors.CoordinationLost`.
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def get(self, move: str) -> tuple[bytes, int] | None:
        """Return the mirror and its version, or None."""
        return self._coordination.get(record_path(move), sync=True)

    def put(self, move: str, data: bytes, version: int | None) -> bool:
        """Replace the mirror of this version, or make it (None); False when another version stands."""
        if version is None:
            return self._coordination.create(record_path(move), data)
        return self._coordination.put(record_path(move), data, version=version)

    def moves(self) -> list[str]:
        """List the ids of the moves that may have one."""
        return self._coordination.children(MOVES)


class RecordMirror:
    """Writes the mirror of one claimed move, for the holder of the claim."""

    def __init__(self, store: Store, journal: Database) -> None:
        self._store = store
        self._journal = journal
        self._mirrored: tuple[bool, bool, str | None, int, int] = (False, False, None, 0, 0)

    def note(self, move: Move, *, returned: int = 0) -> None:
        """Write the mirror anew when the move has recorded more since the last call; raises what the store raises.

        ``returned`` is the number of the host that the move's revert tries now in the place of a dead source; 0 if
        there is no such host.
        """
        facts = (move.before is not None, _was_stopped(move.before), move.storage, move.attempt, returned)
        if facts == self._mirrored:
            return
        while not self._try_to_write(move.id):
            pass
        self._mirrored = facts

    def _try_to_write(self, move: str) -> bool:
        """Write the mirror; False when it was not written, since somebody else wrote it after this method read it."""
        found = self._store.get(move)
        with self._journal.read() as session:
            data = msgspec.json.encode(of_journal(session, moves.get(session, move, with_before=True)))
        if found is not None and found[0] == data:
            return True
        return self._store.put(move, data, found[1] if found is not None else None)


def of_journal(session: orm.Session, move: Move) -> Recorded:
    """Read what the journal has recorded of the move."""
    tried = [
        Tried(
            attempt=row.attempt,
            cell=row.cell,
            host=row.host,
            node=row.node,
            provider=row.provider,
            request=row.request,
        )
        for row in ([*attempts.tried(session, move.id), *attempts.returns(session, move.id)] if move.attempt else ())
    ]
    return Recorded(before=move.before, storage=move.storage, tried=tried)


def mirrored(store: Store) -> Mapping[str, Recorded]:
    """Read what is mirrored of each move; what cannot be read counts as not there.  Raises what the store raises."""
    found = {}
    for move in store.moves():
        kept = store.get(move)
        if kept is not None and (recorded := _decoded(kept[0])) is not None:
            found[move] = recorded
    return found


def take_back(session: orm.Session, move: Move, recorded: Recorded) -> bool:
    """Fill the move's row in an adopted journal with what the mirror has and the row lacks.

    Returns whether the move's flow has tried another host after the adopted copy of the journal was made.

    What the row says already stays, for the mirror may be older than the journal.  There are two exceptions:

    - If the mirror has later alternates than the row, the last of them becomes the move's destination, and the row gets
      the mirror's ``storage``.
    - If the mirror says that the server was stopped in the middle of the move, the record of the server before its move
      is replaced.
    """
    if move.before is None or _was_stopped(recorded.before):
        move.before = recorded.before
    lost = [each for each in recorded.tried if each.attempt > move.attempt]
    returns = [each for each in recorded.tried if each.attempt < 0 and _is_lost(session, move, each)]
    for each in [*lost, *returns]:
        if _is_lost(session, move, each):
            columns = msgspec.structs.asdict(each)
            session.add(MoveAttempt(move_id=move.id, created_at=database_time(session), **columns))
    if lost:
        move.attempt, move.dest_cell, move.dest_host = lost[-1].attempt, lost[-1].cell, lost[-1].host
    if lost or move.storage is None:
        move.storage = recorded.storage
    return bool(lost) or (bool(returns) and _goes_elsewhere(session, move))


def _is_lost(session: orm.Session, move: Move, tried: Tried) -> bool:
    return session.get(MoveAttempt, (move.id, tried.attempt)) is None


def _goes_elsewhere(session: orm.Session, move: Move) -> bool:
    return move.flow_uuid is not None and kinds.of(moves.flow_of(session, move.flow_uuid).kind).elsewhere


def _was_stopped(record: dict[str, Any] | None) -> bool:
    return record is not None and bool(record.get("stopped"))


def _decoded(data: bytes) -> Recorded | None:
    try:
        return msgspec.json.decode(data, type=Recorded)
    except msgspec.DecodeError:
        return None
