"""Lets a command take away what an ended move left behind, and writes that in the move's history.

While the command works, no move of the server may begin, and no daemon may still work for the ended move.  To ensure
this, the transaction here occupies the server's place in the journal: the unique column ``Move.active_server``, which
admits one move per server.  The transaction sets the column in the ended move, and clears it again before the commit.
If the server never had a move, the transaction inserts a row with that column, and deletes the row before the commit.
A request for a new move waits until the transaction is over.  If the command is killed, the transaction is rolled back,
and nothing is left of it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc, orm

from droveway.errors import Conflict
from droveway.persistence.database import IDLE_TRANSACTION, Database, database_time
from droveway.persistence.journal import debts, kinds, moves, policy_names
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim, Debt, Move, MoveAttempt, MoveFlow, MoveStep
from droveway.printable import SHORT

STEP: Final = "heal"
"""The name of the step in a move's history that says what was taken away."""

HOLDS_FOR: Final = IDLE_TRANSACTION / 2
"""Seconds after which a `Hold` no longer lets its holder act.

The database ends an idle transaction after twice this time, and the server's place would then be free.
"""

RESERVES: Final = "reserve_volumes"
"""The step whose result names the volume attachments that a move made."""


class Held(Conflict):
    """What an ended move left must not be touched now: somebody may still need it or be at work on it."""


class Hold:
    """Holds an ended move, whose server no other move can take; ``session`` is the journal's transaction."""

    def __init__(self, session: orm.Session, move: Move) -> None:
        self.session = session
        self.move = move
        self._ends = time.monotonic() + HOLDS_FOR

    def require(self) -> None:
        """Raise `Held` when the database may have ended the transaction; to be called right before each effect."""
        if time.monotonic() >= self._ends:
            raise Held(f"the last check took longer than {HOLDS_FOR:g} s: try again when the services answer faster")


@contextlib.contextmanager
def hold(journal: Database, move_id: str) -> Iterator[Hold]:
    """Keep all moves of the server from beginning while the block runs.

    What is written through the session is committed when the block ends, and rolled back when it raises.  Raises
    `Held` when this move has not ended, when its claim was not given back, or when another move of the server is under
    way.
    """
    with journal.write() as session:
        # The claim is locked first, in the same order as in every transaction of a conductor.
        claim = session.scalar(sa.select(Claim).where(Claim.move_id == move_id).with_for_update())
        move = moves.get(session, move_id, lock=True)
        short = move.id[:SHORT]
        if State(move.state) not in ENDED or move.flow_uuid is not None:
            raise Held(f"the move {short} has not ended")
        if claim is not None and claim.released_at is None:
            raise Held(f"{claim.owner} has not given the move {short} back")
        move.active_server = move.server
        _take_place(session, move.server, move.server_name)
        yield Hold(session, move)
        move.active_server = None


@contextlib.contextmanager
def hold_unmoved(journal: Database, server: str, name: str) -> Iterator[Hold]:
    """Do the same as `hold` for a server that never had a move; raise `Held` when a move of it is under way."""
    with journal.write() as session:
        at = database_time(session)
        place = Move(
            id=str(uuid.uuid4()),
            kind=kinds.MIGRATE.name,
            server=server,
            server_name=name,
            active_server=server,
            state=State.CANCELLED,
            source_cell="",
            source_host="",
            old_flavor="",
            new_flavor="",
            policy=policy_names.MANUAL,
            created_at=at,
            updated_at=at,
        )
        session.add(place)
        _take_place(session, server, name)
        yield Hold(session, place)
        session.delete(place)


def _take_place(session: orm.Session, server: str, name: str) -> None:
    try:
        session.flush()
    except exc.IntegrityError:
        raise Held(f"a move of {name} is under way: droveway move list --server {server}") from None


def note(journal: Database, move_id: str, *, who: str, what: str) -> int:
    """Write in the move's history that ``who`` is about to take ``what`` away; return the row's number."""
    with journal.write() as session:
        move = moves.get(session, move_id)
        flow = session.scalars(moves.NEWEST_FLOW, {"move": move_id}).one()
        begun = {"by": who, "does": what, "outcome": "begun"}
        row = moves.intervention(move, flow, STEP, at=database_time(session), result=begun)
        session.add(row)
        session.flush()
        return row.seq


def conclude(session: orm.Session, seq: int, outcome: str) -> None:
    """Write into that row of the history (`note`) what became of it, and when it ended."""
    row = session.get_one(MoveStep, seq)
    row.result = {**(row.result or {}), "outcome": outcome}
    row.ended_at = database_time(session)


def is_over(session: orm.Session, move_id: str) -> bool:
    """Tell whether all work for an ended move is over: no debt without a date is left, and its claim was given back."""
    claim = session.get(Claim, move_id)
    return not debts.outstanding(session, move_id) and (claim is None or claim.released_at is not None)


def first_flow(session: orm.Session, move_id: str) -> str:
    """Return the uuid of the flow with which the move began: that flow made things on hosts."""
    query = sa.select(MoveFlow.uuid).where(MoveFlow.move_id == move_id).order_by(MoveFlow.created_at).limit(1)
    return session.scalars(query).one()


def owe_again(session: orm.Session, debt_id: int) -> None:
    """Reopen a debt that was written off, so that it has to be settled; any other debt is left alone."""
    debt = session.get_one(Debt, debt_id)
    if debts.WRITTEN_OFF in debt.details:
        debt.details = {key: value for key, value in debt.details.items() if key != debts.WRITTEN_OFF}
        debt.settled_at = None


def tried_hosts(session: orm.Session, servers: Collection[str]) -> dict[tuple[str, str], str]:
    """Return (server, host) → the id of an ended move of the server that has to do with the host.

    That is the newest move from the host or to the host.  When there is none, it is the newest move that only tried the
    host as an alternate.
    """
    ended = Move.state.in_([state.value for state in ENDED])
    newest_first = Move.created_at.desc(), Move.id.desc()
    found: dict[tuple[str, str], str] = {}
    ends = sa.select(Move.id, Move.server, Move.source_host, Move.dest_host).where(ended, Move.server.in_(servers))
    for move, server, *hosts in session.execute(ends.order_by(*newest_first)):
        for host in filter(None, hosts):
            found.setdefault((server, host), move)
    tried = (
        sa.select(Move.id, Move.server, MoveAttempt.host)
        .join(MoveAttempt, MoveAttempt.move_id == Move.id)
        .where(ended, Move.server.in_(servers))
    )
    for move, server, host in session.execute(tried.order_by(*newest_first)):
        found.setdefault((server, host), move)
    return found


def reserved(session: orm.Session, servers: Collection[str]) -> dict[str, str]:
    """Return attachment → the id of the ended move that made it for one of the servers, by the move's history."""
    ended = Move.state.in_([state.value for state in ENDED])
    query = (
        sa.select(Move.id, MoveStep.result)
        .join(MoveStep, MoveStep.move_id == Move.id)
        .where(ended, Move.server.in_(servers), MoveStep.step == RESERVES, MoveStep.result.is_not(None))
    )
    found = {}
    for row in session.execute(query):
        for ids in row.result.values():
            if isinstance(ids, dict) and ids.get("new"):
                found[str(ids["new"])] = row.id
    return found
