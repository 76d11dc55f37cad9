"""Lays out a move for people, for `droveway move show`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from droveway.cli.view import choice, marks
from droveway.cli.view.columns import dated, part, size, span
from droveway.cli.view.way import way
from droveway.persistence.journal import kinds
from droveway.printable import SHORT, printable


def page(facts: Mapping[str, Any], *, terminal: bool, coloured: bool) -> str:
    """Return a line for each fact, the next command last; marks and colours are for a ``terminal`` only."""
    state = marks.state(facts["state"], coloured=coloured) if terminal else facts["state"]
    lines = [("move", _what(facts)), ("asked", _asked(facts)), *_rest(facts)]
    rows = [(name, printable(text)) for name, text in [*lines, ("next", facts["next"])]]
    rows.insert(2, ("state", state + _where(facts)))
    return "".join(f"{name:<9} {text}\n" for name, text in rows)


def _what(facts: Mapping[str, Any]) -> str:
    change = "" if facts["old_flavor"] == facts["new_flavor"] else f", {facts['old_flavor']} → {facts['new_flavor']}"
    hosts = way(facts["kind"], facts["state"], facts["source"], facts["destination"])
    return f"{facts['id'][:SHORT]}  {facts['kind']} {facts['server_name']}, {hosts}{change}"


def _asked(facts: Mapping[str, Any]) -> str:
    by = f" by {facts['asked_by']}" if facts["asked_by"] else ""
    why = f', "{facts["reason"]}"' if facts["reason"] else ""
    return f"{dated(facts['created'])}{by}{why}"


def _where(facts: Mapping[str, Any]) -> str:
    if facts["ended"]:
        return f", {dated(facts['ended'])}"
    parts = []
    if facts["step"]:
        parts.append(f"step {facts['step_number']} of {facts['step_count']} ({facts['step']})")
        parts += [f"attempt {facts['attempt']}"] if facts["attempt"] else []
    parts.append(f"for {span(max(0, _since(facts['updated'])))}")
    return ", ".join(["", *parts]) + (", held" if facts["hold"] else "")


def _rest(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, key in (("why", "error"), ("waits for", "waits_for"), ("health", "health_reason")):
        if facts[key]:
            yield name, facts[key]
    if facts["owner"] and not facts["ended"]:
        before = f"; {facts['unclean']} before it in a row ended without releasing the move" if facts["unclean"] else ""
        yield "owner", f"{facts['owner']}, since {dated(facts['claimed'])} (epoch {facts['epoch']}){before}"
    if facts["progress_total"] and not facts["ended"]:
        kept = f", resumed at {size(facts['progress_kept'])}" if facts["progress_kept"] else ""
        share = 100 * facts["progress_done"] // facts["progress_total"]
        done = f"{part(facts['progress_done'], facts['progress_total'])} ({share} %){kept}{_speed(facts)}"
        yield "progress", f"{done}, told {dated(facts['progress_at'])}"
    for debt in facts.get("debts", ()):
        what = f"the undo of {debt['step']}" if debt["undo"] else debt["step"]
        yield "debt", f"{debt['id']}: {debt['host']}, {what}, {debt['state']}"
    if facts.get("kept_until"):
        yield "kept", f"{facts['source']}: {facts['kept_as']}, purged {dated(facts['kept_until'])}"
    for line in choice.named(facts.get("left_out", ())):
        yield "host", line
    if facts["storage"]:
        yield "storage", facts["storage"]
    if not facts["ended"] and kinds.of(facts["kind"]).leads_to_wait:
        when = f", {dated(facts['deadline'])}" if facts["deadline"] else ""
        keeps = f", then the source is kept for {span(facts['keep_source'])}" if facts["keep_source"] else ""
        yield "confirm", f"{facts['policy']}{when}{keeps}"


def _speed(facts: Mapping[str, Any]) -> str:
    if facts["progress_done"] >= facts["progress_total"]:
        return ", all copied, being checked"
    if facts["progress_rate"] is None:
        return ""
    return f", {size(facts['progress_rate'])}/s, {span(facts['progress_left'])} left to copy"


def _since(moment: dt.datetime) -> float:
    return (dt.datetime.now(dt.UTC).replace(tzinfo=None) - moment).total_seconds()
