"""Pays what cells owe: it does the move's step, or its undo, in the cell as the flow would have done it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines, log_context
from droveway.engines.conductor import fencing, story
from droveway.engines.conductor.owed import Owed
from droveway.errors import DrovewayError, Fenced
from droveway.flows import registry
from droveway.flows.other_graph import across
from droveway.flows.run import Context, MoveOptions
from droveway.flows.steps.records import other_copy
from droveway.persistence.database import Database, absence
from droveway.persistence.journal import cells_down, debts, kinds, moves, requests, step_runs
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Debt, Move, MoveAttempt, MoveStep
from droveway.persistence.nova import mappings
from droveway.persistence.nova.cell import Instance

if TYPE_CHECKING:
    from droveway.clients.cloud import Cloud
    from droveway.flows.stands import Shown
    from droveway.persistence.journal.step_runs import StepRun
    from droveway.persistence.nova.cells import Cells

LOG = logging.getLogger(__name__)

_BUSY: Final = (
    sa.select(Move.id)
    .where(Move.server == sa.bindparam("server"), Move.id != sa.bindparam("move"), Move.flow_uuid.is_not(None))
    .limit(1)
)
_DELETED: Final = sa.select(Instance.deleted).where(Instance.uuid == sa.bindparam("server"))
"""Reads whether the server is soft-deleted, as it is after a user deleted it, in the cell that it is mapped to."""


class DebtRun:
    """Stands in for `droveway.flows.run.Run` when a step pays a debt of a cell: it has what such a step reads of it."""

    def __init__(self, parts: CellDebts, owing: _Owing, epoch: int) -> None:
        self.move_id = owing.move.id
        self.flow_uuid = owing.owed.flow
        self.kind = owing.kind
        self.graph = registry.graph(owing.kind, owing.version)
        self.shown: Shown = self.graph.shown
        self.epoch = epoch
        self.journal, self.api, self.cells, self.cloud = parts.journal, parts.api, parts.cells, parts.cloud
        self.options = parts.options
        self.row = owing.move
        self._owing = owing

    def home_cell(self) -> str:
        """Name the cell that the server is mapped to."""
        return self._owing.home

    def write(self) -> AbstractContextManager[orm.Session]:
        """Open a journal transaction that holds the claim; raises `droveway.errors.Fenced` when it is lost."""
        return fencing.writing(self.journal, self.move_id, self.epoch)

    def step_runs(self) -> Sequence[StepRun]:
        """Return the runs of the move's steps up to the owed one, oldest first.

        Later runs are left out: the server's copies that they made did not exist when the step was owed.
        """
        with self.journal.reading() as connection:
            return [run for run in step_runs.read(connection, self.move_id) if run.seq <= self._owing.owed.sequence]

    @property
    def asked_as(self) -> str:
        """Return the flow uuid in Nova's request id, as `droveway.engines.conductor.run.MoveRun.asked_as` does."""
        runs = self.step_runs()
        return runs[0].flow_uuid if across(self.kind) is not None and runs else self.flow_uuid

    def is_behind(self) -> bool:
        """Return False: the flow is over."""
        return False

    def note_deleted(self) -> None:
        """Ask for what is left of the server to be deleted, unless the move has ended or that is asked already."""
        with self.write() as session:
            move = moves.get(session, self.move_id, lock=True)
            if State(move.state) not in ENDED and not move.delete_requested:
                requests.delete(session, move)


@dataclasses.dataclass(frozen=True)
class _Owing:
    """One debt with its move, and with the attempt and the flow to which the owed step belongs."""

    owed: Owed
    move: Move
    """The move's row, as it was during the attempt."""
    attempt: MoveAttempt
    kind: str
    version: int
    home: str
    """The cell that the server is mapped to."""


@dataclasses.dataclass(frozen=True)
class CellDebts:
    """Pays debts of cells, in these databases and services."""

    journal: Database
    api: Database
    cells: Cells
    cloud: Cloud
    options: MoveOptions

    def due(self, owed: Sequence[Debt]) -> list[tuple[str, list[Debt]]]:
        """Return the debts that can be paid now, by move: their cells answer, and no other move of the server runs."""
        cells = {debt.cell for debt in owed if debt.cell}
        with self.journal.reading() as connection:
            away = set(cells_down.find(connection))
        away |= set(self.cells.away(sorted(cells & set(self.cells.names()))))
        found = []
        for move_id, each in itertools.groupby(owed, key=lambda debt: debt.move_id):
            wanted = list(each)
            if not away & {debt.cell for debt in wanted} and not self._is_busy(move_id):
                found.append((move_id, wanted))
        return found

    def pay(self, owed: Sequence[Debt], epoch: int) -> str | None:
        """Pay debts of one move in order, under a claim with this epoch; meanwhile its fence stands in the cells.

        Returns why the first one that failed could not be paid; None when all were paid.  Raises
        `droveway.errors.Fenced` as `Run.write` does.
        """
        for debt in owed:
            try:
                self._pay(debt, epoch)
            except Fenced:
                raise
            except DrovewayError as error:
                why = str(error)
            except Exception as error:
                if absence(error) is None:
                    # The debts of other moves are still paid.  `droveway debt show` tells why this one was not.
                    LOG.exception("A debt of cell %s for move %s could not be paid", debt.cell, debt.move_id)
                    why = f"{type(error).__name__}, which nobody foresaw: the conductor's log has the traceback"
                else:
                    why = "a database that it needs does not answer"
            else:
                continue
            with fencing.writing(self.journal, debt.move_id, epoch) as session:
                row = session.get_one(Debt, debt.id)
                row.details = {**row.details, debts.ERROR: why}
            return why
        return None

    def _is_busy(self, move_id: str) -> bool:
        with self.journal.read() as session:
            server = moves.get(session, move_id).server
            return session.scalar(_BUSY, {"server": server, "move": move_id}) is not None

    def _pay(self, debt: Debt, epoch: int) -> None:
        cell = str(debt.cell)
        # To drop a fence only its cell is needed.  The move may have ended before it had tried any destination.
        owing = None if debt.action == debts.DROP_FENCE else self._owing(debt)
        with self.journal.read() as session:
            server = moves.get(session, debt.move_id).server
        log_context.name_server(server)
        fenced = {cell} | ({owing.home, owing.move.source_cell, owing.attempt.cell} if owing else set())
        with contextlib.ExitStack() as fences, deadlines.running("pay_debt", self.options.step_deadline):
            for each in sorted(fenced):
                self.cells.raise_fence(each, server, epoch)
                fences.callback(self.cells.drop_fence, each, server, epoch)
            if owing is not None and self.cells.has(cell, server):
                self._do(debt, owing, epoch)
        with fencing.writing(self.journal, debt.move_id, epoch) as session:
            debts.settle(session, debt.id)
        owed = msgspec.convert(debt.details, type=Owed)
        story.tell_paid(debt.move_id, f"cell {cell}", debt.action, owed.step, owed.direction)

    def _do(self, debt: Debt, owing: _Owing, epoch: int) -> None:
        run, owed = DebtRun(self, owing, epoch), owing.owed
        if debt.action in (debts.CLOSE_EVENTS, debts.HIDE) and owing.home == debt.cell:
            # The server lives there again.  The flow that brought it back has closed its events, and its copy is shown.
            return
        if debt.action == debts.FINISH and owing.home != debt.cell:
            # The server has gone back since.  Its copy in this cell is hidden, and is removed.
            return
        reads: Any = run  # DebtRun has all that a step which writes rows reads of its run
        ctx = Context(reads, owed.step, owed.direction, run.row, owing.attempt, {}, None, must_go_on=True)
        step = run.graph.by_name[owed.step](reads)
        if debt.action == debts.REMOVE:
            if not kinds.of(owing.kind).has_migration:
                other_copy.mark_again(ctx, str(debt.cell))
            # The move may have gone on to a third cell since.
            other_copy.remove(ctx, str(debt.cell), owing.home, undo=owed.direction == "revert")
        elif owed.direction == "revert":
            step.undo(ctx)
        else:
            step.perform(ctx)

    def _owing(self, debt: Debt) -> _Owing:
        owed = msgspec.convert(debt.details, type=Owed)
        with self.journal.read() as session:
            move, flow = moves.get(session, debt.move_id), moves.flow_of(session, owed.flow)
            made_at = session.get(MoveStep, owed.sequence)
            number = made_at.attempt if made_at is not None else move.attempt
            attempt = session.get_one(MoveAttempt, (move.id, number))
            known = {"before": move.before, "dest_cell": attempt.cell, "dest_host": attempt.host, "attempt": number}
        with self.api.read() as session:
            home = mappings.cell_of(session, move.server) or move.source_cell
        with self.cells.database(home).reading() as connection:
            deleted = connection.scalar(_DELETED, {"server": move.server})
        if deleted:
            known["delete_requested"] = True
        for name, value in known.items():
            orm.attributes.set_committed_value(move, name, value)
        return _Owing(owed, move, attempt, flow.kind, flow.version, home)
