"""Taking a journal as it is that is not the one which was used last: nothing is resumed by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm
from taskflow import states

from droveway.clients.zookeeper import MOVES, Coordination, epoch_path, step_path
from droveway.engines.conductor import incarnation, recorded, registrations, step_marks
from droveway.engines.conductor.recorded import Recorded
from droveway.engines.conductor.taskflow import details
from droveway.flows import registry
from droveway.flows.alternates import AlternateRetry
from droveway.flows.steps.hosts.command import ADOPTED
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.kinds import Carries
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import EPOCH, INCARNATION, Claim, Counter, Move, MoveFlow, MoveStep
from droveway.printable import SHORT

_TURNED_BACK: Final = (states.FAILURE, states.REVERTING, states.REVERTED, states.REVERT_FAILURE)
"""TaskFlow gives these states to the atoms of a flow that is being undone."""

_ONCE: Final = {Carries.BACK: "check_source"}
"""By where a flow brings its server: up to which step nothing is run again.

A second look at a guest would not know that it was stopped.
"""

_LOOK: Final = "droveway audit says what is wrong with it"


def adopt(coordination: Coordination, journal: Database, *, ignored: Collection[str] = ()) -> list[Move]:
    """Park every unfinished move of an installation, and begin a new incarnation; the moves.

    What the workers have seen counts as far as `droveway.engines.conductor.incarnation.believed` has it, those of
    ``ignored`` hosts left out.

    Repeated after a crash: the same once more.  Raises `droveway.errors.CoordinationLost`.
    """
    mark = incarnation.read_mark(coordination)
    workers = [each for each in registrations.workers(coordination).values() if each.host not in ignored]
    marked = step_marks.highest(coordination, MOVES)
    mirrored = recorded.mirrored(recorded.InZooKeeper(coordination))
    epochs = [mark.epoch if mark is not None else 0, *_mirrored(coordination)]
    with journal.write() as session:
        own = session.scalar(sa.select(Counter.value).where(Counter.name == EPOCH)) or 0
        last = max(marked, session.scalar(sa.select(sa.func.max(MoveStep.seq))) or 0)
        highest = max(own, *epochs)
        workers = incarnation.believed(workers, highest + (incarnation.GAP if mark is None else 0))
        epoch = max([highest, *(each.epoch for each in workers)])
        step = max([last, *(each.step for each in workers if each.step <= last + incarnation.GAP)]) + incarnation.GAP
        parked = park_all(session, step=step, what="the journal was adopted as it is", said={}, mirrored=mirrored)
        for move in parked:
            epoch += 1
            # Whoever runs the move by the newer journal writes nothing any more.
            claimed = sa.update(Claim).where(Claim.move_id == move.id)
            session.execute(claimed.values(epoch=epoch, released_at=database_time(session), unclean=0))
        new = incarnation.new_incarnation()
        session.merge(Counter(name=EPOCH, value=epoch + 1))
        session.merge(Counter(name=INCARNATION, value=new))
        _continue_numbers(session)
    for move in parked:
        # By the newer journal it may have ended, and then no claim on it would ever be mirrored again.
        coordination.delete(epoch_path(move.id))
        # What it names is lost for good; the next step that begins is marked anew.
        coordination.delete(step_path(move.id))
    coordination.delete(incarnation.MARK)
    incarnation.raise_mark(coordination, new, epoch + 1)
    return parked


def park_all(
    session: orm.Session,
    *,
    step: int,
    what: str,
    said: Mapping[str, Sequence[str]],
    mirrored: Mapping[str, Recorded],
) -> list[Move]:
    """Park every unfinished move with what the audit has ``said`` of it; the numbers of steps go on from ``step``.

    What the journal has lost of its own record of a move comes back from what was ``mirrored``.
    """
    parked = moves.open_moves(session)
    for number, move in enumerate(parked, step):
        elsewhere = move.id in mirrored and recorded.take_back(session, move, mirrored[move.id])
        _park(session, move, number, what, said.get(move.id))
        _begin_again(session, move, anew=elsewhere)
    return parked


def note(session: orm.Session, move: Move, **told: Any) -> None:
    """Write into the history that the move's flow may have gone further than the journal knows; ``told``: columns."""
    now = database_time(session)
    session.add(
        MoveStep(
            move_id=move.id,
            flow_uuid=move.flow_uuid or "",
            flow="",
            step=ADOPTED,
            direction="execute",
            attempt=move.attempt,
            started_at=now,
            ended_at=now,
            **told,
        )
    )


def _mirrored(coordination: Coordination) -> list[int]:
    found = []
    for move in coordination.children(MOVES):
        node = coordination.get(epoch_path(move))
        if node is not None and node[0].isdigit():
            found.append(int(node[0]))
    return found


def _park(session: orm.Session, move: Move, number: int, what: str, findings: Sequence[str] | None) -> None:
    """The history's row keeps the numbers of steps above those that were given out after the copy was made."""
    short, now = move.id[:SHORT], database_time(session)
    tell = _LOOK
    if findings is not None:
        tell = f"droveway audit finds: {findings[0]}" if findings else "droveway audit finds nothing wrong with it"
    why = f"{what}, so nobody knows how far move {short} really came; {tell}"
    error = {"code": incarnation.Restored.code, "message": why, "host": ""}
    session.execute(
        sa.update(MoveStep)
        .where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
        .values(ended_at=now, error=error)
    )
    note(session, move, seq=number, error=error)
    if move.state == State.NEEDS_OPERATOR:
        move.error, move.error_code = why, incarnation.Restored.code
    else:
        moves.park(session, move.id, incarnation.Restored.code, why)


def _begin_again(session: orm.Session, move: Move, *, anew: bool) -> None:
    """Let every step of a flow that goes forward run once more: each finds its work done, or does it.

    The world may have gone on from where the copy has the flow, and come back behind that again.  What a step before
    the first alternate recorded stands; a flow that was being undone goes on with that.  With ``anew`` the copy has the
    flow at a destination that was given up since: the flow begins again with the choice, which takes the last one.
    """
    flow = session.get(MoveFlow, move.flow_uuid) if move.flow_uuid else None
    if flow is None or flow.ended_at is not None or (flow.kind, flow.version) not in registry.GRAPHS:
        return
    graph = registry.graph(flow.kind, flow.version)
    again = [step.step_name() for step in ((*graph.tried, *graph.after) if graph.tried else graph.walk())]
    if once := _ONCE.get(kinds.of(flow.kind).carries):
        again = again[again.index(once) + 1 :]
    atoms = details.ATOMS.c
    ours = atoms.parent_uuid == flow.uuid
    if anew and graph.tried:
        again += [graph.steps[-1].step_name(), AlternateRetry.title]
    elif session.scalar(sa.select(sa.func.count()).where(ours, atoms.state.in_(_TURNED_BACK))):
        return
    session.execute(details.ATOMS.delete().where(ours, atoms.name.in_(again)))


def _continue_numbers(session: orm.Session) -> None:
    """PostgreSQL does not count on from a number that was given to it."""
    session.flush()
    if session.get_bind().dialect.name == "postgresql":
        last = sa.select(sa.func.max(MoveStep.seq)).scalar_subquery()
        session.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence("move_steps", "seq"), last)))
