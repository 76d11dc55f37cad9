"""The conductor: claims flows from the board and runs each of them, fenced, in a thread of its own."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import sqlalchemy as sa

from droveway import deadlines, log_context
from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import cells_away, fencing, incarnation, recorded, step_marks, story
from droveway.engines.conductor.fencing import Quarantined
from droveway.engines.conductor.history import History
from droveway.engines.conductor.host_channel import Fence, HostChannel
from droveway.engines.conductor.run import MoveRun, Resources, Stop, begin_state
from droveway.engines.conductor.taskflow import atoms
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.engines.conductor.taskflow.board import MoveBoard, MoveJob, Posting
from droveway.engines.conductor.taskflow.conductor import JobConductor
from droveway.engines.conductor.taskflow.engine import MoveEngine, journal_was_away
from droveway.errors import Fenced, NotFound
from droveway.flows.graph import Graph
from droveway.flows.steps import overtaken
from droveway.flows.steps.records import homes
from droveway.outages import Outage
from droveway.persistence.database import absence, without_sql
from droveway.persistence.journal import attempts, cell_waits, cells_down, debts, freezes, kinds, moves
from droveway.persistence.journal.states import BEGUN, ENDED, State
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.persistence.nova import catalog
from droveway.persistence.nova.cells import Cells
from droveway.persistence.restored import Restored
from droveway.wire import codec

LOG = logging.getLogger(__name__)

END_OF_FLOW: Final = "end_of_flow"
"""Names the point between a flow's stored end and the clearing up after it.

Tests inject a fault there.  A fence that could not be removed there is owed as a step of this name.
"""

SHORTEST_SHUN: Final = 0.5
LONGEST_SHUN: Final = 60.0
"""Seconds for which a conductor leaves a flow alone after it could not run it.  The pause doubles each time."""

_WANTED: Final = (
    sa.select(Move.hold, Move.state, Move.server)
    .join(MoveFlow, MoveFlow.uuid == Move.flow_uuid)
    .where(Move.id == sa.bindparam("move"), MoveFlow.uuid == sa.bindparam("flow"), MoveFlow.ended_at.is_(None))
)

FindGraph = Callable[[str, int], Graph]
"""Returns the graph of a kind and version (`droveway.flows.registry.graph`); raises NotFound for an unknown one."""


class MoveConductor(JobConductor):
    """Runs the flow of each job fenced: one claim on its move, one engine, one end."""

    def __init__(
        self,
        name: str,
        board: MoveBoard,
        coordination: Coordination,
        resources: Resources,
        find_graph: FindGraph,
        *,
        slots: int,
        reserved: int,
    ) -> None:
        self.stopping = Stop()
        super().__init__(name, board, coordination, slots=slots, reserved=reserved, is_stopping=self.stopping.wanted)
        self._records = resources.records or recorded.InZooKeeper(coordination)
        self._resources = resources
        self._find_graph = find_graph
        self._shunned: dict[str, tuple[float, float]] = {}
        self._foreign: set[str] = set()
        """Flows of another release that the log has named; it names each once."""
        self._outage = Outage(LOG, "Flows that run here were given back and wait for the databases")
        board.claimable = self._is_for_us

    def _is_for_us(self, posting: Posting) -> bool:
        try:
            digest = self._find_graph(posting.kind, posting.version).digest()
        except NotFound:
            digest = "unknown"
        if digest != posting.digest:
            if posting.flow not in self._foreign:
                self._foreign.add(posting.flow)
                LOG.warning("Flow %s is a %s@%d of another release", posting.flow, posting.kind, posting.version)
            return False
        until, _pause = self._shunned.get(posting.flow, (0.0, 0.0))
        return time.monotonic() >= until and not self.stopping.wanted()

    def run_job(self, job: MoveJob) -> bool:
        """Run the flow; a flow that could not be run is left alone for a while."""
        try:
            off_the_board = self._carry(job.posting, job)
            self._outage.over()
        except Exception as error:
            # An error here says nothing about the flow: it stays on the board and is never trashed.
            why = str(error) if journal_was_away(error) or isinstance(error, Restored) else absence(error)
            if why is None:
                LOG.exception("Flow %s could not be run and is given back", job.posting.flow)
            else:
                self._outage.note(why)
            off_the_board = False
        if off_the_board or self.stopping.wanted():
            self._shunned.pop(job.posting.flow, None)
        else:
            _until, pause = self._shunned.get(job.posting.flow, (0.0, SHORTEST_SHUN / 2))
            pause = min(pause * 2, LONGEST_SHUN)
            self._shunned[job.posting.flow] = (time.monotonic() + pause, pause)
        return off_the_board

    def _carry(self, posting: Posting, job: MoveJob) -> bool:
        incarnation.require(self._coordination, self._resources.journal)
        wanted = self._wanted(posting)
        if wanted is not None:
            log_context.name_server(wanted.server)
        if not self._is_due(wanted):
            self._clear_end(posting)
            return True
        with self._resources.journal.reading() as connection:
            if freezes.over(connection, posting.move) is not None:
                return False  # the keeper takes it off the board until it is thawed
        try:
            epoch = self._claim(posting, job)
        except Fenced:
            return False  # this conductor was paused, and another one has the job by now
        if epoch is None:
            return True
        # Our epoch keeps older claims from writing.  If we have lost the lock meanwhile, we must not write either.
        if self.has_lost(job) or not self._coordination.live():
            self._release_unended(posting, epoch)
            return False
        try:
            return self._run_claimed(posting, epoch)
        except Fenced:
            LOG.warning("The claim on flow %s was lost", posting.flow)
            fencing.mark_late(self._resources.journal, posting.move, epoch)
            # A conductor that is paused after its claim may raise fences when the flow has long ended elsewhere.
            # Nobody else drops these.
            with self._resources.journal.read() as session:
                move = moves.get(session, posting.move)
            self._drop_fences(move, epoch, posting.flow)
            return False
        except Exception:
            # The error was noticed: the claim ends cleanly, and does not count towards quarantine.
            self._release_unended(posting, epoch)
            raise

    def _release_unended(self, posting: Posting, epoch: int) -> None:
        """Give the claim back, unless the flow has ended.

        An ended flow whose claim is not released tells a later conductor that nobody has cleared up after it yet.  The
        end may be stored without this conductor knowing, under this claim or the one before.
        """
        if self._wanted(posting) is not None:
            fencing.release(self._resources.journal, posting.move, epoch)

    def _claim(self, posting: Posting, job: MoveJob) -> int | None:
        """Take the next epoch; if the move is quarantined, park it and return None."""
        journal = self._resources.journal
        try:
            return fencing.claim(journal, posting.move, self.name, is_lost=lambda: self.has_lost(job))
        except Quarantined as error:
            with journal.write() as session:
                fencing.check(session, posting.move, error.epoch)
                moves.park(session, posting.move, error.code, str(error))
                move = moves.get(session, posting.move)
            story.tell_parked(move)
            return None

    def _is_due(self, wanted: Any) -> bool:
        """Tell whether the journal still wants the flow to run: the journal decides, the board is only a work list."""
        return wanted is not None and not wanted.hold and wanted.state != State.NEEDS_OPERATOR

    def _wanted(self, posting: Posting) -> Any:
        """Read the move's ``hold``, ``state`` and ``server``; None if the flow has ended or is the move's no more."""
        with self._resources.journal.reading() as connection:
            return connection.execute(_WANTED, {"move": posting.move, "flow": posting.flow}).first()

    def _clear_end(self, posting: Posting) -> None:
        """Clear up after a flow that has ended, if the conductor that ended it died before clearing up."""
        journal = self._resources.journal
        with journal.read() as session:
            ends = moves.unreleased_flows(session)
            left = [
                (move, attempts.hosts(session, move), moves.ended_flows(session, move.id))
                for move, flow in ends
                if flow.uuid == posting.flow
            ]
        for move, hosts, ended in left:
            epoch = fencing.claim(journal, move.id, self.name, quarantine_after=sys.maxsize)
            # A conductor can only write in a cell while the fence there has its own epoch.  `_drop_fences` removes only
            # fences that have our epoch, so each fence is raised to our epoch first.  After the removal no fence has an
            # older conductor's epoch, so that conductor cannot write.
            self._raise_fences(move, epoch)
            self._drop_fences(move, epoch, posting.flow)
            commanded = homes.commanded_hosts(self._resources.cells, move) if kinds.of(posting.kind).deletes else ()
            HostChannel(self._coordination).remove_flow_nodes({*hosts, *commanded}, ended)
            self._write_tombstone(move, epoch)
            fencing.release(journal, move.id, epoch)

    def _run_claimed(self, posting: Posting, epoch: int) -> bool:
        journal = self._resources.journal
        incarnation.raise_mark(self._coordination, incarnation.require(self._coordination, journal), epoch)
        if why := step_marks.lost(self._coordination, journal, posting.move):
            return self._park(posting, epoch, Restored.code, why)
        channel = HostChannel(self._coordination)
        fence = channel.fence(posting.move, epoch, journal=journal)
        graph = self._find_graph(posting.kind, posting.version)
        with journal.write() as session:
            fencing.check(session, posting.move, epoch)
            move = moves.get(session, posting.move)
            wanted = move.flow_uuid == posting.flow
            if wanted:
                begin_state(session, move)
            home = moves.home(session, move)
        if not wanted:
            # The flow ended between `_wanted` and the claim: a queued move that is cancelled ends at once.
            self._clear_end(posting)
            self._write_tombstone(move, epoch)
            fencing.release(journal, posting.move, epoch)
            return True
        if why := self._why_stuck(move):
            return self._park(posting, epoch, "cell-away", why)
        try:
            unfenced = self._raise_fences(move, epoch)
        except sa.exc.SQLAlchemyError as error:
            if absence(error) is not None:
                raise
            LOG.exception("Flow %s cannot begin", posting.flow)
            return self._park(posting, epoch, "flow-stopped", f"the flow cannot begin: {without_sql(error)}")
        cells = self._resources.cells
        if unfenced:
            cells = cells.of_claim(move.server, epoch, unfenced, self._down(move))
        run = self._make_run(posting, graph, move, epoch, channel, fence, cells)
        history = _history(graph, posting, epoch, home)
        backend = FlowBackend(
            journal,
            history,
            on_stored=lambda step, direction: run.probe(step, direction, "stored"),
            without_undo=[step.step_name() for step in graph.walk() if step.no_undo],
        )
        run.bind(backend, history)
        story.tell_taken_up(move, posting.kind, epoch)
        self._run_engine(posting, graph, run, backend, epoch)
        return self._finish(posting, run, backend, epoch)

    def _park(self, posting: Posting, epoch: int, code: str, why: str) -> bool:
        """Let the move rest as needs-operator: nothing of its flow runs until an operator has decided what to do."""
        with self._resources.journal.write() as session:
            fencing.check(session, posting.move, epoch)
            cell_waits.end(moves.get(session, posting.move, lock=True))
            moves.park(session, posting.move, code, why)
            move = moves.get(session, posting.move)
        fencing.release(self._resources.journal, posting.move, epoch)
        story.tell_parked(move)
        return True

    def _run_engine(self, posting: Posting, graph: Graph, run: MoveRun, backend: FlowBackend, epoch: int) -> None:
        engine = MoveEngine(
            atoms.build(graph, run),
            backend.load(),
            backend,
            may_be_done=lambda failed: [*run.done_by_earlier_flow(failed), *overtaken.may_be_done(run, failed, graph)],
        )
        try:
            with fencing.guarding_calls(self._resources.journal, posting.move, epoch):
                engine.take_up_failed_undos()
                engine.run()
        except Fenced:
            raise
        except Exception as error:
            if isinstance(backend.closed, Fenced):
                raise backend.closed from None
            if backend.ended or backend.closed is not None:
                return  # undone, or parked: both are stored
            if journal_was_away(error):
                raise
            LOG.exception("Flow %s stopped without an end", posting.flow)
            backend.forget()
            with backend.write() as session:
                why = without_sql(error) or str(error)
                moves.park(session, posting.move, "flow-stopped", f"the flow stopped without an end: {why}")

    def _finish(self, posting: Posting, run: MoveRun, backend: FlowBackend, epoch: int) -> bool:
        """Clear up if the flow has ended, and release the claim; True when the job is to leave the board.

        An earlier claim may have done any of this already: doing it again does no harm.
        """
        with self._resources.journal.read() as session:
            move = moves.get(session, posting.move)
        # The end may be stored although the database's answer never came.
        ended = backend.ended or self._wanted(posting) is None
        if ended:
            run.probe(END_OF_FLOW, "execute", "before")
            run.remove_flow_nodes()
            self._drop_fences(move, epoch, posting.flow)
            self._write_tombstone(move, epoch)
        fencing.release(self._resources.journal, move.id, epoch)
        story.tell_given_back(move, posting.kind, ended=ended)
        return ended or move.hold or move.state == State.NEEDS_OPERATOR

    def _write_tombstone(self, move: Move, epoch: int) -> None:
        """Keep workers from taking commands of a move that has ended and owes nothing.

        While a debt of the move is unpaid, no tombstone is written: a worker must still take the command that pays it.
        """
        with self._resources.journal.read() as session:
            owing = debts.outstanding(session, move.id)
        if State(move.state) in ENDED and not owing:
            fencing.write_tombstone(self._coordination, move.id, epoch)

    def _make_run(
        self,
        posting: Posting,
        graph: Graph,
        move: Move,
        epoch: int,
        channel: HostChannel,
        fence: Fence,
        cells: Cells,
    ) -> MoveRun:
        return MoveRun(
            self._resources,
            move=move,
            flow_uuid=posting.flow,
            kind=posting.kind,
            graph=graph,
            epoch=epoch,
            stop=self.stopping,
            channel=channel,
            fence=fence,
            mark=step_marks.StepMark(self._coordination, self._resources.journal, move.id),
            mirror=recorded.RecordMirror(self._records, self._resources.journal),
            cells=cells,
        )

    def _raise_fences(self, move: Move, epoch: int) -> set[str]:
        """Raise the fence in each cell of the move, and return the cells in which it could not be raised.

        A cell that is declared down is one of these, even if its database answers.  The others are away.  The run
        raises the fence in a cell that was away right before it uses the cell's database.  Raises what the driver
        raises when no cell could be fenced: nothing of the move can go on then.
        """
        cells = _cells(move)
        unfenced = self._down(move)
        with deadlines.running("raise_fences", self._resources.options.step_deadline):
            for cell in [each for each in cells if each not in unfenced]:
                try:
                    self._resources.cells.raise_fence(cell, move.server, epoch)
                except Exception as error:
                    if absence(error) is None:
                        raise
                    unfenced.add(cell)
                    if unfenced == {*cells}:
                        self._note_wait(move, epoch, cell)
                        raise
        if move.waits_for is not None and not unfenced and not self._waits_on(move.waits_for):
            self._note_wait(move, epoch, None)
        return unfenced

    def _waits_on(self, waits_for: str) -> bool:
        """Tell whether the move says that it waits for the API database, and this is still away."""
        return cell_waits.is_for_api(waits_for) and not catalog.api_answers(self._resources.api)

    def _down(self, move: Move) -> set[str]:
        """Return the one cell of a move between two cells that is declared down; empty when none is, or all are."""
        down = self._declared_down(move)
        return set() if down == {*_cells(move)} else down

    def _declared_down(self, move: Move) -> set[str]:
        with self._resources.journal.reading() as connection:
            return {*_cells(move)} & cells_down.find(connection).keys()

    def _why_stuck(self, move: Move) -> str:
        """Say why nothing can be done for a move all of whose cells are declared down; empty for any other."""
        down = sorted(self._declared_down(move))
        return cells_away.nowhere(move.id, down) if down and down == _cells(move) else ""

    def _note_wait(self, move: Move, epoch: int, cell: str | None) -> None:
        """Write into the move's row which cell its flow waits for; with None, that it waits for no cell.

        While a flow that has begun waits, the keeper gives its room to other moves.
        """
        with self._resources.journal.write() as session:
            fencing.check(session, move.id, epoch)
            row = moves.get(session, move.id, lock=True)
            before = row.waits_for
            if cell is not None:
                cell_waits.note(session, row, cell)
            elif State(row.state) in BEGUN:
                cell_waits.end(row)
            waits_for = row.waits_for
        if waits_for and waits_for != before:
            story.tell_wait(move.id, waits_for)

    def _drop_fences(self, move: Move, epoch: int, flow: str) -> None:
        """Remove the fence of the move's server in each cell of the move: nobody can write there for the move any more.

        The fence is the row that permits one epoch to write.  Without the row, no epoch may.
        When one of two cells is away, the drop is recorded as a debt of that cell.
        """
        cells, down, used = _cells(move), self._down(move), self._resources.cells
        if down:
            used = used.of_claim(move.server, epoch, (), down)
        with deadlines.running("drop_fences", self._resources.options.step_deadline):
            for cell in cells:
                try:
                    used.drop_fence(cell, move.server, epoch)
                except Exception as error:
                    if absence(error) is None or len(cells) == 1:
                        raise
                    with fencing.writing(self._resources.journal, move.id, epoch) as session:
                        cells_away.owe(session, move.id, cell, debts.DROP_FENCE, flow, END_OF_FLOW, 0, "execute")
                    story.tell_debt(move.id, f"cell {cell}", debts.DROP_FENCE, END_OF_FLOW, "execute")


class Conductor:
    """One conductor, run by threads: `start` it, `stop` it, ask how many flows it runs (`busy`)."""

    def __init__(
        self,
        coordination: Coordination,
        resources: Resources,
        find_graph: FindGraph,
        *,
        name: str,
        slots: int = 4,
        reserved: int = 2,
        ignored: Collection[str] = (),
    ) -> None:
        """``name`` must be new for each conductor.

        ``slots`` flows run at a time, and ``reserved`` more if they are urgent (see `Posting.urgent`).
        ``ignored`` is as in `droveway.engines.conductor.incarnation.begin`.
        """
        self.name = name
        self._ignored = ignored
        self._coordination = coordination
        self._journal = resources.journal
        self.board = MoveBoard(coordination)
        self._conductor = MoveConductor(
            name, self.board, coordination, resources, find_graph, slots=slots, reserved=reserved
        )
        self.board.wakeup = self._conductor.wakeup.wake
        self._thread = threading.Thread(target=self._conductor.run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to claim and run flows."""
        codec.learn_types()
        incarnation.begin(self._coordination, self._journal, ignored=self._ignored)
        self._conductor.connect()
        self._thread.start()

    def stop(self) -> None:
        """Claim no more flows, and end each run before its next step; return when every flow has been given back.

        A flow that was given back goes on when a conductor claims it again.
        """
        self._conductor.stopping.request()
        self._conductor.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._conductor.close()

    def last_tick(self) -> float:
        """Return when its loop last began to wait, by the monotonic clock; it does so every few seconds."""
        return self._conductor.wakeup.last_tick

    def busy(self) -> int:
        """Return how many flows are being run."""
        return self._conductor.running()

    def rest(self, longest: float) -> None:
        """Wait until the last flow that runs is given back, at most ``longest`` seconds.

        Returns at once when that has happened since the last call.  While no flow runs, this waits the whole time.
        """
        self._conductor.idle.wait(longest)
        self._conductor.idle.clear()


def _history(graph: Graph, posting: Posting, epoch: int, home: str) -> History:
    return History(
        move_id=posting.move,
        flow_uuid=posting.flow,
        flow=posting.kind,
        epoch=epoch,
        order=graph.names(),
        places={step.step_name(): step.where for step in graph.walk()},
        home=home,
    )


def _cells(move: Move) -> list[str]:
    return sorted({cell for cell in (move.source_cell, move.dest_cell) if cell})
