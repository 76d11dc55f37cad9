"""The timeline of a move: one well-formed file that needs nothing beside it and holds every row of the history."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree as ET

from droveway.cli.view.timeline import Axis, page
from droveway.persistence.journal.tables import MoveStep

BEGAN = dt.datetime(2026, 11, 21, 15, 0)  # noqa: DTZ001 - as databases hold it
FACTS = {
    "id": "0b6e2f7c-0000",
    "kind": "migrate",
    "server_name": "<web>",
    "state": "failed",
    "error": "full & over",
    "source": "host1",
    "destination": "host2",
    "created": BEGAN,
}


def at(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


def step(seq: int, name: str, begins: float, ends: float | None, **others: Any) -> MoveStep:
    columns: dict[str, Any] = {"direction": "execute", "attempt": 1, "host": None, "error": None, "result": None}
    columns |= {"flow": "migrate"} | others
    return MoveStep(seq=seq, step=name, started_at=at(begins), ended_at=None if ends is None else at(ends), **columns)


STEPS = [
    step(4, "claim", 0, 1, result={"host": "host2"}),
    step(5, "copy_disks", 1, 9, host="host2", error={"code": "disk-full", "message": "host2 <is> full"}),
    step(6, "claim", 9, 10, direction="revert"),
    step(9, "copy_disks", 10, 20, host="host3", attempt=2, result={"disks": "x" * 500}),
    step(11, "discard_source", 93620, None, host="host1", flow="confirm", attempt=2),
]


def parsed(steps: list[MoveStep]) -> tuple[str, ET.Element]:
    text = page(FACTS, steps, at(93630))  # type: ignore[arg-type]
    return text, ET.fromstring(text)


def words(element: ET.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def test_every_row_of_the_history_is_there() -> None:
    _, root = parsed(STEPS)
    rows = {row.get("id"): words(row) for row in root.iter("tr") if row.get("id")}
    assert list(rows) == [f"step-{each.seq}" for each in STEPS]
    assert rows["step-5"].startswith(
        "✗ copy_disks migrate 1 host2 2026-11-21 15:00:01 8.0 s disk-full: host2 <is> full"
    )
    assert rows["step-6"].startswith("✓ undo claim")
    assert rows["step-11"].startswith("▸ discard_source confirm 2 host1")
    titles = [words(title) for rect in root.iter("rect") for title in rect]
    assert "✗ copy_disks on host2, attempt 1, 8.0 s: host2 <is> full" in titles
    assert "migrate, attempt 2" in titles


def test_each_host_has_its_lane_and_what_waits_is_cut_out() -> None:
    _, root = parsed(STEPS)
    said = [words(text) for text in root.iter("text")]
    assert {"conductor", "host1", "host2", "host3"} <= set(said)
    assert "1 d 2 h idle" in said


def test_the_file_needs_nothing_beside_it() -> None:
    text, root = parsed(STEPS)
    assert not re.search(r"(src|href)=|url\(|@import|<script|<link", text)
    assert next(element.text for element in root.iter("title")) == "move 0b6e2f7c: migrate <web>"
    assert "prefers-color-scheme: dark" in text


def test_a_move_without_a_step_has_a_file_too() -> None:
    _, root = parsed([])
    assert "migrate <web>" in words(root)


def test_time_runs_from_left_to_right_with_its_gaps_cut() -> None:
    axis = Axis([(at(0), at(10)), (at(10), at(20)), (at(5000), at(5020))])
    assert (axis.at(at(0)), axis.at(at(5020))) == (0.0, 1.0)
    assert axis.at(at(10)) < axis.at(at(20)) < axis.at(at(5000)) < axis.at(at(5010))
    [(_, idle)] = axis.breaks()
    assert idle == 4980
    assert axis.at(at(10)) * 2 == axis.at(at(20))
