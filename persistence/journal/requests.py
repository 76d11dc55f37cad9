"""What an operator asks of a move that exists: each one compare-and-swap, or one sentence why not."""

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
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.printable import SHORT

Filing = Callable[[orm.Session, Move], None]
"""Files a flow of a move in a transaction of the journal."""

_CANCELLABLE: Final = frozenset({State.QUEUED, State.RUNNING, State.UNDOING})

_GOING_ON: Final = _CANCELLABLE | {State.CONFIRMING, State.REVERTING, State.DELETING}


def end_wait(session: orm.Session, move: Move, flow: FlowRef, *, shown: bool = False) -> None:
    """File a confirm or revert; raises Refused unless the move waits for it, and for a revert of a deleted server.

    The latter is no reason where the server's rows have ``shown`` that it is reverted already, or half.
    """
    kind = kinds.of(flow.kind)
    require(move, {State.VERIFYING}, kind.past)
    if move.delete_requested and not (kind.asked_for_by_deletes or shown):
        raise Refused(_going(move, kind.past))
    moves.begin_flow(session, move, flow)


def cancel(session: orm.Session, move: Move, past_no_return: frozenset[str]) -> None:
    """Ask that the forward flow be undone; ``past_no_return`` names its steps past the point of no return.

    Raises Refused outside the forward flow or past that point.  A move that never began ends at once.
    """
    state = _effective(move)
    if state not in ENDED and (kinds.of(move.kind).deletes or move.delete_requested):
        raise Refused(_going(move, "cancelled"))
    if state not in _CANCELLABLE:
        require(move, _CANCELLABLE, "cancelled")
    if move.step in past_no_return:
        raise Refused(
            f"move {move.id[:SHORT]} is past its point of no return (step {move.step}), so it can only go on: "
            f"wait for it, then droveway move revert {move.id[:SHORT]}"
        )
    if state is State.QUEUED and move.state == State.QUEUED:
        moves.forgo_flow(session, move)
        moves.change_state(session, move, State.CANCELLED, cancel_requested=True)
        return
    move.cancel_requested = True
    move.updated_at = database_time(session)


def pause(session: orm.Session, move: Move) -> None:
    """Hold the move at its next step boundary; raises Refused for one that has ended or rests anyway."""
    require(move, _GOING_ON, "paused")
    move.hold = True
    move.updated_at = database_time(session)


def resume(session: orm.Session, move: Move) -> None:
    """Lift a hold, if there is one, and let the confirm policy look again whether it has to wait.

    Raises Refused for a move that has ended.
    """
    if State(move.state) in ENDED:
        require(move, set(State) - ENDED, "resumed")
    move.hold = False
    move.waits_for = None
    move.updated_at = database_time(session)


def recheck_waits(session: orm.Session) -> None:
    """Let every confirm policy that waits for something look whether it still has to."""
    waiting = sa.update(Move).where(Move.state == State.VERIFYING, Move.waits_for.is_not(None))
    session.execute(waiting.values(waits_for=None).execution_options(synchronize_session=False))


def retry(session: orm.Session, move: Move) -> None:
    """Enter the parked step again; its command gets a new key, so that no old answer is taken for the new one."""
    require(move, {State.NEEDS_OPERATOR}, "retried")
    go_on(session, move, "retried", "entered again by move retry")


def go_on(session: orm.Session, move: Move, code: str, message: str) -> None:
    """Leave needs-operator for the state before it; runs of steps that were left open end with this error."""
    session.execute(
        sa.update(MoveStep)
        .where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
        .values(ended_at=database_time(session), error={"code": code, "message": message, "host": ""})
    )
    back = State(move.parked_from or State.RUNNING)
    moves.change_state(session, move, back, parked_from=None, error=None, error_code=None, hold=False)


def delete(session: orm.Session, move: Move) -> None:
    """The move's server is to be deleted; repeated: a step that was parked is entered again, and no wait goes on.

    A forward flow ends at its next boundary and releases everything; what waits for verification is confirmed first,
    or reverted where that had begun; any other flow ends as it would.  Then the server goes.
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
    """Let the host purge what it keeps of the move's source; raises Refused when it keeps nothing."""
    if debts.end_keeping(session, move.id) is None:
        raise Refused(
            f"nothing is kept of the source of move {move.id[:SHORT]} of {move.server_name}: "
            f"droveway debt list --all --move {move.id[:SHORT]} shows what was"
        )


def host_is_back(session: orm.Session, host: str) -> None:
    """Let the deletes that waited for this source of their moves be tried again at once."""
    waiting = sa.update(Move).where(
        Move.state == State.VERIFYING, Move.delete_requested.is_(True), Move.source_host == host
    )
    session.execute(waiting.values(deadline=database_time(session)).execution_options(synchronize_session=False))


def _going(move: Move, verb: str) -> str:
    return (
        f"move {move.id[:SHORT]} cannot be {verb}, since its server {move.server_name} is being deleted, which goes "
        f"forward only: droveway move show {move.id[:SHORT]} tells how it stands"
    )


def _effective(move: Move) -> State:
    state = State(move.state)
    return State(move.parked_from) if state is State.NEEDS_OPERATOR and move.parked_from else state


def require(move: Move, states: set[State] | frozenset[State], verb: str) -> None:
    """Raise Refused unless the move is in one of the states; ``verb`` is what cannot be done to it."""
    if State(move.state) in states:
        return
    wanted = " or ".join(sorted(state.value for state in states))
    raise Refused(
        f"move {move.id[:SHORT]} of {move.server_name} is {move.state}, and only a move that is {wanted} can be "
        f"{verb}: droveway move show {move.id[:SHORT]} tells what can be done"
    )
