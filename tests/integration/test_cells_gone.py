"""A cell that is declared down in the middle of a move: the move ends by the rows that are left, or says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.cells_away import CLOUD, Databases, begin, copies, moving, shown, waits
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.journal import cells_down

WIDE = CLOUD.replace("{host1: {}}", "{host1: {}, host2: {}}")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", WIDE) as made:
        yield made


def declare(lab: Stage, *cells: str) -> None:
    """What `cell down` records, while the lab runs in the test, where workers are no processes."""
    with lab.lab.journal.write() as session:
        for cell in cells:
            cells_down.declare(session, cell, reason="the room burnt down", who="me")


def lift(lab: Stage, *cells: str) -> None:
    for cell in cells:
        lab.cli("cell", "up", cell)


def test_a_move_within_a_cell_that_is_declared_down_parks_with_one_command(lab: Stage) -> None:
    """It waits while the cell is merely away; nothing of it is anywhere else."""
    away = Databases(lab, "cell1", "mark_migrating")
    with moving(lab, away, lambda: submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2"))) as move:
        declare(lab, "cell1")
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code, ended.waits_for) == ("needs-operator", "cell-away", None)
        assert "cell cell1 is declared down" in (ended.error or "")
        assert f"droveway cell up cell1, then droveway move retry {move[:8]}" in (ended.error or "")
        away.bring()
    lift(lab, "cell1")
    lab.cli("move", "retry", move)
    assert (shown(lab, move).state, lab.server("web").host) == ("verifying", "host2")
    lab.assert_balanced()


def test_a_move_with_both_cells_declared_down_parks_and_names_both(lab: Stage) -> None:
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, begin(lab, "cell2")) as move:
        until(lambda: waits(lab, move, "cell2"), "the move waits")
        declare(lab, "cell1", "cell2")
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
        assert "cells cell1 and cell2 are both declared down" in (ended.error or "")
        assert f"then droveway move retry {move[:8]}" in (ended.error or "")
        away.bring()
    lift(lab, "cell1", "cell2")
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "verifying"
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()
