"""Adopts a journal as it is, although it is not the newest: every unfinished move is parked until a person decides."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.zookeeper import MOVES, Coordination, epoch_path, step_path
from droveway.engines.conductor import incarnation, recorded, registrations, step_marks
from droveway.engines.conductor.recorded import Recorded
from droveway.engines.conductor.taskflow import resting
from droveway.flows import registry
from droveway.flows.alternates import Alternates
from droveway.flows.other_graph import across
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal import kinds, moves, step_runs
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Counter, Move, MoveFlow, MoveStep
from droveway.persistence.restored import EPOCH, INCARNATION, Mark, Restored, new_incarnation
from droveway.printable import SHORT
from droveway.wire.commands import Registration

_ADVICE: Final = "droveway audit says what is wrong with it"


class Memory(abc.ABC):
    """Holds what others than the journal know of its moves.

    In an installation the others are ZooKeeper and the workers.  In a lab they are the lab's files.  A subclass reads
    all of it when an object is made, so before `adopt` reads the journal.

    A *mirror* is a copy of what the journal has recorded of a move (`droveway.engines.conductor.recorded`).
    """

    adopted: str
    """The words in which an error says what was adopted."""
    journal: Database
    epoch: int
    """The highest epoch that was seen."""
    step: int
    """The highest number of a step that was seen."""
    workers: Sequence[Registration] = ()
    """The registered workers, which may have seen higher numbers.

    They are not trusted: `droveway.engines.conductor.incarnation.believed` judges their epochs.
    """
    doubt: int = 0
    """How many epochs above ``epoch`` the workers may have been given."""
    recorded: Mapping[str, Recorded]
    """What the newer journal had recorded of each move, read from the mirrors."""
    findings: Mapping[str, Sequence[str]] | None = None
    """What the audit finds of each move; None where no audit ran."""

    @abc.abstractmethod
    def begin_anew(self, mark: Mark, parked: Iterable[str]) -> None:
        """Let ``mark`` stand from now on, and remove what newer claims and steps have written of these moves."""


class OfInstallation(Memory):
    """Reads what ZooKeeper and workers know of an installation's journal.

    A node that cannot be decoded counts as missing.  Raises `droveway.errors.CoordinationLost` when ZooKeeper does not
    answer.
    """

    adopted = "the journal was adopted as it is"

    def __init__(self, coordination: Coordination, journal: Database, ignored: Collection[str] = ()) -> None:
        """``ignored``: hosts whose workers are not asked."""
        try:
            mark = incarnation.read_mark(coordination)
        except Restored:
            mark = None
        registered = registrations.workers(coordination)
        self.journal = journal
        self.epoch = max([mark.epoch if mark is not None else 0, *_epochs_in_zookeeper(coordination)])
        self.step = step_marks.highest(coordination, MOVES)
        self.workers = [each for host, each in registered.items() if host not in ignored]
        self.doubt = incarnation.GAP if mark is None else 0
        self.recorded = recorded.mirrored(recorded.InZooKeeper(coordination))
        self._coordination = coordination

    def begin_anew(self, mark: Mark, parked: Iterable[str]) -> None:
        """Delete the nodes with each move's epoch and last step, then write ``mark`` into the journal's node."""
        for move in parked:
            # By the newer journal the move may have ended: a tombstone would refuse every later claim.
            self._coordination.delete(epoch_path(move))
            # The step that this node names is lost for good; the next step that begins makes the node anew.
            self._coordination.delete(step_path(move))
        self._coordination.delete(incarnation.MARK)
        incarnation.raise_mark(self._coordination, mark.incarnation, mark.epoch)


def adopt(memory: Memory) -> list[Move]:
    """Park every unfinished move, and begin a new incarnation above every epoch that was seen; return the moves.

    A record that the journal lacks, such as a destination that was tried, is taken from the move's mirror.  If the
    mirror shows that the flow went on to another host after the copy was made (``elsewhere``), the flow begins again
    with its choice of a host.  After a crash this can be done once more, with the same result.

    Raises what ``memory`` raises.
    """
    with memory.journal.write() as session:
        epoch, step = _above(session, memory)
        parked = moves.open_moves(session)
        for number, move in enumerate(parked, step):
            elsewhere = move.id in memory.recorded and recorded.take_back(session, move, memory.recorded[move.id])
            if elsewhere:
                _take_its_graph(session, move)
            _park(session, move, number, memory)
            _begin_again(session, move, anew=elsewhere)
            epoch += 1
            # A conductor that still runs the move by the newer journal can write nothing any more.
            claimed = sa.update(Claim).where(Claim.move_id == move.id)
            session.execute(claimed.values(epoch=epoch, released_at=database_time(session), unclean=0))
        mark = Mark(incarnation=new_incarnation(), epoch=epoch + 1)
        session.merge(Counter(name=EPOCH, value=mark.epoch))
        session.merge(Counter(name=INCARNATION, value=mark.incarnation))
        _continue_numbers(session)
    memory.begin_anew(mark, [move.id for move in parked])
    return parked


def _above(session: orm.Session, memory: Memory) -> tuple[int, int]:
    """Find the highest epoch that anybody can have been given, and a step's number above all that were given out."""
    own = session.scalar(sa.select(Counter.value).where(Counter.name == EPOCH)) or 0
    highest = max(own, memory.epoch)
    last = max(memory.step, session.scalar(sa.select(sa.func.max(MoveStep.seq))) or 0)
    workers = incarnation.believed(memory.workers, highest + memory.doubt)
    seen = [each.step for each in workers if each.step <= last + incarnation.GAP]
    return max([highest, *(each.epoch for each in workers)]), max([last, *seen]) + incarnation.GAP


def _epochs_in_zookeeper(coordination: Coordination) -> list[int]:
    found = []
    for move in coordination.children(MOVES):
        node = coordination.get(epoch_path(move))
        if node is not None and node[0].isdigit():
            found.append(int(node[0]))
    return found


def _park(session: orm.Session, move: Move, number: int, memory: Memory) -> None:
    """Park the move, end its open runs, and write into the history that the journal was adopted.

    That row has the given ``number``.  So later rows get numbers above all that were given out after the copy was made.
    """
    short, now = move.id[:SHORT], database_time(session)
    advice = _ADVICE
    if memory.findings is not None:
        said = memory.findings.get(move.id)
        advice = f"droveway audit finds: {said[0]}" if said else "droveway audit finds nothing wrong with it"
    why = f"{memory.adopted}, so nobody knows how far move {short} really came; {advice}"
    error = {"code": Restored.code, "message": why, "host": ""}
    session.execute(
        sa.update(MoveStep)
        .where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
        .values(ended_at=now, error=error)
    )
    step_runs.note_adopted(session, move, seq=number, error=error)
    if move.state == State.NEEDS_OPERATOR:
        move.error, move.error_code = why, Restored.code
    else:
        moves.park(session, move.id, Restored.code, why)


def _take_its_graph(session: orm.Session, move: Move) -> None:
    """Give the move's flow the graph that its last destination needs, if that is another one.

    Moves within a cell and moves between cells have different graphs.  The flow had changed from one to the other after
    the copy was made.
    """
    kind = across(moves.flow_of(session, move.flow_uuid).kind) if move.flow_uuid else None
    crosses = move.dest_cell != move.source_cell
    if kind is not None and kinds.of(kind).crosses_cells == crosses:
        moves.take_other_graph(session, move, registry.reference(kind))


def _begin_again(session: orm.Session, move: Move, *, anew: bool) -> None:
    """Let every step of a flow that goes forward run once more: each finds its work done, or does it.

    After the copy was made, the flow may have gone further and may also have been undone again.  So no step of the copy
    counts as done, except steps that only found something out.  A flow that was being undone is undone further.

    ``anew`` says that the flow has given up the destination that the adopted copy names.  Then the flow begins again
    with the step that chooses a destination.  This step takes the last destination that was tried.
    """
    flow = session.get(MoveFlow, move.flow_uuid) if move.flow_uuid else None
    if flow is None or flow.ended_at is not None or (flow.kind, flow.version) not in registry.GRAPHS:
        return
    graph = registry.graph(flow.kind, flow.version)
    again = [name for name in graph.by_name if name not in graph.shown.finding]
    if anew and graph.tried:
        again = list(dict.fromkeys([*again, *(step.step_name() for step in graph.tried)]))
        again += [graph.steps[-1].step_name(), Alternates.title]
    elif resting.turned_back(session, flow.uuid):
        return
    resting.let_run_again(session, flow.uuid, again)


def _continue_numbers(session: orm.Session) -> None:
    """Let PostgreSQL count on from the last row: it does not do so by itself after a row with a given number."""
    session.flush()
    if session.get_bind().dialect.name == "postgresql":
        last = sa.select(sa.func.max(MoveStep.seq)).scalar_subquery()
        session.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence("move_steps", "seq"), last)))
