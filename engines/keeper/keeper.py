"""The keeper: offers on the board what may run now and acts when deadlines pass.

Every conductor runs one, and the one that leads decides.  It decides by pure functions over a snapshot.  Then it makes
nodes that can be made only once, removes nodes, and writes rows by compare-and-swap.  So two that lead at once do no
harm, and what one of them misses, the next round finds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from droveway import log_context
from droveway.clients.zookeeper import BOARD, Coordination, worker_path
from droveway.clocks import Steady
from droveway.engines.conductor import eligibility, incarnation
from droveway.engines.conductor.loop_guard import one_round
from droveway.engines.conductor.taskflow.board import MoveBoard, Posting, posting_of
from droveway.engines.keeper import policies, queue
from droveway.engines.keeper.admission import Admission, Limits, Place, Racks, places
from droveway.engines.keeper.cell_debts import CellDebts
from droveway.engines.keeper.debts import Collector
from droveway.engines.keeper.election import Election
from droveway.engines.keeper.health import HealthChecks, Standard
from droveway.engines.keeper.outcomes import Nova, Outcomes
from droveway.engines.keeper.policies import CheckHealth, EndWait, PolicyAction, Wait, Waiting
from droveway.engines.keeper.returning import FindHome
from droveway.errors import Refused
from droveway.outages import Outage
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal import daemons, kinds, moves, open_flows, requests
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.policies import Health, note_wait
from droveway.persistence.journal.policy_names import HEALTHY
from droveway.persistence.journal.states import State
from droveway.printable import SHORT, printable

LOG = logging.getLogger(__name__)

FilingOf = Callable[[EndWait], requests.Filing | str]
"""Returns how the confirm or revert that is due is filed, or why it may not be filed now."""

RETRY_AFTER: Final = 2.0
"""Seconds after which the keeper asks again whether a policy may do what was refused."""

ROUND: Final = 1.0
"""Seconds between two looks at the journal when nothing woke it."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """One move for which something may have to be done, with all that the keeper decides by."""

    move: str
    state: State
    hold: bool
    """Whether it is held, or frozen."""
    posting: Posting | None
    """The flow that it has to run; None while it rests."""
    waiting: Waiting | None = None
    """What its confirm policy knows, while it waits for verification."""
    cleared: bool = True
    """False for a flow that has ended and whose claim was never released: a conductor has to clear up after it."""
    places: frozenset[Place] = frozenset()
    """Where it takes room while it runs."""
    runnable: bool = True
    """False when no conductor that is up knows its flow: the move waits, and takes no room meanwhile."""
    waits_for_cell: bool = False
    """Whether its flow has begun and is tried again and again, since the database of its cell is away."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The journal and the board at about one time; ``now`` is the database's clock."""

    moves: tuple[Seen, ...]
    posted: Mapping[str, bool]
    """Every flow on the board, and whether it is claimed."""
    now: dt.datetime
    up: frozenset[str] = frozenset()
    """The hosts whose workers are up."""
    uncheckable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Host → why its worker cannot be asked how a guest is."""
    gone: frozenset[str] = frozenset()
    """The hosts that a person declared down, and whose workers are away."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a policy may not act on a move, and when the keeper asks again, by the monotonic clock."""

    why: str
    again: float


@dataclasses.dataclass(frozen=True)
class Post:
    """Offer a flow to the conductors."""

    posting: Posting


@dataclasses.dataclass(frozen=True)
class Withdraw:
    """Take a flow off the board that nobody has claimed."""

    flow: str


@dataclasses.dataclass(frozen=True)
class Delete:
    """File the delete of the move's server, now that its other flows have ended."""

    move: str


Action = Post | Withdraw | Delete | PolicyAction


def decide(snapshot: Snapshot, limits: Limits) -> list[Action]:
    """Decide what to do now.

    Forward flows are offered within the limits: first those of moves that have begun, then the oldest.  Nothing is done
    for a move that needs an operator: `move retry` brings its flow back.
    """
    line = _in_turn(snapshot.moves)
    wanted = {posting.flow for posting, _ in line}
    actions: list[Action] = [
        Withdraw(flow) for flow, claimed in snapshot.posted.items() if flow not in wanted and not claimed
    ]
    actions += map(Post, _offer(line, snapshot.posted, _admission(line, snapshot.posted, limits)))
    for seen in snapshot.moves:
        if seen.waiting is not None and not seen.hold:
            actions += policies.act(seen.waiting, snapshot.up, snapshot.now, snapshot.uncheckable, snapshot.gone)
    actions += [Delete(seen.move) for seen in snapshot.moves if seen.state is State.DELETING and seen.posting is None]
    return actions


def read_snapshot(
    journal: Database,
    board: MoveBoard,
    coordination: Coordination,
    limits: Limits,
    racks: Racks | None = None,
    declared: Callable[[], frozenset[str]] = frozenset,
) -> Snapshot:
    """Read the snapshot.

    The board is read before the journal.  In the other order, a flow that ends between the two reads would look like a
    flow that still has to run and is not on the board.  Of the queue, the snapshot has the moves that are offered,
    those that there may be room for, and the oldest, for which room is kept.  Raises
    `droveway.persistence.restored.Restored` for a journal that is older than what ran on it.
    """
    racks = racks or {}
    posted, mark = board.posted(), incarnation.read_mark(coordination)
    with journal.reading() as connection:
        incarnation.compare(mark, connection)
        now = database_time(connection)
        rows = open_flows.under_way(connection)
        offered = posted.keys() - {row.uuid for row in rows}
        runnable = daemons.runnable(connection)

        def runs(row: sa.Row[Any]) -> bool:
            # A conductor that has claimed the flow runs it, whatever it has registered that it can run.
            return posted.get(row.uuid, False) or queue.runs(row, runnable)

        def waits(row: sa.Row[Any]) -> bool:
            return queue.waits(row) and not posted.get(row.uuid, False)

        cells_away = queue.away(rows, runs)
        seen = [_seen(row, racks, runs, waits) for row in [*rows, *open_flows.queued(connection, offered)]]
        line = _in_turn(seen)
        admission = _admission(line, posted, limits)
        _offer(line, posted, admission)
        waiting = queue.head(connection, offered, admission, racks, runnable, cells_away)
        seen += [_seen(row, racks, runs, waits) for row in waiting if row.source_cell not in cells_away]
        destinations = {
            each.waiting.destination for each in seen if each.waiting is not None and each.waiting.policy == HEALTHY
        }
        uncheckable = eligibility.uncheckable(connection, destinations) if destinations else {}
        seen += [
            Seen(row.id, State(row.state), hold=False, posting=posting_of(row, row), cleared=False)
            for row in open_flows.left(connection, now)
        ]
    needed = {host for each in seen if each.waiting is not None for host in policies.hosts(each.waiting, now)}
    up = frozenset(host for host in needed if coordination.get(worker_path(host)) is not None)
    away = needed - up
    gone = away & declared() if away else frozenset()
    return Snapshot(tuple(seen), posted, now, up, uncheckable, frozenset(gone))


class Keeper:
    """Decides and acts, in a thread of its own between `start` and `stop`, or one `round` at a time."""

    def __init__(
        self,
        coordination: Coordination,
        journal: Database,
        board: MoveBoard,
        flow_of: Callable[[str], FlowRef],
        *,
        filing: FilingOf,
        limits: Limits | None = None,
        racks: Callable[[], Racks] = dict,
        nova: Nova | None = None,
        every: float = ROUND,
        probe: float = math.inf,
        standard: Standard | None = None,
        level: int | None = None,
        find_home: FindHome | None = None,
        cells: CellDebts | None = None,
        declared: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """``flow_of`` returns the graph by which a new flow of a kind runs; ``standard``: what makes a guest healthy.

        ``every``: seconds between two rounds at rest.  ``probe``: seconds between two cheap looks at whether a flow was
        filed meanwhile.  ``racks`` is called in each round.  ``level``: the highest level of actions that may be asked
        of workers.  ``filing`` returns how to file what a policy decided.  ``nova``: the databases in which to look for
        moves that Nova has ended; None: no look.  ``find_home`` and ``declared`` read the cells: where a server lives,
        and which hosts a person declared down.
        """
        self._coordination = coordination
        self._journal = journal
        self._board = board
        self._flow_of = flow_of
        self._health = HealthChecks(coordination, journal, standard or Standard())
        self._limits = limits or Limits()
        self._racks = racks
        self._filing = filing
        self._refusals: dict[str, Refusal] = {}
        self._steady = Steady()
        self._every = every
        self._probe = probe
        self._newest: dt.datetime | None = None
        """When the newest flow was filed, by the last look."""
        self._wakeup = threading.Event()
        self._due = 0.0
        """When the next round is due even if nothing wakes it, by the monotonic clock."""
        self._left: dict[str, bool] = {}
        """The board as the last round left it, or as a later look saw it."""
        self._led = False
        self._unrunnable: frozenset[str] = frozenset()
        self._stopped = False
        self._last_tick = time.monotonic()
        self._unwatch: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._election = Election(coordination)
        self._debts = Collector(
            coordination, journal, every=every, level=level, steady=self._steady, find_home=find_home, cells=cells
        )
        self._declared = declared
        self._outcomes = Outcomes(journal, nova or Nova(), flow_of, leads=lambda: self._led, wake=self.wake)

    def start(self) -> None:
        """Start the keeper's threads, and take part in the election."""
        self._unwatch = self._coordination.watch(BOARD, self._wakeup.set)
        self._election.start(self.wake)
        self._thread.start()
        self._debts.start()
        self._outcomes.start()

    def stop(self) -> None:
        """End, and return when it has."""
        self._stopped = True
        self._unwatch()
        self._wakeup.set()
        self._thread.join()
        self._election.stop()
        self._debts.stop()
        self._outcomes.stop()

    def wake(self) -> None:
        """Let the next round come at once, since something in the journal changed."""
        self._due = 0.0
        self._wakeup.set()

    def round(self) -> list[Action]:
        """Decide and act once; returns what was decided.  Raises as `read_snapshot` does."""
        snapshot = self._read_snapshot()
        if self._health.collect([seen.waiting for seen in snapshot.moves if seen.waiting], snapshot.now):
            snapshot = self._read_snapshot()
        self._log_unrunnable(snapshot)
        actions = decide(snapshot, self._limits)
        self._left = {**snapshot.posted, **{each.posting.flow: False for each in actions if isinstance(each, Post)}}
        for action in actions:
            with _context_of(action):
                self._act(action)
        return actions

    def _log_unrunnable(self, snapshot: Snapshot) -> None:
        """Log each flow that no conductor can run, once while it waits."""
        waits = {seen.posting.flow: seen.posting for seen in snapshot.moves if seen.posting and not seen.runnable}
        for flow in waits.keys() - self._unrunnable:
            LOG.warning(
                "Flow %s is a %s@%d, which no conductor that is up can run: it waits and takes no room",
                flow,
                waits[flow].kind,
                waits[flow].version,
            )
        self._unrunnable = frozenset(waits)

    def _read_snapshot(self) -> Snapshot:
        asked = time.monotonic()
        snapshot = read_snapshot(
            self._journal, self._board, self._coordination, self._limits, self._racks(), self._declared
        )
        self._steady.observe(snapshot.now, asked)
        waiting = {seen.move for seen in snapshot.moves if seen.waiting is not None}
        self._refusals = {move: refusal for move, refusal in self._refusals.items() if move in waiting}
        return dataclasses.replace(snapshot, moves=tuple(self._known(seen, snapshot.now) for seen in snapshot.moves))

    def _known(self, seen: Seen, now: dt.datetime) -> Seen:
        """Add to the move what this keeper alone knows of its wait."""
        if (waiting := seen.waiting) is None:
            return seen
        since, deadline, refusal = waiting.since, waiting.deadline, self._refusals.get(seen.move)
        early = since is not None and deadline is not None and not self._steady.passed(deadline, since, now)
        known = dataclasses.replace(
            waiting,
            early=early,
            refused=refusal.why if refusal else None,
            answers_within=self._health.answers_within,
        )
        return dataclasses.replace(seen, waiting=known)

    def last_tick(self) -> float:
        """Return when its loop last turned, by the monotonic clock; it does so every few seconds."""
        return self._last_tick

    def _run(self) -> None:
        outage = Outage(LOG, "The keeper waits for ZooKeeper or a database")
        while not self._stopped:
            self._last_tick = time.monotonic()
            woken = self._wakeup.is_set()
            self._wakeup.clear()
            with one_round(outage, LOG, "A round of the keeper failed"):
                if self._turn(woken=woken):
                    outage.over()
            self._wakeup.wait(max(0.0, min(self._due - time.monotonic(), self._probe)))

    def _turn(self, *, woken: bool) -> bool:
        """Do what is due now; return whether ZooKeeper or the journal has answered, so that an outage ends."""
        late = time.monotonic() >= self._due
        if late:
            self._due = time.monotonic() + self._every
        led, self._led = self._led, False
        self._led = self._election.leads()
        if not self._led:
            return late
        if not led:
            # Other keepers have led meanwhile, and may have asked hosts.
            self._health.forget()
        if not late and not (self._is_news() if woken else self._is_filed()):
            return False
        self._due = time.monotonic() + self._every
        self.round()
        return True

    def _is_news(self) -> bool:
        """Tell whether the board changed in a way that calls for a round.

        A flow that this keeper posted itself does not, nor does a new claim.
        """
        before, self._left = self._left, self._board.posted()
        return before.keys() != self._left.keys() or any(before[flow] > claimed for flow, claimed in self._left.items())

    def _is_filed(self) -> bool:
        """Tell whether a newer flow was filed since the last call.

        A flow that was filed before the newest one, and committed after it, is not noticed here: the next round finds
        it.
        """
        with self._journal.reading() as connection:
            before, self._newest = self._newest, open_flows.newest(connection)
        return before != self._newest

    def _act(self, action: Action) -> None:
        match action:
            case Post(posting):
                if self._board.post_flow(posting):
                    LOG.debug("Flow %s of move %s is offered to the conductors", posting.flow, posting.move)
            case Withdraw(flow):
                if self._board.withdraw(flow):
                    LOG.info("Flow %s was taken off the board: nobody is to run it now", printable(flow))
            case EndWait():
                self._end_wait(action)
            case CheckHealth(move):
                self._health.check(move)
            case Wait(move, why):
                with self._journal.write() as session:
                    note_wait(session, move, why)
                if why:
                    LOG.info("Move %s waits: %s", move[:SHORT], why)
            case Delete(move):
                with self._journal.write() as session:
                    moves.begin_deletion(session, move, self._flow_of(kinds.DELETE.name))
                LOG.info("Move %s: its server is deleted now, as was asked", move[:SHORT])
                self.wake()

    def _end_wait(self, action: EndWait) -> None:
        """File the confirm or revert that the policy decided.

        Nothing is filed when a person's request would be refused now too.  Nothing is filed either when the move has
        another deadline than at the decision: then the move has left the wait for which the policy decided.
        """
        filing = self._allowed(action)
        if filing is None:
            return
        try:
            with self._journal.write() as session:
                move = moves.get(session, action.move, lock=True)
                if move.deadline != action.deadline:
                    return
                log_context.name_server(move.server)
                policy = move.policy
                filing(session, move)
                filed = log_context.of_move(move.id, server_id=move.server, flow=move.flow_uuid or "")
        except Refused as error:
            LOG.info("Move %s: its %s was not asked for, although it was due: %s", action.move, action.kind, error)
        else:
            why = "its server is to be deleted" if action.for_delete else f"its policy is {policy}"
            with filed:
                LOG.info("Move %s: its %s is asked for, since %s", action.move[:SHORT], action.kind, why)
            self.wake()

    def _allowed(self, action: EndWait) -> requests.Filing | None:
        """Return how the confirm or revert is filed; None if a person's request would be refused now.

        After a refusal, this is found out again when `RETRY_AFTER` has passed.
        """
        last = self._refusals.get(action.move)
        if last is not None and time.monotonic() < last.again:
            return None
        found = self._filing(action)
        if not isinstance(found, str):
            self._refusals.pop(action.move, None)
            return found
        self._refusals[action.move] = Refusal(found, time.monotonic() + RETRY_AFTER)
        if last is None or last.why != found:
            LOG.info("Move %s waits: its policy may not %s it now: %s", action.move, action.kind, found)
            with self._journal.write() as session:
                note_wait(session, action.move, found)
        return None


def _context_of(action: Action) -> contextlib.AbstractContextManager[None]:
    """Return what adds the ids of the action's move to lines of the log, as far as the action knows them."""
    match action:
        case Post(posting):
            return log_context.of_move(posting.move, flow=posting.flow)
        case Withdraw(flow):
            return log_context.of_move(log_context.ABSENT, flow=flow)
        case _:
            return log_context.of_move(action.move)


def _seen(
    row: sa.Row[Any], racks: Racks, runs: Callable[[sa.Row[Any]], bool], waits: Callable[[sa.Row[Any]], bool]
) -> Seen:
    return Seen(
        row.id,
        State(row.state),
        hold=row.hold or row.frozen,
        posting=posting_of(row, row) if row.uuid is not None else None,
        waiting=_waiting(row),
        places=places(row, racks),
        runnable=runs(row),
        waits_for_cell=waits(row),
    )


def _may_run(seen: Seen) -> bool:
    return not seen.cleared or (seen.runnable and not seen.hold and seen.state is not State.NEEDS_OPERATOR)


def _needs_room(posting: Posting, seen: Seen) -> bool:
    return seen.cleared and not posting.urgent and not seen.waits_for_cell


def _in_turn(moves: Iterable[Seen]) -> list[tuple[Posting, Seen]]:
    """Return the flows that may run: first those of moves that have begun, then the oldest."""
    wanted = [(seen.posting, seen) for seen in moves if seen.posting is not None and _may_run(seen)]
    return sorted(wanted, key=lambda each: (each[1].state is State.QUEUED, each[0].filed, each[0].flow))


def _admission(line: list[tuple[Posting, Seen]], posted: Container[str], limits: Limits) -> Admission:
    """Return the room that is left beside the flows on the board."""
    return Admission(
        limits, [seen.places for posting, seen in line if posting.flow in posted and _needs_room(posting, seen)]
    )


def _offer(line: list[tuple[Posting, Seen]], posted: Container[str], admission: Admission) -> list[Posting]:
    return [
        posting
        for posting, seen in line
        if posting.flow not in posted and (not _needs_room(posting, seen) or admission.admit(seen.places) is None)
    ]


def _waiting(move: sa.Row[Any]) -> Waiting | None:
    if move.state != State.VERIFYING:
        return None
    return Waiting(
        move=move.id,
        policy=move.policy,
        deadline=move.deadline,
        source=move.source_host,
        destination=move.dest_host or "",
        health=Health(move.health) if move.health else None,
        asked=move.health_asked,
        waits_for=move.waits_for,
        deleting=move.delete_requested,
        since=policies.since(move.policy, move.deadline, move.confirm_seconds, deleting=move.delete_requested),
    )
