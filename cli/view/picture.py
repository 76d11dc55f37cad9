"""Works out what to show of a move at one moment: the finished steps, the running one, and the next ones."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from droveway.cli.view import rate
from droveway.cli.view.columns import part, size, span
from droveway.cli.view.marks import DONE, FAILED, OWED, RUNNING
from droveway.cli.view.rate import Series
from droveway.cli.view.way import way
from droveway.printable import SHORT, printable

if TYPE_CHECKING:
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.tables import Move, MoveFlow, MoveStep

SHORT_STEP: Final = 1.0
"""Seconds below which a finished step shares a line with its neighbours."""

SILENCE: Final = 5.0
"""Seconds without a report of the host after which the time left is not shown."""

_NAMED: Final = 3
_RUN_CHECK: Final = 1.0
_POLICIES: Final = {
    "deadline": "then it waits for your confirm or revert until its deadline, and is confirmed",
    "manual": "then it waits for your confirm or revert",
    "auto": "then it is confirmed",
    "healthy": "then it is confirmed once the guest is healthy",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line: a finished step or several short ones, a failed step, or the running step."""

    mark: str
    text: str
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A move as it is shown to people."""

    move: Move
    steps: list[MoveStep]
    now: dt.datetime
    ahead: list[str]
    """The names of the next steps, and what comes after them."""
    rate: float | None = None
    """Bytes a second; None when it is not known."""
    left: float | None = None
    """Seconds until all bytes of the running step are done; None when it is not known."""
    silent: float = 0.0
    """Seconds since the watcher last saw a new report of the host."""
    rests: bool = False
    """Whether the move does not go on by itself."""
    is_run: bool = True
    """Whether a conductor, or a command of the lab, can run the move now."""

    @property
    def title(self) -> str:
        """Return the move, its server and its hosts."""
        move = self.move
        name = printable(move.server_name)
        hosts = way(move.kind, move.state, move.source_host, move.dest_host)
        return f"move {move.id[:SHORT]}  {move.kind} {name}  {hosts}"

    @property
    def done(self) -> int:
        """Return the bytes that the running step has done."""
        return self.move.progress_done or 0

    @property
    def total(self) -> int:
        """Return the bytes that the running step has to do in all; 0 when its host has reported none."""
        return self.move.progress_total or 0

    def rows(self) -> list[Row]:
        """Return the finished steps and the running one."""
        if not self.steps:
            return []
        flow = self.steps[-1].flow_uuid
        return [
            *_flows([step for step in self.steps if step.flow_uuid != flow]),
            *_rows([step for step in self.steps if step.flow_uuid == flow], self.now),
        ]

    def progress(self) -> list[str]:
        """Return bytes, per cent, rate and time left of the running step; nothing when its host has reported none."""
        if self.rests or not self.total or not self.steps:
            return []
        told = [part(self.done, self.total), f"{100 * self.done // self.total} %"]
        if self.move.progress_kept:
            told[0] += f", {size(self.move.progress_kept)} of it kept"
        if self.done >= self.total:
            return [*told, "all copied, being checked"]
        if self.silent >= SILENCE:
            return [*told, f"nothing new for {span(self.silent)}"]
        if self.rate is not None and self.left is not None:
            told += [f"{size(int(self.rate))}/s", f"{span(round(self.left))} left to copy"]
        return told


class Watcher:
    """Reads a move again and again."""

    def __init__(self, site: Site, move_id: str) -> None:
        self._site = site
        self._move = move_id
        self._series = Series()
        self._reported: dt.datetime | None = None
        self._heard = 0.0
        self._checked = float("-inf")
        self._is_run = True

    def read(self) -> Picture:
        """Return the move as it is now."""
        from droveway.engines.operations.move_requests import can_go_on
        from droveway.persistence.database import database_time
        from droveway.persistence.journal import moves

        with self._site.journal.read() as session:
            move = moves.get(session, self._move)
            steps = moves.history(session, self._move)
            flow = moves.flow_of(session, move.flow_uuid) if move.flow_uuid else None
            rests = not can_go_on(move, database_time(session), self._site.away())
        self._listen(move)
        samples = self._series.samples
        left, silent = rate.left(samples), time.monotonic() - self._heard
        return Picture(
            move=move,
            steps=steps,
            now=dt.datetime.now(dt.UTC).replace(tzinfo=None),
            ahead=[] if rests else ahead(move, flow, steps),
            rate=rate.rate(samples),
            left=None if left is None else max(0.0, left - silent),
            silent=silent,
            rests=rests,
            is_run=rests or self._is_carried(),
        )

    def _listen(self, move: Move) -> None:
        if not (reported := rate.reported(move)):
            self._series.clear()
            self._reported = None
        elif move.progress_at != self._reported:
            self._reported, self._heard = move.progress_at, time.monotonic()
            self._series.add(*reported)

    def _is_carried(self) -> bool:
        if time.monotonic() - self._checked >= _RUN_CHECK:
            self._is_run, self._checked = self._site.runs_moves(), time.monotonic()
        return self._is_run


def ahead(move: Move, flow: MoveFlow | None, steps: Sequence[MoveStep]) -> list[str]:
    """Return the next steps if all goes well, and what comes then; nothing during an undo."""
    from droveway.flows import registry
    from droveway.persistence.journal import kinds

    running = steps[-1] if steps and steps[-1].flow_uuid == move.flow_uuid else None
    if running is not None and running.direction != "execute":
        return []
    if flow is None or (flow.kind, flow.version) not in registry.GRAPHS:
        return []
    names = [step.step_name() for step in registry.graph(flow.kind, flow.version).walk()]
    behind = names.index(running.step) + 1 if running is not None and running.step in names else 0
    return names[behind:] + ([_POLICIES[move.policy]] if kinds.of(flow.kind).leads_to_wait else [])


def name_of(step: MoveStep) -> str:
    """Return the step's name as people read it."""
    name = step.step if step.direction == "execute" else f"undo {step.step}"
    return f"{name} (attempt {step.attempt})" if step.attempt > 1 else name


def is_owed(step: MoveStep) -> bool:
    """Tell whether a host or a cell owes the step, or its undo, so that the flow went on without it."""
    return "owed" in (step.result or {})


def _flows(steps: list[MoveStep]) -> Iterator[Row]:
    """Yield a line for each flow that has ended."""
    for flow in dict.fromkeys(step.flow_uuid for step in steps):
        of_flow = [step for step in steps if step.flow_uuid == flow]
        failed = any(step.error for step in of_flow)
        yield Row(FAILED if failed else DONE, f"{of_flow[0].flow}, {len(of_flow)} steps", _spent(of_flow))


def _rows(steps: list[MoveStep], now: dt.datetime) -> Iterator[Row]:
    short: list[MoveStep] = []
    for step in steps:
        spent = ((step.ended_at or now) - step.started_at).total_seconds()
        if _is_short(step, spent) and (not short or short[-1].direction == step.direction):
            short.append(step)
            continue
        yield from _together(short)
        short = [step] if _is_short(step, spent) else []
        where = f" on {step.host}" if step.host else ""
        if step.ended_at is None:
            yield Row(RUNNING, name_of(step) + where, max(0.0, spent))
        elif step.error:
            yield Row(FAILED, printable(f"{name_of(step)}{where}: {step.error.get('message', '')}"), spent)
        elif is_owed(step):
            yield Row(OWED, f"{name_of(step)}{where}: owed, not done", spent)
        elif not short:
            yield Row(DONE, name_of(step) + where, spent)
    yield from _together(short)


def _is_short(step: MoveStep, spent: float) -> bool:
    return step.ended_at is not None and not step.error and not is_owed(step) and spent < SHORT_STEP


def _together(steps: list[MoveStep]) -> Iterator[Row]:
    if not steps:
        return
    names = [name_of(step) for step in steps]
    if len(names) > _NAMED:
        names = [f"{names[0]} … {names[-1]} ({len(names)} steps)"]
    yield Row(DONE, ", ".join(names), _spent(steps))


def _spent(steps: list[MoveStep]) -> float:
    last = steps[-1].ended_at or steps[-1].started_at
    return (last - steps[0].started_at).total_seconds()
