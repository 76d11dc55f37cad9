"""Writes the history of a move as one HTML file: a timeline by host, and every run of every step below it."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from cliff.formatters import base

from droveway.cli.view import choice, marks
from droveway.cli.view.columns import size, span
from droveway.cli.view.timeline_drawing import (
    BYTES,
    CONDUCTOR,
    TAKEN_OVER,
    WAITED,
    Axis,
    Bar,
    Wait,
    bars,
    clock,
    drawing,
    groups,
    kind,
    place,
    text,
)
from droveway.cli.view.timeline_style import STYLE
from droveway.cli.view.way import way
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View

_COLUMNS: Final = ("", "step", "host", "began (UTC)", "took", "", "outcome")
_FOLDED: Final = 100


class Timeline(base.ListFormatter):
    """Writes the move that `draw` was given last, whatever columns are asked for."""

    def __init__(self) -> None:
        self._page = ""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add no options."""

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


def page(facts: Mapping[str, Any], steps: Sequence[View], now: dt.datetime) -> str:
    """Return the whole file; steps that have not ended are drawn until ``now`` (UTC, without a zone)."""
    title = f"move {facts['id'][:SHORT]}: {facts['kind']} {facts['server_name']}"
    hosts = way(facts["kind"], facts["state"], facts["source"], facts["destination"])
    axis = Axis([(step.started_at, step.ended_at or now) for step in steps])
    drawn = bars(steps, axis, now)
    lanes = list(dict.fromkeys([CONDUCTOR, *filter(None, [facts["source"]]), *(bar.lane for bar in drawn)]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n'
        f'<head><meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"<h1>{text(title)}, {text(hosts)}</h1>\n{_said(facts)}\n{_facts(facts, drawn)}\n"
        f"{drawing(drawn, lanes, axis)}\n{_table(drawn, lanes, axis.waits())}\n</body>\n</html>\n"
    )


def _said(facts: Mapping[str, Any]) -> str:
    """Return the state, and the reason for it."""
    why = f": {facts['error']}" if facts["error"] else ""
    coming = f'\n<p class="next">{text(facts["next"])}</p>' if facts.get("next") else ""
    return f'<p class="state"><b>{text(marks.state(facts["state"], coloured=False))}</b>{text(why)}</p>{coming}'


def _facts(facts: Mapping[str, Any], drawn: Sequence[Bar]) -> str:
    """Return the totals of the move, as terms and values."""
    known = {"move": facts["id"], "asked for (UTC)": clock(facts["created"])}
    if facts.get("asked_by"):
        known["asked by"] = facts["asked_by"]
    if facts.get("reason"):
        known["reason"] = facts["reason"]
    if drawn:
        known["steps"] = str(len(drawn))
        known["attempts"] = str(max(bar.step.attempt for bar in drawn) or 1)
        known["busy for"] = span(sum(bar.seconds for bar in drawn))
    if sent := sum(bar.bytes for bar in drawn):
        known["sent"] = size(sent)
    pairs = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in known.items())
    return f"<dl>{pairs}</dl>"


def _table(drawn: Sequence[Bar], lanes: Sequence[str], waits: Sequence[Wait]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows: list[str] = []
    coming = list(waits)
    for name, of_group in groups(drawn):
        rows += _waits(coming, of_group[0])
        seconds = sum(bar.seconds for bar in of_group)
        rows.append(
            f'<tr class="group"><th colspan="{len(_COLUMNS)}">{text(name)} <span>from '
            f"{clock(of_group[0].step.started_at)}, {len(of_group)} steps, {span(seconds)}</span></th></tr>"
        )
        for bar in of_group:
            rows += _waits(coming, bar)
            rows.append(_row(bar, lanes))
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>"


def _waits(coming: list[Wait], bar: Bar) -> list[str]:
    """Return the waits that ended before the step began, and remove them from those still to come."""
    rows = []
    while coming and coming[0].end <= bar.step.started_at:
        wait = coming.pop(0)
        words = f"{WAITED} no step ran for {span(wait.seconds)}"
        rows.append(f'<tr class="wait"><td colspan="{len(_COLUMNS)}">{words}</td></tr>')
    return rows


def _row(bar: Bar, lanes: Sequence[str]) -> str:
    step = bar.step
    again = f' <span title="carried on under a new claim">{TAKEN_OVER}</span>' if bar.taken_over else ""
    drawn = f'<div class="{kind(bar, lanes)}" style="{place(bar.left, bar.right)}"></div>'
    cells = [
        f'<td class="{"bad" if step.error else "ok"}">{bar.mark}</td>',
        f"<td>{text(bar.name)}{again}</td>",
        f"<td>{text(bar.lane)}</td>",
        f'<td><span title="{clock(step.started_at)}">{step.started_at:%H:%M:%S}</span></td>',
        f'<td class="number">{span(bar.seconds)}</td>',
        f'<td class="track"><div>{drawn}</div></td>',
        f'<td class="outcome">{_outcome(bar)}</td>',
    ]
    return f'<tr id="step-{step.seq}">{"".join(cells)}</tr>'


def _outcome(bar: Bar) -> str:
    """Return the error or the result; a long or structured one can be unfolded."""
    step = bar.step
    if step.error:
        return _folded(f"{step.error.get('code', '')}: {step.error.get('message', '')}")
    if step.step == choice.CHOOSE and "chosen" in (step.result or {}):
        return _folded("; ".join([choice.order(step.result), *choice.named(choice.rejected(step.result))]))
    result = dict(step.result or {})
    said = [f"sent {bar.rate}"] if bar.rate else []
    said += [f"{name}={value}" for name, value in result.items() if name != BYTES and _is_plain(value)]
    inner = {name: value for name, value in result.items() if not _is_plain(value)}
    if not inner:
        return _folded(", ".join(said))
    summary = ", ".join([*said, *inner])
    return f"<details><summary>{text(summary)}</summary><pre>{text(json.dumps(inner, indent=1))}</pre></details>"


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list)


def _folded(outcome: str) -> str:
    """Return the text; a long one shows its beginning and can be unfolded."""
    if len(outcome) <= _FOLDED:
        return text(outcome)
    return f"<details><summary>{text(outcome[: _FOLDED - 1])}…</summary>{text(outcome)}</details>"
