"""Gives steps what they need: one claimed flow of one move, every write of it behind the fence of its epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from droveway.engines.conductor import cells_away, eligibility, fencing, story
from droveway.engines.conductor.history import History
from droveway.engines.conductor.host_channel import Fence, HostChannel
from droveway.engines.conductor.owed import Owed
from droveway.engines.conductor.recorded import RecordMirror, Store
from droveway.engines.conductor.step_commands import StepCommands
from droveway.engines.conductor.step_marks import StepMark
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.errors import Cancelled, CoordinationLost, Fenced, Parked, StepError
from droveway.flows import evacuation, older_rows
from droveway.flows.other_graph import across
from droveway.flows.run import Ends, MoveOptions, OtherGraph
from droveway.flows.steps import attached, overtaken
from droveway.flows.steps.records import homes, leaving, other_copy
from droveway.persistence.database import Database
from droveway.persistence.journal import attempts, cells_down, daemons, debts, freezes, kinds, moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.step_runs import StepRun
from droveway.persistence.journal.tables import Move, MoveAttempt
from droveway.persistence.nova import mappings
from droveway.persistence.nova.cells import Cells
from droveway.persistence.restored import Restored
from droveway.wire.commands import Command, Registration, StopGuest
from droveway.wire.values import Direction

if TYPE_CHECKING:
    from droveway.clients.cloud import Cloud
    from droveway.flows.graph import Graph
    from droveway.flows.run import Context

LOG = logging.getLogger(__name__)

SESSION_POLL: Final = 0.1
"""Seconds between two looks at whether ZooKeeper answers again."""

_MOVE: Final = sa.select(Move).where(Move.id == sa.bindparam("move"))
_BEFORE: Final = sa.select(Move.before).where(Move.id == sa.bindparam("move"))

Probe = Callable[[str, str, str, str], None]
"""Lets tests inject faults; called with the move's id, step, direction and phase (before, during, after, stored)."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """All that a conductor hands to the flows that it runs."""

    journal: Database
    api: Database
    cells: Cells
    cloud: Cloud
    options: MoveOptions = dataclasses.field(default_factory=MoveOptions)
    host_away: float = 30.0
    """Seconds for which a command waits for a host whose worker is away; at most the command's own deadline."""
    probe: Probe | None = None
    records: Store | None = None
    """Where what the journal recorded of moves is mirrored; None for ZooKeeper."""


class Stop:
    """A conductor's request that its flows park; all of them share it."""

    def __init__(self) -> None:
        self._wanted = False
        self._wakeups: set[threading.Event] = set()

    def wanted(self) -> bool:
        """Tell whether flows are to park now."""
        return self._wanted

    def request(self) -> None:
        """Ask all flows to park, and wake those that wait."""
        self._wanted = True
        for wakeup in list(self._wakeups):
            wakeup.set()

    @contextlib.contextmanager
    def wakeup(self) -> Iterator[threading.Event]:
        """Make an event that is set when the stop is asked for."""
        wakeup = threading.Event()
        self._wakeups.add(wakeup)
        try:
            yield wakeup
        finally:
            self._wakeups.discard(wakeup)


class MoveRun:
    """Gives the steps of one claimed flow its rows, commands, debts and waits, as `droveway.flows.run.Run` promises."""

    def __init__(
        self,
        resources: Resources,
        *,
        move: Move,
        flow_uuid: str,
        kind: str,
        graph: Graph,
        epoch: int,
        stop: Stop,
        channel: HostChannel,
        fence: Fence,
        mark: StepMark,
        mirror: RecordMirror,
        cells: Cells,
    ) -> None:
        self.move_id = move.id
        self.server = move.server
        self.flow_uuid = flow_uuid
        self.kind = kind
        self.graph = graph
        self.shown = graph.shown
        self.epoch = epoch
        self.journal = resources.journal
        self.api = resources.api
        self.cells = cells
        self.cloud = resources.cloud
        self.options = resources.options
        self._probe = resources.probe
        self._stop = stop
        self._channel = channel
        self._step_commands = StepCommands(
            self,
            channel,
            fence,
            host_away=resources.host_away,
            wakeup=stop.wakeup,
            check=self._check_interrupts,
            is_declared_down=lambda host: cells_away.is_declared_down(self.cells, self.row, self.kind, host),
        )
        self._mark = mark
        self._mirror = mirror
        self._no_return = graph.no_return.step_name()
        self._cancellable = True
        self._past_no_return = False
        self._attempts: dict[int, MoveAttempt] = {}
        self._returning: MoveAttempt | None = None
        self.row: Move = move
        # ``before`` is large, and is not in the row that each boundary reads: `_learn` reads it once.
        orm.attributes.set_committed_value(move, "before", None)
        self.backend: FlowBackend
        self.history: History

    def bind(self, backend: FlowBackend, history: History) -> None:
        """Join the run with its persistence, which calls back into it."""
        self.backend = backend
        self.history = history
        self._read_return()

    def move(self) -> Move:
        """Read the move's row as it is now."""
        with self.journal.read() as session:
            return session.scalars(_MOVE, {"move": self.move_id}).one()

    def attempt(self, move: Move) -> MoveAttempt | None:
        """Return the alternate that the move is on, or None before the first."""
        if move.attempt and move.attempt not in self._attempts:
            with self.journal.read() as session:
                found = attempts.current(session, move)
            if found is not None:
                self._attempts[move.attempt] = found
        return self._attempts.get(move.attempt)

    def returning(self) -> MoveAttempt | None:
        """Return the host that a revert tries in a dead source's place; None before the first, and in other flows."""
        return self._returning

    def begin_return(self, number: int, chosen: dict[str, Any]) -> None:
        """Record that the revert tries this host now, as its ``number``-th."""
        with self.write() as session:
            attempts.begin_return(session, self.move_id, number, chosen)
        self._read_return()

    def alternate_host(self) -> str:
        """Name the host that the flow replaces by another one if it is at fault; empty where no other is tried."""
        if kinds.of(self.kind).elsewhere:
            return "" if self._returning is None else self._returning.host
        move = self.move()
        return move.dest_host if move.dest_host and move.dest_host != move.source_host else ""

    def home_cell(self) -> str:
        """Name the cell that the server lives in now; a move between cells reads the server's mapping for it."""
        mapped = mappings.home_cell(self.api, self.row.server, self.row.source_cell, self.row.dest_cell)
        return cells_away.lives_in(self, self.graph, mapped)

    def write(self) -> AbstractContextManager[orm.Session]:
        """Open a journal transaction that holds the claim; raises `droveway.errors.Fenced` when it is lost."""
        return self.backend.write()

    def boundary(self, step: str, direction: Direction, *, cancellable: bool) -> None:
        """Raise Parked for a stop or a hold, Cancelled for a cancel or a delete if ``cancellable``.

        A confirm or revert is not undone for a cancel or a delete: it ends first, and then the server is deleted.
        A flow takes no cancel once a host may have been asked for the step of the point of no return.  The undo of a
        cancelled flow assumes that no host was asked for this step: for instance, that no guest was started.
        """
        if step == self._no_return:
            self._past_no_return = direction == "execute" and (
                self._past_no_return or self.history.entered_again(step, direction) or overtaken.may_have_started(self)
            )
        self._cancellable = cancellable and not self._past_no_return and kinds.of(self.kind).cancellable
        self._require_going_on()
        waited = self._await_session(step)
        claimed = (None if waited else self.backend.begun(step, direction)) or fencing.claimed(
            self.journal, self.move_id
        )
        epoch = claimed.pop("epoch") if claimed is not None else None
        if claimed is not None:
            self._learn(recorded=claimed.pop("recorded"), **claimed)
        self._require_claim(claimed is not None, epoch)
        self._note(step, direction)
        self._check_requests(self.row)

    def went_on(self, step: str) -> bool:
        """Tell whether this step was done, and a journal that was put back does not know it."""
        return overtaken.went_on(self, step)

    def went_back(self, step: str) -> bool:
        """Tell whether this step was undone, and a journal that was put back does not know it."""
        return overtaken.went_back(self, step)

    def is_behind(self) -> bool:
        """Tell whether the flow may have gone further than its journal knows: the journal was put back and adopted."""
        return overtaken.is_behind(self)

    def may_not_turn_back(self, step: str) -> bool:
        """Tell whether an error at this step parks the flow: its journal was put back and lacks what the undos need."""
        return overtaken.may_not_turn_back(self, step)

    def require_rows_agree(self, ctx: Context) -> None:
        """Raise StepError if the rows contradict what the journal says of the move; Parked if they were put back."""
        overtaken.require_way(ctx)
        older_rows.require_own(ctx)

    def step_runs(self) -> Sequence[StepRun]:
        """Return all runs of steps of this and the move's earlier flows, oldest first; the last is the present run."""
        return self.history.runs()

    def wait(self, seconds: float) -> None:
        """Wait, at most ``seconds``; ends early with Parked when the conductor stops."""
        until = time.monotonic() + seconds
        with self._stop.wakeup() as wakeup:
            while (left := until - time.monotonic()) > 0:
                self._leave_when_stopped()
                wakeup.wait(left)
        self._leave_when_stopped()

    def park(self, step: str, direction: Direction, error: StepError) -> NoReturn:
        """Set the move to needs-operator with this error, and raise Parked."""
        with self.write() as session:
            self.history.end(session, step, direction, error=error.as_dict())
            moves.park(session, self.move_id, error.error_code, str(error))
        self._detach(f"move {self.move_id[:8]} needs an operator: {error}")

    def command(
        self,
        step: str,
        direction: Direction,
        *,
        host: str,
        action: str,
        details: msgspec.Struct,
        deadline: float,
        command_direction: Direction | None = None,
        part: str = "",
    ) -> dict[str, object]:
        """Let the host's worker carry out the action, and return what it answers; raises its StepError.

        A failure uses the command's key up: when the step asks again, its row is ended and the command gets a new key.
        """
        key = self._step_commands.next_key(step, direction, part)
        self._note(step, direction)
        command = Command(
            key=key,
            host=host,
            move=self.move_id,
            server=self.server,
            epoch=self.epoch,
            step=step,
            action=action,
            direction=command_direction or direction,
            details=msgspec.to_builtins(details),
            deadline=deadline,
        )
        if step == self._no_return and direction == "execute":
            self._past_no_return, self._cancellable = True, False
        return self._step_commands.carry_out(command, direction, past_no_return=self._past_no_return)

    def note_deleted(self) -> None:
        """Ask for what is left of the server to be deleted, since Nova deleted it; a second call does nothing."""
        with self.write() as session:
            move = moves.get(session, self.move_id, lock=True)
            if not move.delete_requested:
                requests.delete(session, move)
        self._cancellable = False

    def evacuated(self, ctx: Context) -> str:
        """Say why the move ends, if Nova has evacuated its server; empty if it has not."""
        return evacuation.why(ctx)

    def note_evacuated(self, why: str) -> None:
        """Ask for a cancel, since Nova evacuated the server: the undone move ends as cancelled, for this reason."""
        with self.write() as session:
            moves.note_evacuated(session, self.move_id, why)

    def abandon(self, ctx: Context, error: StepError) -> NoReturn:
        """End a move whose server Nova has evacuated; its other hosts now owe a stop of the guest; raises Parked."""
        move, back, placement = self.move(), ctx.return_host, self.cloud.placement
        with self.intent("placement", "release the migration"):
            left = leaving.close_rows(self.cells, ctx.cell, placement, move, self.asked_as, self.epoch, back=back)
            leaving.close_allocations(placement, move, left)
        other_copy.remove_evacuated(ctx)
        attached.free_reserved(ctx)
        for host in sorted({move.source_host, move.dest_host or "", back} - {left.host, ""}):
            attached.unbind_idle(ctx, host)
            self.owe(
                ctx.step,
                host=host,
                action="stop_guest",
                details=StopGuest(grace=0.0, restart=False),
                deadline=180.0,
                direction="execute",
                entered=ctx.direction,
            )
        with self.write() as session:
            self.history.end(session, ctx.step, ctx.direction, error=error.as_dict())
            moves.leave(session, self.move_id, error.error_code, str(error))
        self._detach(f"move {self.move_id[:8]} was left: {error}")

    def owe(
        self,
        step: str,
        *,
        host: str,
        action: str,
        details: msgspec.Struct,
        deadline: float,
        direction: Direction = "revert",
        entered: Direction = "revert",
        after: str = "",
    ) -> None:
        """Record what the host owes, as `Owed` explains; ``entered`` is the direction in which the step itself runs."""
        owed = Owed(
            flow=self.flow_uuid,
            step=step,
            sequence=self.history.sequence(step, entered),
            details=msgspec.to_builtins(details),
            deadline=deadline,
            direction=direction,
            after=after,
        )
        told = msgspec.to_builtins(owed)
        with self.write() as session:
            debts.owe(session, move_id=self.move_id, host=host, action=action, details=told, waits=bool(after))
        story.tell_debt(self.move_id, f"host {host}", action, step, direction)

    def void(self, step: str, *, host: str) -> bool:
        """Make the host's debt of this flow's step void; True if there was one: the host never carried the step out."""
        with self.write() as session:
            found, anew = debts.void(session, move_id=self.move_id, host=host, flow=self.flow_uuid, step=step)
        if anew:
            story.tell_void(self.move_id, f"host {host}", step)
        return found

    def declared_down(self, host: str) -> bool:
        """Tell whether a person declared the host down, and its worker is still away."""
        return not self._channel.is_up(host) and cells_away.is_declared_down(self.cells, self.row, self.kind, host)

    def may_have_begun(self, step: str) -> bool:
        """Tell whether a host may have been asked for this step already, by this flow and on this alternate."""
        if step == self._no_return and self._past_no_return:
            return True
        return any(
            run.ended_at is not None or run.epoch != self.epoch
            for run in self.history.runs()
            if (run.flow_uuid, run.step, run.direction) == (self.flow_uuid, step, "execute")
            and run.attempt == self.row.attempt
        )

    def keep(self, step: str, *, host: str, details: msgspec.Struct, deadline: float) -> None:
        """Record that the host keeps the move's source, for as long as was asked."""
        owed = Owed(
            flow=self.flow_uuid,
            step=step,
            sequence=self.history.sequence(step, "execute"),
            details=msgspec.to_builtins(details),
            deadline=deadline,
            direction="execute",
        )
        with self.write() as session:
            seconds = moves.get(session, self.move_id).keep_seconds
            debts.keep(session, move_id=self.move_id, host=host, seconds=seconds, details=msgspec.to_builtins(owed))
        story.tell_kept(self.move_id, host, seconds)

    def owing_cells(self) -> Mapping[str, str]:
        """Return why the server may not enter a cell, by cell: the cell owes a clean-up, or is declared down."""
        with self.journal.read() as session:
            down = {cell: f"it is {why}" for cell, why in cells_down.find(session).items()}
            return debts.owing_cells(session, self.server) | down

    def owes(self, host: str) -> bool:
        """Tell whether the host has an unpaid debt of this move without a date, and is still away."""
        with self.journal.read() as session:
            return debts.outstanding(session, self.move_id, host) and host not in self.workers()

    def ineligible(self) -> Mapping[str, str]:
        """Return the reason against each host that is to take no server."""
        with self.journal.read() as session:
            return eligibility.ineligible(session, eligibility.needed(self.options.level, self.graph))

    @property
    def asked_as(self) -> str:
        """Return the flow uuid in Nova's request id: the first flow's if this flow `goes_on`, else this flow's."""
        return self.history.runs()[0].flow_uuid if self.goes_on() else self.flow_uuid

    def goes_on(self) -> bool:
        """Tell whether this flow took over from an earlier one, whose first steps are done and not undone."""
        runs = self.history.runs()
        return across(self.kind) is not None and bool(runs) and runs[0].flow_uuid != self.flow_uuid

    def done_by_earlier_flow(self, failed: str) -> list[str]:
        """Name the steps after the failed one that an earlier flow may have done; none unless this flow `goes_on`."""
        names = [step.step_name() for step in self.graph.steps]
        return names[names.index(failed) + 1 :] if failed in names and self.goes_on() else []

    def is_passed_on(self) -> bool:
        """Tell whether another flow takes over from this one: the steps that both begin with are then not undone."""
        if across(self.kind) is None:
            return False
        with self.journal.reading() as connection:
            return moves.following(connection, self.move_id, self.flow_uuid)

    def graph_of(self, kind: str) -> OtherGraph:
        """Look up the graph of another kind."""
        graph = eligibility.chosen(kind, self.options.level)
        wanted = eligibility.needed(self.options.level, graph)
        with self.journal.read() as session:
            worker = daemons.known_workers(session).workers.get(self.row.source_host)
            lacking = eligibility.lacking(worker, wanted) if worker is not None else ""
            ineligible = eligibility.ineligible(session, wanted)
        return OtherGraph(graph.reference(), eligibility.pinned_below(self.options.level, graph) or lacking, ineligible)

    def require_thawed(self) -> None:
        """Raise Parked while the move is frozen."""
        with self.journal.reading() as connection:
            why = freezes.over(connection, self.move_id)
        if why is not None:
            self.leave(f"move {self.move_id[:8]} waits: {why}")

    def workers(self) -> Mapping[str, Registration]:
        """Return the registrations of the workers that are up now, by host."""
        return self._channel.workers()

    def intent(self, service: str, call: str) -> AbstractContextManager[None]:
        """Record a cloud write before it is sent, and that it returned."""
        return self.backend.intent(service, call)

    def probe(self, step: str, direction: str, phase: str) -> None:
        """Let a test inject a fault: before, during (the command is posted), after, stored."""
        if self._probe is not None:
            self._probe(self.move_id, step, direction, phase)

    def remove_flow_nodes(self) -> None:
        """Remove what the commands of the move's ended flows left in ZooKeeper, this one's among them."""
        with self.journal.read() as session:
            ended = moves.ended_flows(session, self.move_id)
        hosts = set(self._step_commands.hosts())
        if kinds.of(self.kind).deletes:
            hosts |= homes.commanded_hosts(self.cells, self.row)
        self._channel.remove_flow_nodes(sorted(hosts), ended)

    def _read_return(self) -> None:
        if not kinds.of(self.kind).elsewhere:
            return
        with self.journal.read() as session:
            tried = attempts.returns(session, self.move_id)
        self._returning = tried[-1] if tried else None
        self.history.return_host = "" if self._returning is None else self._returning.host

    def _note(self, step: str, direction: Direction) -> None:
        """Mark the step's run in ZooKeeper before the step acts; raises Parked when the journal has lost a marked run.

        While ZooKeeper is away, this waits as `_await_session` does: no host is asked before the mark stands.
        """
        why: str | None = None
        while why is None:
            try:
                why = self._mark.note(step, direction, self.history.sequence(step, direction))
                if not why:
                    self._mirror.note(self.row, returned=0 if self._returning is None else self._returning.attempt)
            except CoordinationLost:
                self.wait(SESSION_POLL)
                self._check_interrupts()
                self._await_session(step)
        if why:
            self.park(step, direction, StepError(why, code=Restored.code))

    def _check_interrupts(self) -> None:
        self._require_going_on()
        pending = fencing.pending_requests(self.journal, self.move_id)
        self._require_claim(pending is not None, pending and pending.epoch)
        self._check_requests(pending)

    def _await_session(self, step: str) -> bool:
        """Wait until the session that the move was claimed under is known to live; return whether that took a wait.

        A session that is suspended may have ended, and another conductor may have the move.  So no step begins until
        the session is known to live and a fenced write has succeeded.  Raises Parked when the session has ended, and
        Fenced when another conductor has the move.
        """
        alive = self._channel.session_is_alive()
        if alive:
            return False
        if alive is None:
            LOG.warning("Move %s waits at step %s: ZooKeeper does not answer", self.move_id[:8], step)
        with self._stop.wakeup() as wakeup:
            while (alive := self._channel.session_is_alive()) is None:
                self._check_interrupts()
                wakeup.wait(SESSION_POLL)
        if not alive:
            self.leave(f"move {self.move_id[:8]} is left at step {step}: the session that claimed it has ended")
        with self.write():
            LOG.info("Move %s goes on with step %s: its claim stands", self.move_id[:8], step)
        return True

    def _learn(self, *, recorded: bool, **columns: Any) -> None:
        """Bring the row in hand up to date; ``before`` is read once, since `record_before` writes it once."""
        for name, value in columns.items():
            if getattr(self.row, name) != value:
                orm.attributes.set_committed_value(self.row, name, value)
        if recorded and self.row.before is None:
            with self.journal.reading() as connection:
                before = connection.scalar(_BEFORE, {"move": self.move_id})
            orm.attributes.set_committed_value(self.row, "before", before)

    def _require_going_on(self) -> None:
        if self.backend.closed is not None:
            raise self.backend.closed
        self._leave_when_stopped()

    def _require_claim(self, known: bool, epoch: int | None) -> None:
        if not known or epoch != self.epoch:
            # There is nothing to wait for: the new owner of the move takes the host's answer and removes it.
            fenced = Fenced(f"epoch {self.epoch} of move {self.move_id} no longer stands: {epoch} does")
            self.backend.detach(fenced)
            raise fenced

    def _check_requests(self, pending: Any) -> None:
        if pending.hold:
            self._detach(f"move {self.move_id[:8]} is held: droveway move resume {self.move_id[:8]}")
        if self._cancellable and (pending.cancel_requested or pending.delete_requested):
            if self.went_on("stop_guest"):
                return  # the journal was put back: before any undo, the flow comes to where the move really was
            # Once the undo runs, everything in it must go on.
            self._cancellable = False
            raise Cancelled("the server was deleted" if pending.delete_requested else "the move was cancelled")

    def _leave_when_stopped(self) -> None:
        if self._stop.wanted():
            self._detach("the conductor stops")

    def heed_outage(self, step: str, direction: Direction) -> Ends | None:
        """Decide how a step ends whose database is away; None where it is to be entered again."""
        return cells_away.heed(self, self.graph, step, direction, self.history.sequence(step, direction))

    def leave(self, why: str) -> NoReturn:
        """Give the step up without a result, and raise Parked; the move's next claim enters the step again."""
        LOG.warning("%s", why)
        self._detach(why)

    def _detach(self, why: str) -> NoReturn:
        self.backend.store_called()
        parked = Parked(why)
        self.backend.detach(parked)
        raise parked


def begin_state(session: orm.Session, move: Move) -> None:
    """Set a queued move at its first claim to running, or to deleting when it only deletes its server."""
    if move.state == State.QUEUED:
        moves.change_state(session, move, kinds.of(move.kind).running)
