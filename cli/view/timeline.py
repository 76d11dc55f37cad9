"""The history of a move as one HTML file of its own: a timeline by host, and every run of every step below it."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from cliff.formatters import base

from droveway.cli.view import choice, marks
from droveway.cli.view.columns import span
from droveway.cli.view.timeline_style import STYLE
from droveway.cli.view.way import way
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View

CONDUCTOR: Final = "conductor"
"""The lane of steps that no host carries out."""

_SHORTEST_BREAK: Final = 2.0
_BREAK_SHARE: Final = 0.1
_BREAK_WIDTH: Final = 0.03
_WIDTH: Final = 1000.0
_LABEL: Final = 120.0
_LANE: Final = 30.0
_HEAD: Final = 24.0
_THINNEST: Final = 2.0
_HUES: Final = 6
_FOLDED: Final = 100


class Timeline(base.ListFormatter):
    """Writes what `draw` was given last, whichever columns are asked for."""

    def __init__(self) -> None:
        self._page = ""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """No options."""

    def draw(self, facts: Mapping[str, Any], steps: Sequence[View]) -> None:
        """Lay out the page of the move that `droveway.cli.commands.move.facts` describes."""
        self._page = page(facts, steps, dt.datetime.now(dt.UTC).replace(tzinfo=None))

    def emit_list(
        self,
        column_names: Sequence[str],  # noqa: ARG002 - cliff's signature
        data: Iterable[Sequence[Any]],  # noqa: ARG002 - cliff's signature
        stdout: TextIO,
        parsed_args: argparse.Namespace,  # noqa: ARG002 - cliff's signature
    ) -> None:
        """Write the page."""
        stdout.write(self._page)


@dataclasses.dataclass(frozen=True)
class Bar:
    """One run of one step on the timeline; ``left`` and ``right`` are shares of its width."""

    step: View
    lane: str
    left: float
    right: float
    seconds: float

    @property
    def name(self) -> str:
        """The step, or what it takes back."""
        return self.step.step if self.step.direction == "execute" else f"undo {self.step.step}"

    @property
    def mark(self) -> str:
        """Done, failed or still running."""
        if self.step.ended_at is None:
            return marks.RUNNING
        return marks.FAILED if self.step.error else marks.DONE

    @property
    def label(self) -> str:
        """All about it in a line."""
        attempt = f", attempt {self.step.attempt}" if self.step.attempt else ""
        error = f": {self.step.error.get('message', '')}" if self.step.error else ""
        return f"{self.mark} {self.name} on {self.lane}{attempt}, {span(self.seconds)}{error}"


class Axis:
    """Time from left to right, in which long idle times, as that of a waiting move, take little room."""

    def __init__(self, spans: Sequence[tuple[dt.datetime, dt.datetime]]) -> None:
        self.pieces: list[tuple[dt.datetime, dt.datetime]] = []
        busy = sum((end - start).total_seconds() for start, end in spans)
        most = max(_SHORTEST_BREAK, busy * _BREAK_SHARE)
        for start, end in sorted(spans):
            if self.pieces and (start - self.pieces[-1][1]).total_seconds() <= most:
                self.pieces[-1] = (self.pieces[-1][0], max(end, self.pieces[-1][1]))
            else:
                self.pieces.append((start, end))
        drawn = sum((end - start).total_seconds() for start, end in self.pieces) or 1.0
        self._scale = (1 - _BREAK_WIDTH * (len(self.pieces) - 1)) / drawn

    def at(self, moment: dt.datetime) -> float:
        """Where the moment lies, from 0 to 1."""
        x = 0.0
        for start, end in self.pieces:
            if moment <= end:
                return x + max(0.0, (moment - start).total_seconds()) * self._scale
            x += (end - start).total_seconds() * self._scale + _BREAK_WIDTH
        return 1.0

    def breaks(self) -> list[tuple[float, float]]:
        """Where time was left out, and how many seconds of it."""
        return [
            (self.at(before[1]) + _BREAK_WIDTH / 2, (after[0] - before[1]).total_seconds())
            for before, after in itertools.pairwise(self.pieces)
        ]


def page(facts: Mapping[str, Any], steps: Sequence[View], now: dt.datetime) -> str:
    """The whole file; steps that have not ended are drawn until ``now`` (UTC, naive)."""
    title = f"move {facts['id'][:SHORT]}: {facts['kind']} {facts['server_name']}"
    hosts = way(facts["kind"], facts["state"], facts["source"], facts["destination"])
    why = f": {facts['error']}" if facts["error"] else ""
    axis = Axis([(step.started_at, step.ended_at or now) for step in steps])
    bars = [_bar(step, axis, now) for step in steps]
    lanes = list(dict.fromkeys([CONDUCTOR, *filter(None, [facts["source"]]), *(bar.lane for bar in bars)]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n'
        f'<head><meta charset="utf-8"/><title>{_text(title)}</title><style>{STYLE}</style></head>\n<body>\n'
        f"<h1>{_text(title)}, {_text(hosts)}</h1>\n<p><b>{_text(facts['state'])}</b>{_text(why)}</p>\n"
        f"<p>{_text(facts['id'])}, asked for {_clock(facts['created'])} UTC</p>\n"
        f"{_drawing(bars, lanes, axis)}\n{_table(bars, lanes)}\n</body>\n</html>\n"
    )


def _bar(step: View, axis: Axis, now: dt.datetime) -> Bar:
    end = step.ended_at or now
    seconds = (end - step.started_at).total_seconds()
    return Bar(step, step.host or CONDUCTOR, axis.at(step.started_at), axis.at(end), seconds)


def _drawing(bars: Sequence[Bar], lanes: Sequence[str], axis: Axis) -> str:
    bottom = _HEAD + _LANE * len(lanes)
    parts = [f'<svg viewBox="0 0 {_LABEL + _WIDTH + 10:g} {bottom + _HEAD:g}" role="img" aria-label="timeline">']
    parts += _bands(bars, bottom)
    for number, lane in enumerate(lanes):
        y = _HEAD + _LANE * number
        parts.append(f'<line class="rule" x1="0" x2="{_LABEL + _WIDTH:g}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<text x="4" y="{y + 20:g}">{_text(lane)}</text>')
    for bar in bars:
        y, wide = _HEAD + _LANE * lanes.index(bar.lane) + 6, max(_THINNEST, (bar.right - bar.left) * _WIDTH)
        parts.append(
            f'<rect class="{_kind(bar, lanes)}" x="{_x(bar.left):.1f}" y="{y:g}" width="{wide:.1f}" height="18">'
            f"<title>{_text(bar.label)}</title></rect>"
        )
        if bar.step.error:
            parts.append(f'<text class="mark" x="{_x(bar.right):.1f}" y="{y + 14:g}">{marks.FAILED}</text>')
    for share, seconds in axis.breaks():
        parts.append(f'<line class="gap" x1="{_x(share):.1f}" x2="{_x(share):.1f}" y1="{_HEAD:g}" y2="{bottom:g}"/>')
        parts.append(f'<text class="tick" x="{_x(share):.1f}" y="{bottom + 16:g}">{span(seconds)} idle</text>')
    if axis.pieces:
        parts.append(f'<text class="first" x="{_LABEL:g}" y="{bottom + 16:g}">{_clock(axis.pieces[0][0])}</text>')
        parts.append(f'<text class="last" x="{_x(1):g}" y="{bottom + 16:g}">{_clock(axis.pieces[-1][1])}</text>')
    return "\n".join([*parts, "</svg>"])


def _bands(bars: Sequence[Bar], bottom: float) -> list[str]:
    """A band for each flow, and in it for each attempt."""
    found = []
    for (flow, attempt), group in itertools.groupby(bars, key=lambda bar: (bar.step.flow, bar.step.attempt)):
        of_band = list(group)
        left, right = _x(of_band[0].left), _x(of_band[-1].right)
        name = f"{flow}, attempt {attempt}" if attempt else flow
        found.append(
            f'<rect class="band" x="{left:.1f}" y="0" width="{max(_THINNEST, right - left):.1f}" height="{bottom:g}">'
            f"<title>{_text(name)}</title></rect>"
        )
        if right - left >= 7 * len(name):
            found.append(f'<text class="flow" x="{left + 3:.1f}" y="16">{_text(name)}</text>')
    return found


def _table(bars: Sequence[Bar], lanes: Sequence[str]) -> str:
    names = ("", "step", "flow", "attempt", "host", "began (UTC)", "took", "", "outcome")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "\n".join(_row(bar, lanes) for bar in bars)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _row(bar: Bar, lanes: Sequence[str]) -> str:
    step = bar.step
    if step.error:
        outcome = f"{step.error.get('code', '')}: {step.error.get('message', '')}"
    elif step.step == choice.CHOOSE and "chosen" in (step.result or {}):
        outcome = "; ".join([choice.order(step.result), *choice.named(choice.rejected(step.result))])
    else:
        outcome = ", ".join(f"{key}={value}" for key, value in (step.result or {}).items())
    wide = max(0.3, 100 * (bar.right - bar.left))
    place = f"margin-left:{100 * bar.left:.2f}%;width:{wide:.2f}%"
    cells = [
        f'<td class="{"bad" if step.error else "ok"}">{bar.mark}</td>',
        f"<td>{_text(bar.name)}</td>",
        f"<td>{_text(step.flow)}</td>",
        f"<td>{step.attempt or ''}</td>",
        f"<td>{_text(bar.lane)}</td>",
        f"<td>{_clock(step.started_at)}</td>",
        f'<td class="number">{span(bar.seconds)}</td>',
        f'<td class="track"><div class="{_kind(bar, lanes)}" style="{place}"></div></td>',
        f'<td class="outcome">{_folded(outcome)}</td>',
    ]
    return f'<tr id="step-{step.seq}">{"".join(cells)}</tr>'


def _kind(bar: Bar, lanes: Sequence[str]) -> str:
    """The classes of a bar: the colour of its lane, and whether it takes something back or failed."""
    names = [f"host{lanes.index(bar.lane) % _HUES}"]
    names += ["undo"] if bar.step.direction != "execute" else []
    names += ["failed"] if bar.step.error else []
    return " ".join(names)


def _x(share: float) -> float:
    return _LABEL + share * _WIDTH


def _clock(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _folded(outcome: str) -> str:
    """The text, of which a long one shows its beginning and unfolds."""
    if len(outcome) <= _FOLDED:
        return _text(outcome)
    return f"<details><summary>{_text(outcome[: _FOLDED - 1])}…</summary>{_text(outcome)}</details>"


def _text(value: object) -> str:
    return html.escape(str(value))
