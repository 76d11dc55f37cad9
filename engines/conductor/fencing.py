"""Takes claims on moves, and refuses writes under any epoch but a move's newest.

A claim on the job board is a lease, not a fence: a paused conductor whose session expired goes on running.  So a
conductor that claims a move raises its epoch in the journal.  From then on a write under an older epoch is refused in
the very transaction that would have made it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients import send_guard
from droveway.clients.zookeeper import TOMBSTONE, Coordination, epoch_in, epoch_path
from droveway.errors import DrovewayError, Fenced
from droveway.persistence.database import Database, Executor
from droveway.persistence.journal.tables import Claim, Counter, Intent, JournalBase, Move, MoveStep
from droveway.persistence.restored import EPOCH
from droveway.printable import SHORT

QUARANTINE_AFTER: Final = 5
"""Claims in a row that may end unclean and save no progress before a person has to look.

A claim ends unclean when its conductor died or was paused, and another one claims the move before it was released.
"""

_STANDS: Final = (
    sa.select(Claim.epoch, Move.state, Move.attempt, Move.source_host, Move.dest_host)
    .join(Move, Move.id == Claim.move_id)
    .where(Claim.move_id == sa.bindparam("move"))
    .with_for_update()
)
_WISHES: Final = (
    sa.select(Move.hold, Move.cancel_requested, Move.delete_requested, Claim.epoch)
    .join(Claim, Claim.move_id == Move.id)
    .where(Move.id == sa.bindparam("move"))
)
_MOVES: Final = JournalBase.metadata.tables[Move.__tablename__]
_COLUMNS: Final = [column for column in _MOVES.c if column.name != Move.before.key]
_CLAIMED: Final = (
    sa.select(*_COLUMNS, _MOVES.c.before.is_not(None).label("recorded"), Claim.epoch)
    .join(Claim, Claim.move_id == Move.id)
    .where(Move.id == sa.bindparam("move"))
)
_CLAIMED_HERE: Final = _CLAIMED.with_for_update()
_OF_MOVE: Final = Claim.move_id == sa.bindparam("move")
_STANDING: Final = sa.select(Claim.epoch).where(_OF_MOVE)
_CLAIMED_MOVE: Final = (
    sa.select(Claim.move_id).where(_OF_MOVE, Claim.epoch == sa.bindparam("claimed")).with_for_update()
).scalar_subquery()
"""The move's id while the claim stands; the claim is locked before the move's row is looked for."""
_SAME_MOVE: Final = _MOVES.alias()
_RECORDED: Final = sa.exists().where(_SAME_MOVE.c.id == sa.bindparam("move"), _SAME_MOVE.c.before.is_not(None))
"""A subquery, because a plain test is always true in SQLite 3.40: no column counts as NULL in an UPDATE's RETURNING."""
_LAST: Final = sa.select(*Claim.__table__.c).where(_OF_MOVE).with_for_update()
_STATE: Final = sa.select(Move.state).where(Move.id == sa.bindparam("move")).with_for_update()
_FIRST_CLAIM: Final = sa.insert(Claim).values(claimed_at=sa.func.utc_now())
_NEXT_CLAIM: Final = sa.update(Claim).where(_OF_MOVE).values(claimed_at=sa.func.utc_now())
_RELEASE: Final = (
    sa.update(Claim)
    .where(_OF_MOVE, Claim.epoch == sa.bindparam("claimed"))
    .values(released_at=sa.func.utc_now(), unclean=0)
)
_COUNT: Final = sa.update(Counter).where(Counter.name == EPOCH).values(value=Counter.value + 1)
_COUNTED: Final = sa.select(Counter.value).where(Counter.name == EPOCH)
_LATE: Final = (
    sa.update(Intent).where(Intent.move_id == sa.bindparam("move"), Intent.state == "open").values(state="late")
)
_LATE_OF_CLAIM: Final = _LATE.where(Intent.epoch == sa.bindparam("claimed"))
_ENDED_STEP: Final = (
    sa.select(MoveStep.seq)
    .where(
        MoveStep.move_id == sa.bindparam("move"),
        MoveStep.epoch == sa.bindparam("claimed"),
        MoveStep.ended_at.is_not(None),
    )
    .limit(1)
)
_CAME_FARTHER: Final = sa.select(Move.id).where(
    Move.id == sa.bindparam("move"), Move.progress_at > sa.bindparam("claimed_at")
)
"""Finds the move if a host came farther under this claim than before.  Both times are by the database's clock."""


class Quarantined(DrovewayError):
    """The last claims of a move all ended unclean and saved no progress: the move may be what kills conductors."""

    code = "quarantined"

    def __init__(self, message: str, epoch: int) -> None:
        """``epoch`` is the epoch of the claim that was just given back: the move may be parked under this epoch."""
        super().__init__(message)
        self.epoch = epoch


@dataclasses.dataclass(frozen=True)
class Standing:
    """The move as a fenced transaction sees it; its row is locked until the transaction ends."""

    state: str
    attempt: int
    source_host: str
    dest_host: str | None
    claimed: dict[str, Any] | None = None
    """The move's row as `claimed` gives it; only `update_claimed` fills this in."""


class Seen(NamedTuple):
    """How a move was when somebody decided to claim it."""

    state: str | None
    epoch: int | None
    """The epoch of its last claim; None when it was never claimed."""


def claim(
    journal: Database,
    move_id: str,
    owner: str,
    *,
    quarantine_after: int = QUARANTINE_AFTER,
    is_lost: Callable[[], bool] = lambda: False,
    seen: Seen | None = None,
) -> int:
    """Take the next epoch for the move and fence every older claim off.

    Raises Quarantined when the last ``quarantine_after`` claims ended unclean and saved nothing, and
    `droveway.errors.Fenced` when ``is_lost`` says, inside the transaction, that the move went to another conductor.  So
    a conductor that was paused before the transaction does not take the move from its new owner.  Raises Fenced too
    when the move is not as it was ``seen`` any more: who claims it for what was seen would disturb who has it now.
    """
    with journal.begin() as connection:
        if is_lost():
            raise Fenced(f"move {move_id[:SHORT]} is not this conductor's any more")
        epoch = next_epoch(connection)
        last = connection.execute(_LAST, {"move": move_id}).first()
        if seen is not None and seen != _seen(connection, move_id, last):
            raise Fenced(f"move {move_id[:SHORT]} went on before it could be claimed")
        unclean = last.unclean + 1 if last is not None and _in_vain(connection, last) else 0
        claim = {
            "epoch": epoch,
            "owner": owner,
            "released_at": None,
            "unclean": unclean,
        }
        if last is None:
            connection.execute(_FIRST_CLAIM, {"move_id": move_id, **claim})
        else:
            connection.execute(_NEXT_CLAIM, {"move": move_id, **claim})
        # `_LATE` marks the earlier claim's cloud calls that have no answer yet.  The conductor that sent them may be
        # paused, not dead.  Such a call may still arrive at its service, so an audit has to look.
        connection.execute(_LATE, {"move": move_id})
    if last is not None and unclean >= quarantine_after:
        release(journal, move_id, epoch)
        raise Quarantined(
            f"{quarantine_after} conductors in a row ended in the middle of move {move_id[:SHORT]} and saved no "
            f"progress: look at their logs, then droveway move retry {move_id[:SHORT]}",
            epoch,
        )
    return epoch


def release(journal: Database, move_id: str, epoch: int) -> None:
    """Note that the claim ended cleanly; do nothing when a newer one stands."""
    with journal.begin() as connection:
        connection.execute(_RELEASE, {"move": move_id, "claimed": epoch})


def check(transaction: Executor, move_id: str, epoch: int) -> Standing:
    """Lock the claim for this transaction; raises `droveway.errors.Fenced` unless ``epoch`` stands."""
    row = transaction.execute(_STANDS, {"move": move_id}).first()
    if row is None or row.epoch != epoch:
        raise _fenced(move_id, epoch)
    return Standing(row.state, row.attempt, row.source_host, row.dest_host)


@contextlib.contextmanager
def writing(journal: Database, move_id: str, epoch: int) -> Iterator[orm.Session]:
    """Open a transaction of the journal that holds the claim, as `check` does."""
    with journal.write() as session:
        check(session, move_id, epoch)
        yield session


@contextlib.contextmanager
def guarding_calls(journal: Database, move_id: str, epoch: int) -> Iterator[None]:
    """Check the claim right before each request of this thread that changes something in a cloud service.

    Such a request raises `droveway.errors.Fenced` once ``epoch`` no longer stands.  Nothing is locked, so a call can
    still be late: its thread may be paused between the check and the request.
    """

    def look() -> None:
        with journal.reading() as connection:
            standing = connection.scalar(_STANDING, {"move": move_id})
        if standing != epoch:
            raise _fenced(move_id, epoch)

    with send_guard.asking(look):
        yield


def update_claimed(transaction: Executor, move_id: str, epoch: int, columns: Mapping[str, Any]) -> Standing:
    """Lock the claim as `check` does and set these columns of the move, in one statement where the database has one.

    ``claimed`` of the Standing that is returned is the move's row after the change.
    """
    connection = transaction.connection() if isinstance(transaction, orm.Session) else transaction
    given = {"move": move_id, **{f"new_{name}": value for name, value in columns.items()}}
    if connection.dialect.update_returning:
        update = _update_while_claimed(frozenset(columns))
        row: Any = connection.execute(update, {**given, "claimed": epoch}).first()
        if row is None:
            raise _fenced(move_id, epoch)
        claimed = {**row._asdict(), "epoch": epoch}
    else:
        row = connection.execute(_CLAIMED_HERE, {"move": move_id}).first()
        if row is None or row.epoch != epoch:
            raise _fenced(move_id, epoch)
        connection.execute(_update(frozenset(columns)), given)
        claimed = {**row._asdict(), **columns}
    return Standing(row.state, row.attempt, row.source_host, row.dest_host, claimed)


@functools.cache
def _update(columns: frozenset[str]) -> sa.Update:
    """Make the statement that sets just these columns of a move."""
    values: dict[str, Any] = {column: sa.bindparam(f"new_{column}") for column in columns}
    return sa.update(_MOVES).where(_MOVES.c.id == sa.bindparam("move")).values(values)


@functools.cache
def _update_while_claimed(columns: frozenset[str]) -> sa.Update:
    """Make the statement that sets these columns only while the claim stands, and returns the row."""
    return _update(columns).where(_MOVES.c.id == _CLAIMED_MOVE).returning(*_COLUMNS, _RECORDED.label("recorded"))


def _fenced(move_id: str, epoch: int) -> Fenced:
    return Fenced(f"epoch {epoch} of move {move_id} no longer stands: another conductor has the move")


def pending_requests(journal: Database, move_id: str) -> Any:
    """Read what is asked of the move (``hold``, ``cancel_requested``, ``delete_requested``) and which ``epoch`` stands.

    None without move or claim.  Nothing is locked, so this is no fence.
    """
    with journal.reading() as connection:
        return connection.execute(_WISHES, {"move": move_id}).first()


def claimed(journal: Database, move_id: str) -> dict[str, Any] | None:
    """Read the move's row and which ``epoch`` stands.

    ``recorded`` tells whether the column ``before`` is filled, and stands in its place.  None without move or claim.
    Nothing is locked, so this is no fence.
    """
    with journal.reading() as connection:
        found = connection.execute(_CLAIMED, {"move": move_id}).first()
        return None if found is None else found._asdict()


def standing_epoch(session: orm.Session, move_id: str) -> int | None:
    """Read the epoch of the move's last claim; nothing is locked, so it is a hint and no fence."""
    return session.scalar(_STANDING, {"move": move_id})


def mark_late(journal: Database, move_id: str, epoch: int) -> None:
    """Note that cloud calls of a lost claim may have arrived after it was lost."""
    with journal.begin() as connection:
        connection.execute(_LATE_OF_CLAIM, {"move": move_id, "claimed": epoch})


def mirror(
    coordination: Coordination, move_id: str, epoch: int, *, journal: Database | None = None, claimed: str = ""
) -> int:
    """Raise the epoch's node in ZooKeeper to ``epoch`` and return the node's version, which guards commands.

    Raises `droveway.errors.Fenced` when the node stands higher or the move has ended.  With the ``journal``, a missing
    node is made only while the claim stands there.  So a conductor that was paused while the move ended and was purged
    leaves no node behind.

    ``move_id`` is the name of the fence's node.  In most cases this is the id of the claimed move, and ``claimed`` is
    empty.  When the keeper purges kept disks, the node has a name of its own, and ``claimed`` is the id of the move.
    """
    path = epoch_path(move_id)
    data = str(epoch).encode()
    while True:
        present = coordination.get(path, sync=True)
        if present is None:
            with contextlib.ExitStack() as stack:
                if journal is not None:
                    check(stack.enter_context(journal.begin()), claimed or move_id, epoch)
                if coordination.create(path, data):
                    return 0
            continue
        value, version = present
        if value == TOMBSTONE or (epoch_in(value) or 0) > epoch:
            raise Fenced(f"epoch {epoch} of move {move_id} no longer stands: ZooKeeper has {value.decode()}")
        if value == data:
            return version
        if coordination.put(path, data, version=version):
            return version + 1


def write_tombstone(coordination: Coordination, move_id: str, epoch: int) -> None:
    """Mark the move as ended: no worker takes a command of it again.  Do nothing when a newer epoch stands."""
    path = epoch_path(move_id)
    while (present := coordination.get(path, sync=True)) is not None:
        value, version = present
        if value == TOMBSTONE or (epoch_in(value) or 0) > epoch or coordination.put(path, TOMBSTONE, version=version):
            return


def clear_tombstone(journal: Database, coordination: Coordination, move_id: str, epoch: int) -> None:
    """Let workers take commands of an ended move under this epoch.

    The keeper needs this to pay what a host still owes an ended move.  An operator's command needs it to ask the hosts
    of an ended move what they hold.

    Raises `droveway.errors.Fenced` unless the epoch stands in the journal.  The claim is locked while the node is
    written, so nobody can remove a tombstone after losing the claim.
    """
    path = epoch_path(move_id)
    with journal.begin() as connection:
        check(connection, move_id, epoch)
        present = coordination.get(path, sync=True)
        if present is not None and present[0] == TOMBSTONE:
            coordination.put(path, str(epoch).encode(), version=present[1])


def next_epoch(connection: sa.Connection) -> int:
    """Return the next number of the journal's only sequence of epochs.

    A claim takes one, and so does the command that settles a move in a conductor's stead (`operations.settling`).  The
    counter stays locked until the transaction ends.  It is locked before the move's claim, so that no two transactions
    wait for each other.
    """
    if connection.execute(_COUNT).rowcount == 0:
        connection.execute(sa.insert(Counter), {"name": EPOCH, "value": 1})
    epoch = connection.scalar(_COUNTED)
    if epoch is None:
        raise DrovewayError("the journal lost its epoch counter: restore it from a backup, then droveway db adopt")
    return epoch


def _seen(connection: sa.Connection, move_id: str, last: Any) -> Seen:
    """Read the move's state and lock its row, for a comparison; ``last`` is the row of its claim, which is locked."""
    return Seen(connection.scalar(_STATE, {"move": move_id}), None if last is None else last.epoch)


def _in_vain(connection: sa.Connection, last: Any) -> bool:
    """Tell whether the last claim was never released, ended no step and came no farther."""
    if last.released_at is not None:
        return False
    if connection.scalar(_ENDED_STEP, {"move": last.move_id, "claimed": last.epoch}) is not None:
        return False
    return connection.scalar(_CAME_FARTHER, {"move": last.move_id, "claimed_at": last.claimed_at}) is None
