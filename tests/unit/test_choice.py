"""What operators see of a choice of destinations: in the history, on the page of a move and in its timeline."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from droveway.cli.view import choice
from droveway.cli.view.columns import Facts
from droveway.cli.view.timeline import page
from droveway.persistence.journal.tables import MoveStep

BEGAN = dt.datetime(2026, 11, 21, 15, 0)  # noqa: DTZ001 - as databases hold it
CHOSEN = {
    "chosen": [{"host": "host3", "request": {"allocations": {}}}, {"host": "host4", "request": {}}],
    "rejected": {"host1": {"filter": "IgnoreHosts", "reason": "the server is on it"}},
}


def step(name: str, **columns: Any) -> MoveStep:
    known: dict[str, Any] = {"direction": "execute", "attempt": 0, "flow": "migrate", "result": None, "error": None}
    return MoveStep(step=name, seq=1, started_at=BEGAN, ended_at=BEGAN, **known | columns)


def error(code: str, fault: str) -> dict[str, str]:
    return {"code": code, "message": f"{code}!", "fault": fault, "host": ""}


STEPS = [
    step("record_before", result={}),
    step("choose_destinations", result=CHOSEN),
    step("claim", attempt=1, error=error("no-capacity", "destination")),
    step("claim", attempt=1, direction="revert", error=error("retried", "destination")),
    step("set_aside", attempt=2, error=error("step-failed", "move")),
    step("check_destination_copy", flow="confirm", attempt=2, error=error("copy-broken", "destination")),
]


def test_hosts_that_fell_out_and_those_that_failed_are_told_apart() -> None:
    """R0-20, R0-22: a failure of the move, of an undo or of a confirm is no host that fell out."""
    assert choice.left_out(STEPS) == [  # type: ignore[arg-type]
        {"host": "host1", "attempt": None, "filter": "IgnoreHosts", "reason": "the server is on it"},
        {"host": "host3", "attempt": 1, "filter": "no-capacity", "reason": "no-capacity!"},
    ]
    assert choice.left_out(STEPS[:1]) == []  # type: ignore[arg-type]


def test_people_read_those_that_were_tried_first() -> None:
    found = choice.left_out(STEPS)  # type: ignore[arg-type]
    assert choice.named(found) == ["host3 failed: no-capacity!", "not host1: the server is on it (IgnoreHosts)"]


def test_of_very_many_hosts_people_read_some() -> None:
    many = {f"host{number}": {"filter": "Placement", "reason": "it is full"} for number in range(100)}
    lines = choice.Choice(CHOSEN | {"rejected": many}).human_readable().split("\n")
    assert (lines[0], len(lines), lines[-1]) == ("host3, then host4", 10, "and 92 more")


def test_hosts_that_the_journal_only_counts_are_counted_for_people_and_named_by_their_filter_for_programs() -> None:
    counted = CHOSEN | {"more": {"ComputeFilter": 20, "Placement": 3}}
    assert choice.Choice(counted).human_readable().split("\n")[1:] == [
        "not host1: the server is on it (IgnoreHosts)",
        "and 23 more",
    ]
    found = choice.left_out([step("choose_destinations", result=counted)])  # type: ignore[list-item]
    assert found[1:] == [
        {"host": None, "attempt": None, "filter": "ComputeFilter", "reason": "20 more hosts", "count": 20},
        {"host": None, "attempt": None, "filter": "Placement", "reason": "3 more hosts", "count": 3},
    ]


@pytest.mark.parametrize(("number", "kind"), [(0, Facts), (1, choice.Choice)])
def test_only_the_choice_itself_is_laid_out(number: int, kind: type) -> None:
    shown = choice.outcome(STEPS[number], STEPS[number].result)  # type: ignore[arg-type]
    assert type(shown) is kind
    assert shown.machine_readable() == STEPS[number].result


def test_a_choice_that_failed_has_nothing_to_lay_out() -> None:
    failed = step("choose_destinations", error=error("no-valid-host", "move"))
    assert choice.outcome(failed, failed.result).human_readable() == ""  # type: ignore[arg-type]


def test_the_timeline_has_the_choice_in_words() -> None:
    facts = {"id": "0b6e2f7c", "kind": "migrate", "server_name": "web", "state": "failed", "error": "", "source": "h"}
    text = page(facts | {"destination": "host4", "created": BEGAN}, STEPS, BEGAN)  # type: ignore[arg-type]
    assert "host3, then host4; not host1: the server is on it (IgnoreHosts)" in text
    assert "allocations" not in text
