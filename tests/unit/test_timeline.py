"""The timeline of a move: one well-formed file that needs nothing beside it and holds every row of the history."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree as ET

from droveway.cli.view.timeline import page
from droveway.cli.view.timeline_drawing import Axis
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
    columns |= {"flow": "migrate", "epoch": 1} | others
    columns.setdefault("flow_uuid", columns["flow"])
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


def titles(root: ET.Element) -> list[str]:
    return [str(each.get("title")) for each in root.iter() if each.get("title")]


def test_every_row_of_the_history_is_there() -> None:
    _, root = parsed(STEPS)
    rows = {row.get("id"): words(row) for row in root.iter("tr") if row.get("id")}
    assert list(rows) == [f"step-{each.seq}" for each in STEPS]
    assert rows["step-5"] == "✗ copy_disks host2 15:00:01 8.0 s disk-full: host2 <is> full"
    assert rows["step-6"].startswith("✓ undo claim")
    assert rows["step-11"].startswith("▸ discard_source host1")
    assert "✗ copy_disks on host2, attempt 1, 8.0 s: host2 <is> full" in titles(root)
    assert "migrate, attempt 2" in titles(root)
    groups = [words(row) for row in root.iter("tr") if row.get("class") == "group"]
    assert groups[0] == "migrate, attempt 1 from 2026-11-21 15:00:00, 3 steps, 10 s"


def test_each_host_has_its_lane_and_what_waits_is_cut_out() -> None:
    _, root = parsed(STEPS)
    said = [words(text) for text in root.iter("div") if text.get("class") == "name"]
    assert {"conductor", "host1", "host2", "host3"} <= set(said)
    assert "‖ no step ran for 1 d 2 h" in titles(root)
    assert "‖ no step ran for 1 d 2 h" in [words(row) for row in root.iter("tr") if row.get("class") == "wait"]


def test_a_confirm_that_is_asked_for_again_is_a_flow_of_its_own() -> None:
    """Both are of one kind; the second has a claim of its own, and takes nothing over."""
    again = [
        step(1, "check", 0, 1, flow="confirm", flow_uuid="first", epoch=2),
        step(2, "check", 1, 2, flow="confirm", flow_uuid="first", epoch=2, direction="revert"),
        step(3, "check", 3, 4, flow="confirm", flow_uuid="second", epoch=3),
        step(4, "discard_source", 4, 5, flow="confirm", flow_uuid="second", epoch=4),
    ]
    text, root = parsed(again)
    groups = [words(row) for row in root.iter("tr") if row.get("class") == "group"]
    assert [each.partition(" from")[0] for each in groups] == ["confirm, attempt 1", "confirm, attempt 1"]
    taken = [each for each in titles(root) if "↻ under a new claim" in each]
    assert len(taken) == 1
    assert taken[0].startswith("✓ discard_source")
    assert "carried on under a new claim" in text


def test_bytes_are_told_with_their_rate_and_drawn_over_time() -> None:
    copies = [
        step(1, "copy_disks", 0, 10, host="host2", result={"bytes": 30 << 20, "disks": []}),
        step(2, "copy_disks", 10, 20, host="host3", result={"bytes": 10 << 20}),
    ]
    _, root = parsed(copies)
    assert "✓ copy_disks on host2, attempt 1, 10 s, 30.0 MiB at 3.0 MiB/s" in titles(root)
    [line] = [each.get("points") for each in root.iter("polygon")]
    assert line == "0,100 0.0,100.0 500.0,25.0 500.0,25.0 1000.0,0.0 1000,0.0 1000,100"
    assert [words(each) for each in root.iter("dd")][-1] == "40.0 MiB"
    assert not [*parsed(STEPS)[1].iter("polygon")]


def test_a_step_that_another_claim_carried_on_says_so_and_a_new_flow_does_not() -> None:
    steps = [
        step(1, "claim", 0, 1, epoch=3),
        step(2, "copy_disks", 1, 9, host="host2", epoch=4),
        step(3, "fit_disks", 9, 10, host="host2", epoch=4),
        step(4, "check_source", 11, 12, host="host1", flow="confirm", epoch=5),
    ]
    _, root = parsed(steps)
    assert [row.get("id") for row in root.iter("tr") if row.get("id") and "↻" in words(row)] == ["step-2"]
    assert "✓ copy_disks on host2, attempt 1, 8.0 s, ↻ under a new claim" in titles(root)


def test_the_file_needs_nothing_beside_it() -> None:
    text, root = parsed(STEPS)
    assert not re.search(r"src=|href=\"(?!#step-\d+\")|url\(|@import|<script|<link", text)
    assert next(element.text for element in root.iter("title")) == "move 0b6e2f7c: migrate <web>"
    assert "prefers-color-scheme: dark" in text


def test_a_move_without_a_step_has_a_file_too() -> None:
    _, root = parsed([])
    assert "migrate <web>" in words(root)


def test_time_runs_from_left_to_right_with_its_gaps_cut() -> None:
    axis = Axis([(at(0), at(10)), (at(10), at(20)), (at(5000), at(5020))])
    assert (axis.at(at(0)), axis.at(at(5020))) == (0.0, 1.0)
    assert axis.at(at(10)) < axis.at(at(20)) < axis.at(at(5000)) < axis.at(at(5010))
    [wait] = axis.waits()
    assert (wait.seconds, wait.left, wait.right) == (4980, axis.at(at(20)), axis.at(at(5000)))
    assert axis.at(at(10)) * 2 == axis.at(at(20))


def test_many_waits_leave_room_for_what_ran() -> None:
    axis = Axis([(at(1000 * each), at(1000 * each + 10)) for each in range(50)])
    assert sum(wait.right - wait.left for wait in axis.waits()) < 0.5
    assert all(axis.at(at(1000 * each)) < axis.at(at(1000 * each + 10)) for each in range(50))
