"""What the log of a conductor tells of a step that a host owes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.engine_rig import Rig, embedded_rig

from droveway.engines.conductor.run import MoveRun
from droveway.engines.conductor.story import Steps
from droveway.flows.run import OWED, Context
from droveway.flows.step import Step
from droveway.wire.commands import NoDetails

FORWARD: Any = {"direction": "execute", "entered": "execute"}


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def told(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Return the lines with this word, each with its level."""
    return [f"{row.levelname} {row.getMessage()}" for row in caplog.records if word in row.getMessage()]


def test_a_debt_that_becomes_void_is_told_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An undo that is tried again asks each time whether its host owed the step."""
    caplog.set_level(logging.INFO)
    found: list[bool] = []

    def owe(step: Step, *facts: Any) -> Context:
        run = step.run_
        if isinstance(run, MoveRun) and step.step_name() == "copy":
            run.owe("copy", host="h2", action="copy_disks", details=NoDetails(), deadline=1.0, **FORWARD)
            found.extend(run.void("copy", host=host) for host in ("h1", "h2", "h2"))
        return context(step, *facts)

    context = Step._context
    monkeypatch.setattr(Step, "_context", owe)
    move = rig.submit()
    rig.post(move)
    rig.host().turn()
    assert found == [False, True, True]
    assert told(caplog, "no longer owes") == [
        f"INFO Move {move[:8]}: host h2 no longer owes step copy: it never carried that out, and the step is undone"
    ]


@pytest.mark.parametrize(
    ("step", "direction", "result", "line"),
    [
        ("set_aside", "revert", OWED, "the undo of step set_aside is not done, but owed on host h1 (attempt 1)"),
        ("release_source", "execute", OWED, "step release_source is not done, but owed on host h1 (attempt 1)"),
        ("keep_copy", "execute", {"owed": "h1"}, "step keep_copy is not done, but owed on host h1 (attempt 1)"),
    ],
)
def test_a_step_that_a_host_owes_is_not_called_done(
    caplog: pytest.LogCaptureFixture, step: str, direction: str, result: dict[str, Any], line: str
) -> None:
    caplog.set_level(logging.INFO)
    steps = Steps("0b6e2f7c-0000")
    steps.begin(step, direction, attempt=1, host="h1")
    steps.end(step, direction, result)
    assert told(caplog, step) == [f"INFO Move 0b6e2f7c: {line}"]
