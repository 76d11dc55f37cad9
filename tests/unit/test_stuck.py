"""Which moves count as stuck, and what is advised of them."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from droveway.persistence.journal import stuck
from droveway.persistence.journal.states import ADVICE, ENDED, State

NOW = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC).replace(tzinfo=None)


def ago(minutes: float) -> dt.datetime:
    return NOW - dt.timedelta(minutes=minutes)


def move(state: State, **columns: Any) -> Any:
    known: dict[str, Any] = {"hold": False, "waits_for": None, "deadline": None, "error_code": None, "policy": "manual"}
    return SimpleNamespace(state=state.value, **{**known, "updated_at": ago(60), "progress_at": None, **columns})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (move(State.NEEDS_OPERATOR, error_code="disk-full", updated_at=NOW), "needs an operator (disk-full)"),
        (move(State.RUNNING), "no progress for 60 min"),
        (move(State.QUEUED), "no progress for 60 min"),
        (move(State.RUNNING, updated_at=ago(14)), ""),
        (move(State.RUNNING, progress_at=ago(1)), ""),
        (move(State.RUNNING, progress_at=ago(20)), "no progress for 20 min"),
        (move(State.RUNNING, hold=True), ""),
        (move(State.VERIFYING), ""),
        (move(State.VERIFYING, deadline=NOW + dt.timedelta(hours=1)), ""),
        (move(State.VERIFYING, deadline=ago(5)), ""),
        (move(State.VERIFYING, error_code="overdue"), "its confirm or revert was undone (overdue)"),
        (
            move(State.VERIFYING, deadline=NOW + dt.timedelta(hours=1), policy="auto", error_code="overdue"),
            "its confirm or revert was undone (overdue)",
        ),
        (move(State.VERIFYING, policy="deadline"), "its revert was undone, and it waits for a person"),
        (
            move(State.VERIFYING, policy="deadline", error_code="overdue"),
            "its revert was undone (overdue), and it waits for a person",
        ),
        (move(State.VERIFYING, deadline=ago(30)), "its deadline passed 30 min ago"),
        (move(State.VERIFYING, waits_for="host h1 is away: start its worker"), "host h1 is away: start its worker"),
    ],
)
def test_a_move_is_stuck_when_it_does_not_get_on(row: Any, why: str) -> None:
    assert stuck.reason(row, NOW) == why


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_move_that_has_ended_is_not_stuck(state: State) -> None:
    assert stuck.reason(move(state, waits_for="left over", deadline=ago(90)), NOW) == ""


def test_the_bound_is_the_callers() -> None:
    assert stuck.reason(move(State.RUNNING, updated_at=ago(2)), NOW, 60) == "no progress for 2 min"


def test_every_state_has_an_advice() -> None:
    assert set(ADVICE) == set(State)
    assert all(ADVICE.values())
