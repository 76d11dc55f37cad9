"""Reads the journal's moves, files and ends their flows, and has the one function that changes a move's state."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import uuid
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc, orm

from droveway.errors import Conflict, Evacuated, NotFound, Refused, ServerDeleted
from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal import debts, kinds, transfers
from droveway.persistence.journal.policy_names import AUTO, DEADLINE, MANUAL
from droveway.persistence.journal.states import ENDED, State, check_transition
from droveway.persistence.journal.tables import COLLECTOR, OPERATOR, Claim, Debt, Move, MoveAttempt, MoveFlow, MoveStep
from droveway.printable import SHORT

OPERATOR_WRITES: Final = dt.timedelta(minutes=5)
"""A person's command that has held its claim for this long counts as dead, and a conductor clears up after it."""

CONFIRM_AGAIN: Final = 5
"""Seconds until an undone confirm is tried again, when a delete of the server waits for it."""

GONE: Final = {"server": "deleted"}
"""The result of a step that wrote nothing, since it found no rows of its server."""

# Built once: to build a statement takes far longer than to run it.
_MOVE: Final = sa.select(Move).where(Move.id == sa.bindparam("move")).execution_options(populate_existing=True)
_LOCKED_MOVE: Final = _MOVE.with_for_update()
_WITH_BEFORE: Final = _MOVE.options(orm.undefer(Move.before))
NEWEST_FLOW: Final = (
    sa.select(MoveFlow).where(MoveFlow.move_id == sa.bindparam("move")).order_by(MoveFlow.created_at.desc()).limit(1)
)
"""Selects the flow of a ``move`` that was filed last."""

_FLOW: Final = sa.select(MoveFlow).where(MoveFlow.uuid == sa.bindparam("flow"))
_FOLLOWING: Final = sa.select(MoveFlow).where(
    MoveFlow.move_id == sa.bindparam("move"), MoveFlow.uuid != sa.bindparam("flow"), MoveFlow.ended_at.is_(None)
)
_ENDED_FLOWS: Final = sa.select(MoveFlow.uuid).where(
    MoveFlow.move_id == sa.bindparam("move"), MoveFlow.ended_at.is_not(None)
)
OPEN: Final = (
    sa.select(Move).where(Move.state.not_in([state.value for state in ENDED])).order_by(Move.created_at, Move.id)
)

PASSED_ON: Final = {"graph": "passed on"}
"""The result of an undo that did nothing, because another flow of the move follows.

The following flow (`name_following`) goes on from what the step did, so the step's work has to stay.
"""

BY_NOVA: Final = {"outcome": "nova"}
"""The result of a step that did nothing, because Nova had already done what the step's flow is for.

A user may have confirmed or reverted the server through Nova's API, for example.  The step saw it in Nova's rows.
"""

LEFT: Final = "left"
"""The key of a `BY_NOVA` result that holds a sentence about what could not be cleared."""

_CONFIRMS: Final = kinds.names_of(kinds.Way.CONFIRM)
_STAYS: Final = [kind.name for kind in kinds.KINDS if kind.stays_there]
"""Names of the kinds of flow after which a server stays at its move's destination."""
_ELSEWHERE: Final = [kind.name for kind in kinds.KINDS if kind.elsewhere]
_LAST_RETURN: Final = (
    sa.select(MoveAttempt.host)
    .where(MoveAttempt.move_id == sa.bindparam("move"), MoveAttempt.attempt < 0)
    .order_by(MoveAttempt.attempt)
    .limit(1)
)
"""Selects the host that was tried last in a dead source's place; its number is the lowest."""
_DELETED: Final = {"code": ServerDeleted.code, "message": "the server was deleted"}


@dataclasses.dataclass(frozen=True)
class FlowRef:
    """Names the graph that a flow runs: its key in the registry of graphs, and its digest when the flow was filed."""

    kind: str
    version: int
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Holds what an operator asks for; ids and names are those of Nova's API and cell databases."""

    kind: str
    server: str
    server_name: str
    cell: str
    host: str
    """Empty for a server that is on no host."""
    old_flavor: str
    new_flavor: str
    target_host: str | None = None
    to_cell: str | None = None
    """The cell that the server is to be in afterwards; None when the operator named neither a cell nor a host.

    When the operator names a host, this is the host's cell.  The cell may be the one that the server is in.
    """
    policy: str = DEADLINE
    confirm_seconds: int = 86400
    keep_seconds: int = 0
    transfer: str = transfers.AUTO
    keep_image: bool = False
    reason: str | None = None
    asked_by: str = ""
    project: str = ""


def submit(session: orm.Session, request: Request, flow: FlowRef) -> Move:
    """Write the row of a new move and file its first flow; from then on the move exists.

    Raises `droveway.errors.Refused` when the server has a move that has not ended.
    """
    now = database_time(session)
    move_id = str(uuid.uuid4())
    move = Move(
        id=move_id,
        kind=request.kind,
        server=request.server,
        server_name=request.server_name,
        active_server=request.server,
        state=State.QUEUED,
        source_cell=request.cell,
        source_host=request.host,
        target_host=request.target_host,
        dest_cell=request.to_cell,
        old_flavor=request.old_flavor,
        new_flavor=request.new_flavor,
        policy=request.policy,
        confirm_seconds=request.confirm_seconds,
        keep_seconds=request.keep_seconds,
        transfer_asked=request.transfer,
        keep_image=request.keep_image,
        reason=request.reason,
        asked_by=request.asked_by,
        project=request.project,
        request_id=f"req-{move_id}",
        created_at=now,
        updated_at=now,
    )
    session.add(move)
    try:
        session.flush()
    except exc.IntegrityError:
        raise Refused(
            f"server {request.server_name} has a move under way, and a server has one move at a time: "
            f"droveway move list --server {request.server_name}"
        ) from None
    _add_flow(session, move, flow, now)
    return move


def get(session: orm.Session, move_id: str, *, lock: bool = False, with_before: bool = False) -> Move:
    """Return the move of this whole id; raise `droveway.errors.NotFound` when there is none.

    ``lock`` locks its row until the end of the transaction.  ``with_before`` reads the column `Move.before` too, which
    is otherwise read when it is first used; it has no effect together with ``lock``.
    """
    query = _LOCKED_MOVE if lock else _WITH_BEFORE if with_before else _MOVE
    move = session.scalar(query, {"move": move_id})
    if move is None:
        raise NotFound(f"move {move_id} is unknown: droveway move list shows the moves")
    return move


def find(session: orm.Session, name: str) -> Move:
    """Return the move whose id is ``name`` or begins with it.

    Raises `droveway.errors.NotFound` when none does, and `droveway.errors.Refused`, naming the ids, when several do.
    """
    matches = list(session.scalars(sa.select(Move).where(Move.id.startswith(name, autoescape=True)).limit(6)))
    if not matches:
        raise NotFound(f"no move's id begins with {name}: droveway move list shows the moves")
    if len(matches) > 1:
        ids = ", ".join(move.id[: SHORT + 4] for move in matches)
        raise Refused(f"several moves begin with {name} ({ids}): give more letters of the id")
    return matches[0]


def history(session: orm.Session, move_id: str) -> list[MoveStep]:
    """Return all runs of the move's steps and undos, in the order in which they began."""
    return list(session.scalars(sa.select(MoveStep).where(MoveStep.move_id == move_id).order_by(MoveStep.seq)))


def flow_of(session: orm.Session, flow_uuid: str) -> MoveFlow:
    """Return the flow's row; raise `droveway.errors.NotFound` when there is none."""
    flow = session.scalar(_FLOW, {"flow": flow_uuid})
    if flow is None:
        raise NotFound(f"flow {flow_uuid} is unknown to the journal")
    return flow


def open_moves(session: orm.Session) -> list[Move]:
    """Return all moves that have not ended, oldest first."""
    return list(session.scalars(OPEN))


def ended_flows(session: orm.Session, move_id: str) -> list[str]:
    """Return the uuids of the move's flows that have ended."""
    return list(session.scalars(_ENDED_FLOWS, {"move": move_id}))


def unreleased_flows(session: orm.Session) -> list[tuple[Move, MoveFlow]]:
    """Return the flows that ended under a claim which was never given back, each with its move.

    The conductor of such a flow died before it had cleared up: fences and ZooKeeper nodes are still there.

    Flows under two kinds of claim are left out, because the owner of the claim may still be at work.  The first kind is
    a claim of the collector, as long as a debt of the move is due.  The second kind is a claim of a person's command,
    as long as the claim is younger than `OPERATOR_WRITES`.
    """
    dead = {"dead_since": database_time(session) - OPERATOR_WRITES}
    return [(move, flow) for move, flow in session.execute(UNRELEASED_FLOWS, dead)]


def _unreleased_flows() -> sa.Select[Move, MoveFlow]:
    newer = orm.aliased(MoveFlow)
    later = sa.select(newer.uuid).where(newer.move_id == Move.id, newer.ended_at > MoveFlow.ended_at)
    owed = sa.select(Debt.id).where(Debt.move_id == Move.id, debts.DUE)
    return (
        sa.select(Move, MoveFlow)
        .join(Claim, Claim.move_id == Move.id)
        .join(MoveFlow, MoveFlow.move_id == Move.id)
        .where(
            Claim.released_at.is_(None),
            Move.flow_uuid.is_(None),
            MoveFlow.ended_at.is_not(None),
            ~later.exists(),
            sa.or_(Claim.owner != COLLECTOR, ~owed.exists()),
            sa.or_(~Claim.owner.startswith(OPERATOR), Claim.claimed_at < sa.bindparam("dead_since")),
        )
    )


UNRELEASED_FLOWS: Final = _unreleased_flows()


def change_state(session: orm.Session, move: Move, new: State, **columns: Any) -> None:
    """Change the move's state, and other columns with it; no other code changes a state.

    The change is a compare-and-swap on the old state.  Raises `droveway.errors.Conflict` when that has changed since
    the move was read, and `droveway.errors.IllegalTransition` when ``new`` may not follow it.
    """
    old = State(move.state)
    check_transition(old, new)
    values: dict[str, Any] = {"state": new.value, **columns}
    if new in ENDED:
        values |= {"active_server": None, "flow_uuid": None, "hold": False, "deadline": None}
    session.flush()
    given = {"move": move.id, "old_state": old.value, **{f"new_{column}": value for column, value in values.items()}}
    result = session.connection().execute(_change_of(frozenset(values), ends=new in ENDED), given)
    if result.rowcount != 1:
        short = move.id[:SHORT]
        raise Conflict(f"move {short} changed meanwhile: look again with droveway move show {short}")
    get(session, move.id)


@functools.cache
def _change_of(columns: frozenset[str], *, ends: bool) -> sa.Update:
    """Build the UPDATE that sets these columns of a move which is in a given state, and the times of the change."""
    values: dict[str, Any] = dict.fromkeys(("updated_at", "ended_at") if ends else ("updated_at",), sa.func.utc_now())
    values |= {column: sa.bindparam(f"new_{column}") for column in columns}
    of_move = (Move.id == sa.bindparam("move"), Move.state == sa.bindparam("old_state"))
    return sa.update(Move).where(*of_move).values(values)


def begin_flow(session: orm.Session, move: Move, flow: FlowRef) -> str:
    """File a confirm or revert flow for a move that waits for one, and return the flow's uuid.

    A cancel that came too late for the flow before is forgotten: it was not meant for this flow.
    """
    now = database_time(session)
    state = kinds.of(flow.kind).running
    change_state(session, move, state, error=None, error_code=None, cancel_requested=False, waits_for=None)
    return _add_flow(session, move, flow, now)


def begin_deletion(session: orm.Session, move_id: str, flow: FlowRef) -> None:
    """File the delete flow of a move that is `DELETING`; nothing happens while it has a flow to run."""
    move = get(session, move_id, lock=True)
    if move.state == State.DELETING and move.flow_uuid is None:
        _add_flow(session, move, flow, database_time(session))


def home(session: orm.Session, move: Move) -> str:
    """Return the host that the server of a move in `DELETING` is on, as far as the journal tells.

    That is the destination when the move was confirmed, or when it was an unshelve that is done.  It is the last host
    that took a dead source's place when such a revert is done.  Otherwise it is the source.  A server that was shelved
    is on no host, which only Nova's rows tell.
    """
    if move.dest_host and _is_done(session, move, _STAYS):
        return move.dest_host
    took_place = _is_done(session, move, _ELSEWHERE) and session.scalar(_LAST_RETURN, {"move": move.id})
    return took_place or move.source_host


def intervention(
    move: Move, flow: MoveFlow, step: str, *, at: dt.datetime, direction: str = "execute", **columns: Any
) -> MoveStep:
    """Make a row of the history for what a command of a person did to the move; the flow itself ran no step.

    ``at`` is the row's beginning and also its end.  ``columns`` are further columns of `MoveStep`.
    """
    return MoveStep(
        move_id=move.id,
        flow_uuid=flow.uuid,
        flow=flow.kind,
        step=step,
        direction=direction,
        attempt=move.attempt,
        started_at=at,
        ended_at=at,
        **columns,
    )


def following(connection: Executor, move_id: str, flow_uuid: str) -> bool:
    """Tell whether the journal names another flow with which the move goes on once this one has ended."""
    return connection.execute(_FOLLOWING, {"move": move_id, "flow": flow_uuid}).first() is not None


def name_following(session: orm.Session, move_id: str, flow_uuid: str, graph: FlowRef) -> None:
    """File the flow with which the move goes on once this one has ended; a repeated call changes nothing."""
    move = get(session, move_id, lock=True)
    if not following(session, move_id, flow_uuid):
        _file_flow(session, move, graph, database_time(session))


def take_other_graph(session: orm.Session, move: Move, graph: FlowRef) -> None:
    """End the move's flow as undone, and let the move go on with a new flow of this graph.

    The caller uses this if the move's last destination needs another graph than the flow has: moves within a cell and
    moves between cells have different graphs.  A conductor does the same in two calls, when a flow comes to an
    alternate that needs another graph: it calls `name_following`, and then `end_flow` once the flow is undone.
    """
    flow = flow_of(session, move.flow_uuid or "")
    name_following(session, move.id, flow.uuid, graph)
    flow.ended_at, flow.outcome = database_time(session), "undone"
    _pass_on(session, move, flow)


def _pass_on(session: orm.Session, move: Move, ended: MoveFlow) -> bool:
    """Give the move the flow that was named to follow the ended one; return False when none was named.

    The move's server, migration and history stay as they are.
    """
    flow = session.scalar(_FOLLOWING, {"move": move.id, "flow": ended.uuid})
    if flow is None:
        return False
    move.kind, move.flow_uuid = flow.kind, flow.uuid
    move.step, move.step_number, move.updated_at = None, 0, database_time(session)
    session.flush()
    return True


def end_flow(session: orm.Session, move_id: str, flow_uuid: str, *, done: bool) -> None:
    """Record that the flow is ``done``, or wholly undone, and set the move's next state.

    A repeated call changes nothing.  After an undone flow the move gets the error of the run that `failure` returns.
    If the journal names a flow that follows this one, the move gets that flow and keeps its state.
    """
    flow = flow_of(session, flow_uuid)
    if flow.ended_at is not None:
        return
    move = get(session, move_id, lock=True)
    now = database_time(session)
    flow.ended_at = now
    flow.outcome = "done" if done else "undone"
    session.flush()
    if _pass_on(session, move, flow):
        return
    failed = None if done else failure(session, flow_uuid)
    error = failed.error if failed is not None else None
    state = _state_after(session, flow.kind, move, error, done=done)
    if state in (State.DELETING, State.CANCELLED) and move.delete_requested:
        error = _DELETED
    elif state is State.CANCELLED and move.error_code == Evacuated.code:
        error = {"code": move.error_code, "message": move.error}
    elif done and state in (State.DONE, State.REVERTED):
        error = _ended_by_nova(session, flow)
    if state is State.DELETING:
        debts.end_keeping(session, move_id)
    columns: dict[str, Any] = {
        "error": error["message"] if error else None,
        "error_code": error["code"] if error else None,
        "flow_uuid": None,
        "step": None,
    }
    if state is State.VERIFYING:
        columns |= {"health": None, "health_reason": None, "health_asked": None, "waits_for": None}
        columns["updated_at"] = now
        seconds = _confirm_after(move, flow.kind, done=done)
        columns["deadline"] = None if seconds is None else now + dt.timedelta(seconds=seconds)
    change_state(session, move, state, **columns)


def _ended_by_nova(session: orm.Session, flow: MoveFlow) -> dict[str, Any] | None:
    """Return the error that tells a person that Nova had confirmed or reverted the server before this flow did.

    The move has ended all the same, and the error says what became of the rest.  Returns None when the flow confirmed
    or reverted the server itself.
    """
    found = session.scalars(
        sa.select(MoveStep.result).where(
            MoveStep.flow_uuid == flow.uuid, MoveStep.direction == "execute", MoveStep.result.is_not(None)
        )
    )
    results = [result for result in found if BY_NOVA.items() <= result.items()]
    # One such result proves nothing.  A flow's last step writes the end into the rows.  When its conductor dies before
    # the result is stored, the step runs again and finds the end that it wrote itself.
    if len(results) <= 1:
        return None
    left = "; ".join(str(result[LEFT]) for result in results if LEFT in result)
    rest = f", but {left}" if left else ": what the move still held was cleared"
    return {"code": "by-nova", "message": f"Nova {kinds.of(flow.kind).past} the server before this move did{rest}"}


def forgo_flow(session: orm.Session, move: Move) -> None:
    """End the flow of a move that is cancelled before it ran.

    A conductor may have claimed the flow and died.  `unreleased_flows` finds such a claim by its ended flow, so that
    another conductor clears up.
    """
    if move.flow_uuid is not None:
        flow = flow_of(session, move.flow_uuid)
        flow.ended_at = database_time(session)
        flow.outcome = "undone"


def park(session: orm.Session, move_id: str, code: str, message: str) -> None:
    """Put the move into needs-operator with this reason; nothing happens when it is there already.

    `droveway.persistence.journal.requests.retry` takes it back to the state before.
    """
    move = get(session, move_id, lock=True)
    if move.state != State.NEEDS_OPERATOR:
        change_state(session, move, State.NEEDS_OPERATOR, parked_from=move.state, error=message, error_code=code)


def note_evacuated(session: orm.Session, move_id: str, why: str) -> None:
    """Ask that the forward flow be undone and its move end as cancelled, because Nova has evacuated the server.

    ``why`` becomes the move's error.  A repeated call only replaces that error.
    """
    move = get(session, move_id, lock=True)
    move.cancel_requested = True
    move.error, move.error_code = why, Evacuated.code


def leave(session: orm.Session, move_id: str, code: str, message: str) -> None:
    """End the move and its flow without undoing anything; the move is cancelled.

    If a delete of its server was asked for, the move goes on to `DELETING` instead.
    """
    move = get(session, move_id, lock=True)
    if move.flow_uuid is not None:
        flow = flow_of(session, move.flow_uuid)
        flow.ended_at, flow.outcome = database_time(session), "undone"
    state = State.DELETING if move.delete_requested else State.CANCELLED
    columns = {"error": message, "error_code": code, "flow_uuid": None, "step": None, "parked_from": None}
    change_state(session, move, state, **columns)


def _add_flow(session: orm.Session, move: Move, flow: FlowRef, now: dt.datetime) -> str:
    move.flow_uuid = _file_flow(session, move, flow, now)
    session.flush()
    return move.flow_uuid


def _file_flow(session: orm.Session, move: Move, flow: FlowRef, now: dt.datetime) -> str:
    flow_uuid = str(uuid.uuid4())
    session.add(
        MoveFlow(
            uuid=flow_uuid,
            move_id=move.id,
            kind=flow.kind,
            version=flow.version,
            digest=flow.digest,
            created_at=now,
        )
    )
    session.flush()
    return flow_uuid


def _state_after(session: orm.Session, kind: str, move: Move, error: dict[str, Any] | None, *, done: bool) -> State:
    """Return the move's state after a flow of this kind, by the rules of `kinds.Ending`."""
    ending = kinds.of(kind).ending(done=done)
    if ending.never_confirmed is not None and move.kind != kind and not _was_confirmed(session, move):
        return ending.never_confirmed
    if ending.to_be_deleted is not None and move.delete_requested:
        return ending.to_be_deleted
    deleted = error is not None and error["code"] == ServerDeleted.code
    if ending.cancelled is not None and (move.cancel_requested or deleted):
        return ending.cancelled
    return ending.state


def _is_done(session: orm.Session, move: Move, kinds_of_flow: list[str]) -> bool:
    done = sa.select(MoveFlow.uuid).where(
        MoveFlow.move_id == move.id, MoveFlow.kind.in_(kinds_of_flow), MoveFlow.outcome == "done"
    )
    return session.scalar(done.limit(1)) is not None


def _was_confirmed(session: orm.Session, move: Move) -> bool:
    """Tell whether the move was confirmed while its server existed."""
    results = session.scalars(
        sa.select(MoveStep.result).where(MoveStep.move_id == move.id, MoveStep.result.is_not(None))
    )
    return _is_done(session, move, _CONFIRMS) and GONE not in list(results)


def _confirm_after(move: Move, kind: str, *, done: bool) -> int | None:
    """Return the seconds until the confirm policy acts on a move that now waits; None when only a person acts.

    ``kind`` is the kind of the flow that ended.  After a forward flow, which is ``done``, the policy `auto` acts at
    once.  After a confirm that was undone, the policy's whole time begins again.  After a revert that was undone, no
    policy acts any more: whoever asked for it wants the server back, and a confirm would delete what it goes back to.
    When a delete of the server was asked for, the confirm is due whatever the policy: at once, or after `CONFIRM_AGAIN`
    if a confirm was undone.
    """
    ended = kinds.of(kind)
    if move.delete_requested:
        return CONFIRM_AGAIN if ended.asked_for_by_deletes else 0
    if move.policy == MANUAL or (ended.ends is kinds.Way.REVERT and not done):
        return None
    return 0 if done and move.policy == AUTO else move.confirm_seconds


def failure(session: orm.Session, flow_uuid: str) -> MoveStep | None:
    """Return the run of the step whose error undid the flow; None when no step failed.

    When several alternates failed, returns the run that failed on the last one.
    """
    return session.scalar(
        sa.select(MoveStep)
        .where(MoveStep.flow_uuid == flow_uuid, MoveStep.direction == "execute", MoveStep.error.is_not(None))
        .order_by(MoveStep.seq.desc())
        .limit(1)
    )
