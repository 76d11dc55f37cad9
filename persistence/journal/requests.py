"""What an operator can ask of a move that exists.

Each function changes the move's row, or raises `droveway.errors.Refused` with a sentence that says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Refused
from droveway.persistence.database import database_time
from droveway.persistence.journal import debts, kinds, moves
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveStep
from droveway.printable import SHORT

Filing = Callable[[orm.Session, Move], None]
"""A function that files a flow of a move in a transaction of the journal."""

_CANCELLABLE: Final = frozenset({State.QUEUED, State.RUNNING, State.UNDOING})

_GOING_ON: Final = _CANCELLABLE | {State.CONFIRMING, State.REVERTING, State.DELETING}


def end_wait(session: orm.Session, move: Move, flow: FlowRef, *, shown: bool = False) -> None:
    """File a confirm or revert flow.

    Raises `droveway.errors.Refused` when the move does not wait for confirm or revert, while a person's command settles
    it, and for a revert when somebody asked for a delete of the server.  With ``shown`` the revert is filed all the
    same: the caller has seen in Nova's rows that the server is reverted already, or that a revert has begun.
    """
    kind = kinds.of(flow.kind)
    if not kinds.of(move.kind).leads_to_wait:
        raise Refused(
            f"move {move.id[:SHORT]} of {move.server_name} is {move.state}, and a move of kind {move.kind} is never "
            f"{kind.past}, since it ends without a wait: droveway move show {move.id[:SHORT]} tells what can be done"
        )
    require(move, {State.VERIFYING}, kind.past)
    _require_left_alone(session, move, kind.past)
    if move.delete_requested and not (kind.asked_for_by_deletes or shown):
        raise Refused(_going(move, kind.past))
    moves.begin_flow(session, move, flow)


def cancel(session: orm.Session, move: Move, past_no_return: frozenset[str]) -> None:
    """Ask that the forward flow be undone.

    ``past_no_return`` names the flow's point of no return and the steps after it.  A queued move ends at once.  Raises
    `droveway.errors.Refused` when the move is not in its forward flow, when the flow has come to one of these steps,
    and when the server is being deleted.
    """
    state = _effective(move)
    if state not in ENDED and (kinds.of(move.kind).deletes or move.delete_requested):
        raise Refused(_going(move, "cancelled"))
    if state not in _CANCELLABLE:
        require(move, _CANCELLABLE, "cancelled")
    if move.step in past_no_return:
        then = (
            f"wait, and if it then is {State.VERIFYING}, droveway move revert {move.id[:SHORT]}"
            if kinds.of(move.kind).leads_to_wait
            else f"droveway move show {move.id[:SHORT]} tells how"
        )
        raise Refused(
            f"move {move.id[:SHORT]} is past its point of no return (step {move.step}), so it can only go on: {then}"
        )
    if state is State.QUEUED and move.state == State.QUEUED:
        moves.forgo_flow(session, move)
        moves.change_state(session, move, State.CANCELLED, cancel_requested=True)
        return
    move.cancel_requested = True
    move.updated_at = database_time(session)


def pause(session: orm.Session, move: Move) -> None:
    """Hold the move before its next step; raise `droveway.errors.Refused` when it has ended or is at rest."""
    require(move, _GOING_ON, "paused")
    move.hold = True
    move.updated_at = database_time(session)


def resume(session: orm.Session, move: Move) -> None:
    """End a hold, if there is one, and have the confirm policy check again whether it must wait.

    Raises `droveway.errors.Refused` for a move that has ended.
    """
    if State(move.state) in ENDED:
        require(move, set(State) - ENDED, "resumed")
    move.hold = False
    move.waits_for = None
    move.updated_at = database_time(session)


def recheck_waits(session: orm.Session) -> None:
    """Have each confirm policy that waits for something check again whether it must."""
    waiting = sa.update(Move).where(Move.state == State.VERIFYING, Move.waits_for.is_not(None))
    session.execute(waiting.values(waits_for=None).execution_options(synchronize_session=False))


def retry(session: orm.Session, move: Move) -> None:
    """Let the parked step run again.

    Raises `droveway.errors.Refused` unless the move is needs-operator, and while a person's command settles it.  The
    command that the step sends gets a new key, so that an old answer is not taken for the new one.
    """
    require(move, {State.NEEDS_OPERATOR}, "retried")
    _require_left_alone(session, move, "retried")
    go_on(session, move, "retried", "entered again by move retry")


def go_on(session: orm.Session, move: Move, code: str, message: str) -> None:
    """Take the move from needs-operator back to the state before; end the open runs of its steps with this error."""
    session.execute(
        sa.update(MoveStep)
        .where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
        .values(ended_at=database_time(session), error={"code": code, "message": message, "host": ""})
    )
    back = State(move.parked_from or State.RUNNING)
    moves.change_state(session, move, back, parked_from=None, error=None, error_code=None, hold=False)


def delete(session: orm.Session, move: Move) -> None:
    """Ask that the move's server be deleted.

    A forward flow that is not past its point of no return is undone before its next step, and releases everything.  A
    move that waits for confirm or revert is confirmed first.  If Nova's rows show that a revert is done or had begun,
    the move is reverted instead: a user reverted the server through Nova, or the journal was put back and does not know
    of its revert.  Any other flow runs to its end.  Then the server is deleted.

    A hold ends, and the confirm policy waits for nothing any more.  When a step has parked since the first call, a
    second call retries that step.
    """
    if move.state == State.NEEDS_OPERATOR and (move.delete_requested or kinds.of(move.kind).deletes):
        retry(session, move)
    move.delete_requested = True
    move.hold = False
    move.waits_for = None
    move.updated_at = database_time(session)
    if move.state == State.VERIFYING:
        move.deadline = move.updated_at


def purge_kept(session: orm.Session, move: Move) -> None:
    """Make the purge of the move's kept source due now; raise `droveway.errors.Refused` when nothing is kept."""
    if debts.end_keeping(session, move.id) is None:
        raise Refused(
            f"nothing is kept of the source of move {move.id[:SHORT]} of {move.server_name}: "
            f"droveway debt list --all --move {move.id[:SHORT]} shows what was"
        )


def host_is_back(session: orm.Session, host: str) -> None:
    """Retry at once the deletes of servers that waited for this host, which is the source of their moves."""
    waiting = sa.update(Move).where(
        Move.state == State.VERIFYING, Move.delete_requested.is_(True), Move.source_host == host
    )
    session.execute(waiting.values(deadline=database_time(session)).execution_options(synchronize_session=False))


def _going(move: Move, verb: str) -> str:
    return (
        f"move {move.id[:SHORT]} cannot be {verb}, since its server {move.server_name} is being deleted, which goes "
        f"forward only: droveway move show {move.id[:SHORT]} tells how it stands"
    )


def _require_left_alone(session: orm.Session, move: Move, verb: str) -> None:
    """Raise `droveway.errors.Refused` while a person's command holds the move's claim and may be at work.

    The command writes the server's rows as those of a move that rests.  A flow that began meanwhile would find them so.
    The caller has locked the move, and a command that claims the move compares its state under the same lock.  So the
    claim is seen here, or the command sees that the move goes on.
    """
    at_work = sa.select(Claim.owner).where(
        Claim.move_id == move.id,
        Claim.released_at.is_(None),
        Claim.owner.startswith(OPERATOR),
        Claim.claimed_at >= database_time(session) - moves.OPERATOR_WRITES,
    )
    owner = session.scalar(at_work)
    if owner is not None:
        minutes = int(moves.OPERATOR_WRITES.total_seconds()) // 60
        raise Refused(
            f"move {move.id[:SHORT]} cannot be {verb} while a command of {owner} settles it: ask again when that "
            f"command has ended, or, if it died, {minutes} minutes after it began"
        )


def _effective(move: Move) -> State:
    state = State(move.state)
    return State(move.parked_from) if state is State.NEEDS_OPERATOR and move.parked_from else state


def require(move: Move, states: set[State] | frozenset[State], verb: str) -> None:
    """Raise `droveway.errors.Refused` unless the move is in one of the states.

    ``verb`` is the participle in the error: what cannot be done to the move.
    """
    if State(move.state) in states:
        return
    wanted = " or ".join(sorted(state.value for state in states))
    raise Refused(
        f"move {move.id[:SHORT]} of {move.server_name} is {move.state}, and only a move that is {wanted} can be "
        f"{verb}: droveway move show {move.id[:SHORT]} tells what can be done"
    )
