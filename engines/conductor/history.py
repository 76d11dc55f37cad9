"""Writes the history of a move: one row for each run of a step in a direction.

The row is made before the step acts.  When TaskFlow stores how the step's atom ended, the row's end is written in the
same transaction.  An *atom* is what TaskFlow calls a step in one flow.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from droveway.clocks import now
from droveway.engines.conductor import fencing
from droveway.engines.conductor.fencing import Standing
from droveway.engines.conductor.progress import NOTHING_REPORTED
from droveway.errors import DrovewayError
from droveway.flows.step import Where
from droveway.persistence.database import Executor
from droveway.persistence.journal import step_runs
from droveway.persistence.journal.step_runs import StepRun
from droveway.persistence.journal.tables import JournalBase

# Tables and statements that are made once: two of these transactions are part of every step.
_STEPS: Final = JournalBase.metadata.tables["move_steps"]
_BEGIN: Final = sa.insert(_STEPS)
_END: Final = (
    sa.update(_STEPS)
    .where(_STEPS.c.seq == sa.bindparam("open_seq"), _STEPS.c.ended_at.is_(None))
    .values({column: sa.bindparam(f"new_{column}") for column in ("ended_at", "epoch", "result", "error")})
)

Run = tuple[str, str]
"""A step's name and a direction."""


class History:
    """The history of one flow, written by the holder of one epoch."""

    def __init__(
        self,
        *,
        move_id: str,
        flow_uuid: str,
        flow: str,
        epoch: int,
        order: Sequence[str],
        places: Mapping[str, Where],
        home: str = "",
    ) -> None:
        """Prepare the rows of one flow under one claim.

        ``home`` is the host that the server is on when a delete begins, as `droveway.persistence.journal.moves.home`
        finds it.  Steps of `Where.HOME` run on it.
        """
        self.move_id = move_id
        self.flow_uuid = flow_uuid
        self.flow = flow
        self.epoch = epoch
        self._order = list(order)
        self._places = dict(places)
        self._home = home
        self._runs: list[StepRun] = []
        self.return_host = ""
        """The host that steps of `Where.RETURN` run on; empty until one is chosen."""
        self._open: dict[Run, int] = {}
        self._left: dict[Run, int] = {}
        self._again: set[Run] = set()

    def runs(self) -> Sequence[StepRun]:
        """All runs of the move's steps, of this flow and of those before it, oldest first; none before `load`."""
        return self._runs

    def sequence(self, step: str, direction: str) -> int:
        """Return the number of the step's open row, which is also in the keys of the step's commands.

        Raises DrovewayError when the step has no open row.
        """
        try:
            return self._open[step, direction]
        except KeyError:
            raise DrovewayError(f"step {step} ({direction}) has no open row in the history") from None

    def entered_again(self, step: str, direction: str) -> bool:
        """Tell whether an earlier claim began this run of the step: what it asked for may have happened."""
        return (step, direction) in self._again

    def load(self, transaction: Executor) -> None:
        """Read the move's runs; `begin` takes up again those that an earlier claim left open."""
        self._runs = step_runs.read(transaction, self.move_id)
        mine = (run for run in self._runs if run.flow_uuid == self.flow_uuid and run.ended_at is None)
        self._left = {(run.step, run.direction): run.seq for run in mine}

    def enter(self, transaction: Executor, step: str, direction: str) -> Standing:
        """Set the move's row to this step, in a fenced transaction; `begin` comes next.

        Raises `droveway.errors.Fenced` as `fencing.check` does.
        """
        columns: dict[str, Any] = {
            "step": step,
            "step_number": self._number(step),
            "step_count": len(self._order),
            "updated_at": now(),
        }
        if (step, direction) not in self._left:
            columns |= NOTHING_REPORTED
        return fencing.update_claimed(transaction, self.move_id, self.epoch, columns)

    def begin(self, transaction: Executor, standing: Standing, step: str, direction: str) -> None:
        """Add a row for the step; one that is entered again after a crash or a stop goes on with its open row."""
        seq = self._left.get((step, direction))
        if seq is not None:
            self._again.add((step, direction))
        else:
            row = {
                "flow_uuid": self.flow_uuid,
                "step": step,
                "direction": direction,
                "move_id": self.move_id,
                "flow": self.flow,
                "attempt": standing.attempt,
                "epoch": self.epoch,
                "host": self.host_of(standing, step),
                "started_at": now(),
            }
            begun: Any = transaction.execute(_BEGIN, row)
            seq = int(begun.inserted_primary_key[0])
            self._runs.append(
                StepRun(seq, self.flow_uuid, self.flow, step, direction, attempt=standing.attempt, epoch=self.epoch)
            )
        self._open[step, direction] = seq

    def end(
        self,
        transaction: Executor,
        step: str,
        direction: str,
        *,
        result: dict[str, Any] | None = None,
        error: dict[str, str] | None = None,
        at: dt.datetime | None = None,
    ) -> None:
        """Write into the step's row how it ended, now or ``at`` that time of the conductor's clock."""
        self._left.pop((step, direction), None)
        seq = self.sequence(step, direction)
        ends: dict[str, Any] = {"ended_at": at or now(), "epoch": self.epoch, "result": result, "error": error}
        transaction.execute(_END, {"open_seq": seq, **{f"new_{name}": value for name, value in ends.items()}})
        self._runs = [
            dataclasses.replace(run, **ends) if run.seq == seq and run.ended_at is None else run for run in self._runs
        ]

    def forget(self, step: str, direction: str) -> None:
        """Forget the step's open row, once `end` is committed: no further command gets its number."""
        self._open.pop((step, direction), None)
        self._again.discard((step, direction))

    def host_of(self, standing: Standing, step: str) -> str | None:
        """Return the host that the step runs on, as far as it is known; None for the conductor."""
        place = self._places.get(step, Where.CONDUCTOR)
        if place is Where.SOURCE:
            return standing.source_host
        if place is Where.HOME:
            return self._home
        if place is Where.RETURN:
            return self.return_host or None
        return standing.dest_host if place is Where.DESTINATION else None

    def _number(self, step: str) -> int:
        return self._order.index(step) + 1 if step in self._order else 0
