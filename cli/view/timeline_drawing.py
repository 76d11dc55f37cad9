"""Draws the picture at the top of a timeline: a lane for each host, with steps as bars, waits and bytes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import html
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from droveway.cli.view import marks
from droveway.cli.view.columns import size, span

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View

CONDUCTOR: Final = "conductor"
"""The lane of steps that no host carries out."""

WAITED: Final = "‖"
TAKEN_OVER: Final = "↻"
BYTES: Final = "bytes"
"""The key of a step's result that says how many bytes it has sent."""

_SHORTEST_BREAK: Final = 2.0
_BREAK_SHARE: Final = 0.1
_BREAK_WIDTH: Final = 0.075
_MOST_BREAKS: Final = 0.4
_HUES: Final = 6


@dataclasses.dataclass(frozen=True)
class Bar:
    """One run of one step on the timeline; ``left`` and ``right`` are shares of its width."""

    step: View
    lane: str
    left: float
    right: float
    seconds: float
    taken_over: bool
    """Whether this run has the epoch of another claim than the run before it in the same flow.

    A run has the epoch of the claim that last wrote it. A new claim means that the conductor before was killed, or
    released the move.
    """

    @property
    def name(self) -> str:
        """Return the step's name, or that of the step which it undoes."""
        return self.step.step if self.step.direction == "execute" else f"undo {self.step.step}"

    @property
    def mark(self) -> str:
        """Return the mark for done, failed or running."""
        if self.step.ended_at is None:
            return marks.RUNNING
        return marks.FAILED if self.step.error else marks.DONE

    @property
    def bytes(self) -> int:
        """Return the bytes that it has sent."""
        return int((self.step.result or {}).get(BYTES, 0))

    @property
    def rate(self) -> str:
        """Return the bytes that it has sent and how fast, as `600.0 MiB at 168.1 MiB/s`; empty when it sent none."""
        if not self.bytes:
            return ""
        speed = f" at {size(int(self.bytes / self.seconds))}/s" if self.seconds > 0 else ""
        return f"{size(self.bytes)}{speed}"

    @property
    def label(self) -> str:
        """Return all about it in one line."""
        attempt = f", attempt {self.step.attempt}" if self.step.attempt else ""
        sent = f", {self.rate}" if self.rate else ""
        again = f", {TAKEN_OVER} under a new claim" if self.taken_over else ""
        error = f": {self.step.error.get('message', '')}" if self.step.error else ""
        return f"{self.mark} {self.name} on {self.lane}{attempt}, {span(self.seconds)}{sent}{again}{error}"


@dataclasses.dataclass(frozen=True)
class Wait:
    """A time in which no step ran; ``left`` and ``right`` are shares of the timeline's width."""

    start: dt.datetime
    end: dt.datetime
    left: float
    right: float

    @property
    def seconds(self) -> float:
        """Return the seconds that it lasted."""
        return (self.end - self.start).total_seconds()


class Axis:
    """Maps time to the width of the page; long waits, such as that for a confirm, take little room."""

    def __init__(self, spans: Sequence[tuple[dt.datetime, dt.datetime]]) -> None:
        self.pieces: list[tuple[dt.datetime, dt.datetime]] = []
        busy = sum((end - start).total_seconds() for start, end in spans)
        most = max(_SHORTEST_BREAK, busy * _BREAK_SHARE)
        for start, end in sorted(spans):
            if self.pieces and (start - self.pieces[-1][1]).total_seconds() <= most:
                self.pieces[-1] = (self.pieces[-1][0], max(end, self.pieces[-1][1]))
            else:
                self.pieces.append((start, end))
        breaks = max(0, len(self.pieces) - 1)
        self._break = min(_BREAK_WIDTH, _MOST_BREAKS / breaks) if breaks else 0.0
        drawn = sum((end - start).total_seconds() for start, end in self.pieces) or 1.0
        self._scale = (1 - self._break * breaks) / drawn

    def at(self, moment: dt.datetime) -> float:
        """Return where the moment lies, from 0 to 1."""
        x = 0.0
        for start, end in self.pieces:
            if moment <= end:
                return x + max(0.0, (moment - start).total_seconds()) * self._scale
            x += (end - start).total_seconds() * self._scale + self._break
        return 1.0

    def waits(self) -> list[Wait]:
        """Return the times that are drawn narrower than they were."""
        return [
            Wait(before[1], after[0], self.at(before[1]), self.at(after[0]))
            for before, after in itertools.pairwise(self.pieces)
        ]


def bars(steps: Sequence[View], axis: Axis, now: dt.datetime) -> list[Bar]:
    """Return a bar for each run of each step; a run that has not ended is drawn until ``now``."""
    made = []
    before: View | None = None
    for step in steps:
        end = step.ended_at or now
        taken_over = (
            before is not None and before.flow_uuid == step.flow_uuid and None not in (before.epoch, step.epoch)
        )
        made.append(
            Bar(
                step,
                step.host or CONDUCTOR,
                axis.at(step.started_at),
                axis.at(end),
                max(0.0, (end - step.started_at).total_seconds()),
                taken_over and before is not None and before.epoch != step.epoch,
            )
        )
        before = step
    return made


def groups(drawn: Sequence[Bar]) -> list[tuple[str, list[Bar]]]:
    """Return each attempt of each flow as its name and its bars."""
    found = []
    for (_, attempt), group in itertools.groupby(drawn, key=lambda bar: (bar.step.flow_uuid, bar.step.attempt)):
        of_flow = list(group)
        flow = of_flow[0].step.flow
        found.append((f"{flow}, attempt {attempt}" if attempt else flow, of_flow))
    return found


def drawing(drawn: Sequence[Bar], lanes: Sequence[str], axis: Axis) -> str:
    """Return the whole picture."""
    if not drawn:
        return ""
    waits = axis.waits()
    parts = ['<section class="drawing" aria-label="timeline">', _lane("", _bands(drawn), "bands")]
    parts += [
        _lane(lane, [_bar(bar, lanes) for bar in drawn if bar.lane == lane], f"host{hue(lane, lanes)}")
        for lane in lanes
    ]
    if any(bar.bytes for bar in drawn):
        parts.append(_lane(f"sent {size(sum(bar.bytes for bar in drawn))}", [_bytes(drawn)], "bytes"))
    if waits:
        cells = [
            f'<span class="wait" style="{place(wait.left, wait.right)}" title="{WAITED} no step ran for '
            f'{span(wait.seconds)}">{WAITED} {span(wait.seconds)}</span>'
            for wait in waits
        ]
        parts.append(_lane("no step ran", cells, "waits"))
    first, last = clock(axis.pieces[0][0]), clock(axis.pieces[-1][1])
    parts.append(_lane("UTC", [f'<span class="first">{first}</span><span class="last">{last}</span>'], "ends"))
    return "\n".join([*parts, "</section>", _legend(drawn, waits)])


def place(left: float, right: float) -> str:
    """Return the style that puts an element between two shares of the width."""
    return f"left:{100 * left:.3f}%;width:{100 * max(0.0, right - left):.3f}%"


def hue(lane: str, lanes: Sequence[str]) -> int:
    """Return the number of the lane's colour."""
    return lanes.index(lane) % _HUES


def kind(bar: Bar, lanes: Sequence[str]) -> str:
    """Return the classes of a bar: its lane's colour, and whether it is an undo, has failed or runs."""
    names = [f"host{hue(bar.lane, lanes)}", "bar"]
    names += ["undo"] if bar.step.direction != "execute" else []
    names += ["failed"] if bar.step.error else []
    names += ["running"] if bar.step.ended_at is None else []
    return " ".join(names)


def clock(moment: dt.datetime) -> str:
    """Return the moment (UTC, without a zone) to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def text(value: object) -> str:
    """Return the value as text of the page."""
    return html.escape(str(value))


def _lane(name: str, cells: Sequence[str], kinds: str) -> str:
    return (
        f'<div class="lane {kinds}"><div class="name" title="{text(name)}">{text(name)}</div>'
        f'<div class="cells">{"".join(cells)}</div></div>'
    )


def _bands(drawn: Sequence[Bar]) -> list[str]:
    """Return a band for each attempt of each flow."""
    cells = []
    for name, of_band in groups(drawn):
        left, right = min(bar.left for bar in of_band), max(bar.right for bar in of_band)
        cells.append(
            f'<span class="band" style="{place(left, right)}" title="{text(name)}"><span>{text(name)}</span></span>'
        )
    return cells


def _bar(bar: Bar, lanes: Sequence[str]) -> str:
    marked = (TAKEN_OVER if bar.taken_over else "") + (bar.mark if bar.mark != marks.DONE else "")
    words = " ".join(filter(None, [marked, bar.name, bar.rate]))
    return (
        f'<a class="{kind(bar, lanes)}" href="#step-{bar.step.seq}" style="{place(bar.left, bar.right)}" '
        f'title="{text(bar.label)}"><span>{text(words)}</span></a>'
    )


def _bytes(drawn: Sequence[Bar]) -> str:
    """Draw the sum of all bytes sent, over time."""
    whole, sent, points = sum(bar.bytes for bar in drawn), 0, ["0,100"]
    for bar in (bar for bar in drawn if bar.bytes):
        points.append(f"{1000 * bar.left:.1f},{100 - 100 * sent / whole:.1f}")
        sent += bar.bytes
        points.append(f"{1000 * bar.right:.1f},{100 - 100 * sent / whole:.1f}")
    line = " ".join([*points, f"1000,{100 - 100 * sent / whole:.1f}", "1000,100"])
    return (
        '<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-label="bytes sent over time, {size(sent)} in all"><polygon points="{line}"/></svg>'
    )


def _legend(drawn: Sequence[Bar], waits: Sequence[Wait]) -> str:
    said = ['<span class="host0 bar key"></span> step']
    if any(bar.step.direction != "execute" for bar in drawn):
        said.append('<span class="host0 bar undo key"></span> undo of a step')
    if any(bar.step.error for bar in drawn):
        said.append(f'<span class="host0 bar failed key"></span> {marks.FAILED} failed')
    if any(bar.step.ended_at is None for bar in drawn):
        said.append(f'<span class="host0 bar running key"></span> {marks.RUNNING} has not ended')
    if any(bar.taken_over for bar in drawn):
        said.append(f"{TAKEN_OVER} carried on under a new claim, after a kill, a stop, a pause or a retry")
    if waits:
        said.append(f"{WAITED} no step ran: drawn narrower than it was")
    return f'<p class="legend">{"".join(f"<span>{each}</span>" for each in said)}</p>'
