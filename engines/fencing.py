"""Claims: whose epoch stands.

A claim on the job board is a lease, not a fence: a paused conductor whose session expired goes on running.  So a
claimant raises the move's epoch in the journal, and from then on every write of an older epoch is refused in the very
transaction that would have made it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.zookeeper import TOMBSTONE, Coordination, epoch_path
from droveway.errors import DrovewayError, Fenced
from droveway.persistence.database import Database, Executor, database_time
from droveway.persistence.journal import EPOCH, Claim, Counter, Intent, Move, MoveStep

QUARANTINE_AFTER: Final = 5
"""Claims in a row that may end unclean and save no progress before a person has to look."""

_STANDS: Final = (
    sa.select(Claim.epoch, Move.state, Move.attempt, Move.source_host, Move.dest_host, Move.hold, Move.cancel_requested)
    .join(Move, Move.id == Claim.move_id)
    .where(Claim.move_id == sa.bindparam("move"))
    .with_for_update()
)
_WISHES: Final = (
    sa.select(Move.hold, Move.cancel_requested, Move.delete_requested, Claim.epoch)
    .join(Claim, Claim.move_id == Move.id)
    .where(Move.id == sa.bindparam("move"))
)
_CLAIMED: Final = (
    sa.select(Move, Claim.epoch).join(Claim, Claim.move_id == Move.id).where(Move.id == sa.bindparam("move"))
)


class Quarantined(DrovewayError):
    """Every one of the last claims of a move ended unclean without saving progress: it may be what kills conductors."""

    code = "quarantined"


@dataclasses.dataclass(frozen=True)
class Standing:
    """The move as a fenced transaction sees it; its row is locked until the transaction ends."""

    state: str
    attempt: int
    source_host: str
    dest_host: str | None


def claim(journal: Database, move_id: str, owner: str, *, quarantine_after: int = QUARANTINE_AFTER) -> int:
    """Take the next epoch for the move and fence every older claim off.

    Raises Quarantined when the last ``quarantine_after`` claims ended unclean and saved nothing.
    """
    with journal.write() as session:
        epoch = _next_epoch(session)
        now = database_time(session)
        last = session.get(Claim, move_id, with_for_update=True)
        if last is None:
            session.add(Claim(move_id=move_id, epoch=epoch, owner=owner, claimed_at=now, unclean=0))
        else:
            last.unclean = last.unclean + 1 if _in_vain(session, last) else 0
            last.epoch, last.owner, last.claimed_at, last.released_at = epoch, owner, now, None
        # Whoever sent these may be paused, not dead: the call may still land, which an audit has to look for.
        _mark_late(session, move_id)
        quarantined = last is not None and last.unclean >= quarantine_after
    if quarantined:
        release(journal, move_id, epoch)
        raise Quarantined(
            f"{quarantine_after} conductors in a row ended in the middle of move {move_id[:8]} and saved no progress: "
            f"look at their logs, then droveway move retry {move_id[:8]}"
        )
    return epoch


def release(journal: Database, move_id: str, epoch: int) -> None:
    """Note that the claim ended cleanly; nothing when a newer one stands."""
    with journal.write() as session:
        session.execute(
            sa.update(Claim)
            .where(Claim.move_id == move_id, Claim.epoch == epoch)
            .values(released_at=database_time(session), unclean=0)
        )


def check(transaction: Executor, move_id: str, epoch: int) -> Standing:
    """Lock the claim for this transaction; raises `droveway.errors.Fenced` unless ``epoch`` stands."""
    row = transaction.execute(_STANDS, {"move": move_id}).first()
    if row is None or row.epoch != epoch:
        raise Fenced(f"epoch {epoch} of move {move_id} no longer stands: another conductor has the move")
    return Standing(row.state, row.attempt, row.source_host, row.dest_host)


def wishes(journal: Database, move_id: str) -> Any:
    """What is wished of the move (``hold``, ``cancel_requested``, ``delete_requested``) and whose ``epoch`` stands.

    Like `standing_epoch` no fence; None without move or claim.
    """
    with journal.engine.connect() as connection:
        return connection.execute(_WISHES, {"move": move_id}).first()


def claimed(journal: Database, move_id: str) -> Any:
    """The move's row, as ``Move``, and whose ``epoch`` stands; like `wishes` no fence, and None without them."""
    with journal.read() as session:
        return session.execute(_CLAIMED, {"move": move_id}).first()


def standing_epoch(session: orm.Session, move_id: str) -> int | None:
    """The epoch of the move's last claim; nothing is locked, so it is a hint to whoever waits and never a fence."""
    return session.scalar(sa.select(Claim.epoch).where(Claim.move_id == move_id))


def mark_late(journal: Database, move_id: str, epoch: int) -> None:
    """Note that cloud calls of a claim that was lost may have landed after it was."""
    with journal.write() as session:
        _mark_late(session, move_id, epoch)


def mirror(coordination: Coordination, move_id: str, epoch: int) -> int:
    """Raise the epoch's node in ZooKeeper to ``epoch`` and return the node's version, which guards commands.

    Raises `droveway.errors.Fenced` when the node stands higher or the move has ended.
    """
    path = epoch_path(move_id)
    data = str(epoch).encode()
    while True:
        present = coordination.get(path, sync=True)
        if present is None:
            coordination.create(path, data)
            continue
        value, version = present
        if value == TOMBSTONE or int(value) > epoch:
            raise Fenced(f"epoch {epoch} of move {move_id} no longer stands: ZooKeeper has {value.decode()}")
        if value == data:
            return version
        coordination.put(path, data, version=version)


def bury(coordination: Coordination, move_id: str, epoch: int) -> None:
    """The move has ended: no command of it will ever be taken again."""
    path = epoch_path(move_id)
    while (present := coordination.get(path, sync=True)) is not None:
        value, version = present
        if value == TOMBSTONE or int(value) > epoch or coordination.put(path, TOMBSTONE, version=version):
            return


def _next_epoch(session: orm.Session) -> int:
    raised = sa.update(Counter).where(Counter.name == EPOCH).values(value=Counter.value + 1)
    if session.execute(raised).rowcount == 0:  # type: ignore[attr-defined]
        session.add(Counter(name=EPOCH, value=1))
        session.flush()
    epoch = session.scalar(sa.select(Counter.value).where(Counter.name == EPOCH))
    if epoch is None:
        raise DrovewayError("the journal lost its epoch counter: restore it from a backup, then droveway db adopt")
    return epoch


def _in_vain(session: orm.Session, last: Claim) -> bool:
    if last.released_at is not None:
        return False
    ended_step = sa.select(MoveStep.seq).where(
        MoveStep.move_id == last.move_id, MoveStep.epoch == last.epoch, MoveStep.ended_at.is_not(None)
    )
    return session.scalar(ended_step.limit(1)) is None


def _mark_late(session: orm.Session, move_id: str, epoch: int | None = None) -> None:
    open_ones = sa.update(Intent).where(Intent.move_id == move_id, Intent.state == "open")
    if epoch is not None:
        open_ones = open_ones.where(Intent.epoch == epoch)
    session.execute(open_ones.values(state="late").execution_options(synchronize_session=False))


def now() -> dt.datetime:
    """The conductor's clock as the journal's columns hold it: UTC, naive; for history, never for a decision."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)
