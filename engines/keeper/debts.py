"""Collects debts: a host does what it owes once its worker is back, and purges kept disks once their time is over.

No conductor runs the move meanwhile.  The collector claims the move as a conductor would.  So workers take its
commands, and a conductor that claims the move later fences the collector off.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import sys
import threading
import time
from collections.abc import Container
from typing import Any, Final

import msgspec

from droveway import log_context
from droveway.clients.zookeeper import ROOT, Coordination, move_path
from droveway.clocks import Steady
from droveway.engines.conductor import eligibility, fencing, incarnation, step_marks, story
from droveway.engines.conductor.host_channel import Fence, HostChannel, Overdue, Unreachable, key_of
from droveway.engines.conductor.loop_guard import one_round
from droveway.engines.conductor.owed import Owed
from droveway.engines.keeper import returning
from droveway.engines.keeper.cell_debts import CellDebts
from droveway.engines.keeper.returning import FindHome
from droveway.errors import Fenced
from droveway.flows.before import Before, before, shows_disks
from droveway.outages import Outage
from droveway.persistence.database import Database, absence, database_time
from droveway.persistence.journal import debts, freezes, moves
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import COLLECTOR, Debt, Move, MoveStep
from droveway.printable import SHORT, printable
from droveway.wire.commands import Command, GuestState, NoDetails, Registration
from droveway.wire.levels import LEVEL, SINCE

LOG = logging.getLogger(__name__)

COLLECTS: Final = f"{ROOT}/debts"
"""This node stands while one collector is at work, and ends with its session."""

AWAY: Final = 5.0
"""Seconds for which the collector waits for a host that is away again."""

TRY_AGAIN: Final = 60.0
"""Seconds after which the collector tries again to pay a debt that it could not pay."""


def _fence_of(debt: Debt) -> str:
    """Name the fence under which the debt is paid.  The name is also the move's id in the command.

    Most debts are paid under the fence of their move.  A purge of kept disks has a fence of its own.  It comes long
    after the move has ended for its hosts.  With a fence of its own it leaves the move's tombstone in place, and is not
    in the way of later moves of the server.
    """
    return f"{debt.move_id}.kept" if debt.action == debts.PURGE else debt.move_id


def _context_of(debt: Debt) -> contextlib.AbstractContextManager[None]:
    """Return what adds the ids of the debt's move and flow to lines of the log."""
    return log_context.of_move(debt.move_id, flow=debt.details.get("flow", ""))


def _question(asked: Command, host: str, action: str, part: str) -> Command:
    """Make a question to another host, under the same claim as the command ``asked``."""
    return msgspec.structs.replace(
        asked,
        key=f"{asked.key}-{part}",
        host=host,
        action=action,
        direction="execute",
        details=msgspec.to_builtins(NoDetails()),
        deadline=60.0,
    )


class Collector:
    """Pays debts, in a thread of its own between `start` and `stop`, or one `round` at a time.

    The journal calls a debt *settled* once it is paid or void.
    """

    def __init__(
        self,
        coordination: Coordination,
        journal: Database,
        *,
        every: float,
        level: int | None = None,
        steady: Steady | None = None,
        find_home: FindHome | None = None,
        cells: CellDebts | None = None,
    ) -> None:
        """``every``: seconds between two looks; ``level``: the highest level of actions to ask for, None: all.

        ``steady`` tells whether a date has really come when the journal's clock says so.  ``find_home`` finds where a
        server lives by its rows, and ``cells`` pays what cells owe.  Both are None where there are no cells to ask.
        """
        self._coordination = coordination
        self._channel = HostChannel(coordination)
        self._journal = journal
        self._every = every
        self._level = level or LEVEL
        self._steady = steady or Steady()
        self._find_home = find_home
        self._cells = cells
        self._wakeup = threading.Event()
        self._tried: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="debts", daemon=True)

    def start(self) -> None:
        """Begin to pay debts."""
        self._thread.start()

    def stop(self) -> None:
        """End, and return when it has.  If a debt is being paid now, the next collector begins anew with it."""
        self._wakeup.set()
        self._thread.join()

    def round(self) -> None:
        """Pay the debts of the hosts and cells that are up.

        Raises as `droveway.engines.conductor.incarnation.require` does.
        """
        incarnation.require(self._coordination, self._journal)
        with self._journal.read() as session:
            asked = time.monotonic()
            now = database_time(session)
            self._steady.observe(now, asked)
            due = [debt for debt in debts.collectable(session) if self._is_due(debt, now)]
        of_cells = [debt for debt in due if debt.cell is not None]
        due = [debt for debt in due if debt.cell is None]
        payable = self._payable(of_cells)
        if not payable and not debts.in_order(due, self._may_ask):
            return
        if not self._coordination.create(COLLECTS, b"", ephemeral=True):
            return
        try:
            for move, owed in payable:
                # Debts of cells first: they change rows, and what hosts owe is compared with the rows.
                if self._cells is not None and not self._wakeup.is_set():
                    with _context_of(owed[0]):
                        self._pay_cells(self._cells, move, owed)
            up = self._channel.workers()
            able = debts.in_order(due, lambda debt: self._may_ask(debt) and self._may_be_paid(debt, up))
            for (move, host), owed in able.items():
                if host in up and not self._wakeup.is_set() and not self._is_frozen(move):
                    with _context_of(owed[0]):
                        self._collect_from(move, up[host], owed)
        finally:
            # If the session ended meanwhile, the node may be another collector's by now.
            if self._coordination.owner(COLLECTS) == self._coordination.session:
                self._coordination.delete(COLLECTS)

    def _may_ask(self, debt: Debt) -> bool:
        """Tell whether operators allow the debt's action, and whether no attempt to pay it failed a moment ago."""
        return time.monotonic() >= self._tried.get(debt.id, 0.0) and SINCE.get(debt.action, 1) <= self._level

    def _may_be_paid(self, debt: Debt, up: Container[str]) -> bool:
        """Tell whether the other host that is to show a copy is up; one of a deleted server is not asked."""
        other = debt.details.get(debts.AFTER)
        if not other or other in up:
            return True
        if debt.host not in up:
            return False
        with self._journal.read() as session:
            move = moves.get(session, debt.move_id)
        try:
            return self._is_deleted(move)
        except Exception as error:
            # A cell that is away keeps nobody from paying what is owed for servers of other cells.
            if absence(error) is None:
                raise
            return False

    def _is_deleted(self, move: Move) -> bool:
        """Tell whether the rows show that the server was deleted: then no copy of it is the last one."""
        return self._find_home is not None and self._find_home(move).shown_deleted

    def _payable(self, of_cells: list[Debt]) -> list[tuple[str, list[Debt]]]:
        now = time.monotonic()
        tried = {debt.move_id for debt in of_cells if now < self._tried.get(debt.id, 0.0)}
        wanted = [debt for debt in of_cells if debt.move_id not in tried and not self._is_frozen(debt.move_id)]
        wanted.sort(key=lambda debt: (debt.move_id, debt.id))
        return self._cells.due(wanted) if self._cells is not None and wanted else []

    def _pay_cells(self, cells: CellDebts, move_id: str, owed: list[Debt]) -> None:
        epoch = fencing.claim(self._journal, move_id, COLLECTOR, quarantine_after=sys.maxsize)
        incarnation.raise_mark(self._coordination, incarnation.require(self._coordination, self._journal), epoch)
        why = cells.pay(owed, epoch)
        if why is not None:
            self._tried |= {debt.id: time.monotonic() + TRY_AGAIN for debt in owed}
            named = " or ".join(sorted({str(debt.cell) for debt in owed}))
            LOG.warning("A debt of cell %s for move %s could not be paid: %s", named, move_id[:SHORT], why)
        self._write_tombstone(move_id, epoch)
        fencing.release(self._journal, move_id, epoch)

    def _run(self) -> None:
        outage = Outage(LOG, "The collector of debts waits for ZooKeeper or a database")
        while not self._wakeup.wait(self._every):
            with one_round(outage, LOG, "A round of the collector failed"):
                try:
                    self.round()
                except Fenced as error:
                    LOG.info("Debts are left for later: %s", error)
                outage.over()

    def _is_due(self, debt: Debt, now: dt.datetime) -> bool:
        return debt.not_before is None or self._steady.passed(debt.not_before, debt.created_at, now)

    def _is_frozen(self, move_id: str) -> bool:
        with self._journal.reading() as connection:
            return freezes.over(connection, move_id) is not None

    def _collect_from(self, move_id: str, worker: Registration, owed: list[Debt]) -> None:
        # The claim is not released when anything is raised.  The next collector claims the move anew.  Once nothing is
        # owed any more, a conductor claims it and clears up.
        epoch = fencing.claim(self._journal, move_id, COLLECTOR, quarantine_after=sys.maxsize)
        for debt in owed:
            why = eligibility.unsupported(eligibility.Known(worker.version, worker.actions), debt.action, None)
            if why and debt.action == debts.RENAME:
                self._void(debt, msgspec.convert(debt.details, type=Owed), epoch, why)
                continue
            if why:
                self._note(debt, epoch, f"host {debt.host} cannot be asked: {why}", {})
            if (why or not self._pay(debt, epoch)) and debts.holds_back(debt):
                break
        self._write_tombstone(move_id, epoch)
        fencing.release(self._journal, move_id, epoch)

    def _pay(self, debt: Debt, epoch: int) -> bool:
        """Let the host pay one debt; return False when it did not.

        Right before that, the debt is compared with the server's rows.  Raises as
        `droveway.engines.keeper.returning.FindHome` does.
        """
        if why := step_marks.lost(self._coordination, self._journal, debt.move_id):
            self._note(debt, epoch, why, {})
            return False
        owed, fenced = msgspec.convert(debt.details, type=Owed), _fence_of(debt)
        with self._journal.read() as session:
            move = moves.get(session, debt.move_id)
            record = before(move) if owed.after and not self._is_deleted(move) else None
        log_context.name_server(move.server)
        why = self._why_void(move, debt, owed)
        if why:
            self._void(debt, owed, epoch, why)
            return True
        if fenced == debt.move_id:
            fencing.clear_tombstone(self._journal, self._coordination, debt.move_id, epoch)
        # The mark is raised before any host is told of the epoch.
        incarnation.raise_mark(self._coordination, incarnation.require(self._coordination, self._journal), epoch)
        fence = self._channel.fence(fenced, epoch, journal=self._journal, claimed=debt.move_id)
        asked = Command(
            key=key_of(owed.flow, owed.step, owed.direction, owed.sequence, f"debt-{epoch}-{debt.id}"),
            host=debt.host,
            move=fenced,
            server=move.server,
            epoch=epoch,
            step=owed.step,
            action=debt.action,
            direction=owed.direction,
            details=owed.details,
            deadline=owed.deadline,
        )
        value: dict[str, Any] = {}
        try:
            # What was set aside is the source's copy.  A destination that shares the source's directory finds it there
            # too, and has to show the server's own disks all the same.
            aside = owed.after == move.source_host
            error = None if record is None else self._why_kept(fence, record, asked, owed.after, aside=aside)
            if error is None:
                value, error = self._answer(fence, asked)
        finally:
            self._channel.remove_flow_nodes([debt.host, owed.after] if owed.after else [debt.host], [owed.flow])
        self._note(debt, epoch, error, value)
        if error is None and fenced != debt.move_id:
            self._coordination.delete(move_path(fenced))
        return error is None

    def _answer(self, fence: Fence, asked: Command) -> tuple[dict[str, Any], str | None]:
        """Send the command; return what the host answered, and why it did not carry it out (None: it did)."""
        try:
            result = self._channel.command(asked, fence, away=AWAY, check=self._check_stopped)
        except (Unreachable, Overdue):
            return {}, f"host {asked.host} did not answer"
        error = None if result.error is None else result.error["message"]
        return result.value or {}, error

    def _why_kept(self, fence: Fence, record: Before, asked: Command, other: str, *, aside: bool) -> str | None:
        """Say why the debt has to wait: the other host shows no whole copy of the server's disks; None if it does.

        ``aside``: whether disks that are set aside count as that host's copy.
        """
        state, error = self._answer(fence, _question(asked, other, "describe_guest", "look"))
        if error is None and state.get("set_aside") and aside:
            _, error = self._answer(fence, _question(asked, other, "check_set_aside", "check"))
            return error
        if error is None and not shows_disks(msgspec.convert(state, type=GuestState), record):
            error = (
                f"host {other} does not hold the disks of server {asked.server}, so the copy on host {asked.host} is "
                "kept"
            )
        return error

    def _why_void(self, move: Move, debt: Debt, owed: Owed) -> str:
        if self._find_home is None or debt.action == debts.PURGE:
            return ""
        return returning.why_void(self._find_home(move), move, debt.host, debt.action, owed.direction)

    def _void(self, debt: Debt, owed: Owed, epoch: int, why: str) -> None:
        """End the debt without asking its host, and write the reason into the history."""
        with self._journal.write() as session:
            standing = fencing.check(session, debt.move_id, epoch)
            debts.end_void(session, session.get_one(Debt, debt.id), why)
            flow = moves.flow_of(session, owed.flow)
            now = database_time(session)
            session.add(
                MoveStep(
                    move_id=debt.move_id,
                    flow_uuid=flow.uuid,
                    flow=flow.kind,
                    step=owed.step,
                    direction=owed.direction,
                    attempt=standing.attempt,
                    epoch=epoch,
                    host=debt.host,
                    started_at=now,
                    ended_at=now,
                    result={debts.VOID: why, "debt": debt.id},
                )
            )
        LOG.warning("Debt %s of host %s is void: %s", debt.id, debt.host, why)

    def _check_stopped(self) -> None:
        if self._wakeup.is_set():
            raise Fenced("the collector stops")

    def _note(self, debt: Debt, epoch: int, error: str | None, value: dict[str, Any]) -> None:
        with self._journal.write() as session:
            fencing.check(session, debt.move_id, epoch)
            row = session.get_one(Debt, debt.id)
            if error is None:
                row.settled_at = database_time(session)
                if value.get("kept") and debt.action != debts.RENAME:
                    # The source was declared down at the confirm, so the time for which it keeps disks begins now.
                    purge = {**row.details, "details": {"of_move": debt.move_id}, debts.AFTER: ""}
                    seconds = moves.get(session, debt.move_id).keep_seconds
                    debts.keep(session, move_id=debt.move_id, host=debt.host, seconds=seconds, details=purge)
            else:
                row.details = {**row.details, debts.ERROR: error}
                self._tried[debt.id] = time.monotonic() + TRY_AGAIN
        if error is None:
            owed = msgspec.convert(debt.details, type=Owed)
            story.tell_paid(debt.move_id, f"host {debt.host}", debt.action, owed.step, owed.direction)
        else:
            LOG.warning("Debt %s of host %s could not be paid: %s", debt.id, debt.host, printable(error))

    def _write_tombstone(self, move_id: str, epoch: int) -> None:
        with self._journal.read() as session:
            over = State(moves.get(session, move_id).state) in ENDED and not debts.outstanding(session, move_id)
        if over:
            fencing.write_tombstone(self._coordination, move_id, epoch)
