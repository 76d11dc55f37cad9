"""A cell that is declared down in the middle of a move: the move ends by the rows that are left, or says what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.labs.cells_away import begin, copies, owed, shown
from support.labs.cells_gone import WIDE, gone, runs_on, settled, unread
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import Fenced
from droveway.flows.run import Context
from droveway.flows.steps.hosts import host


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("gone") / "lab", WIDE) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its server where it was."""
    yield built
    if built.move("web").state == "verifying":
        built.cli("server", "revert", "web")
    assert built.server("web").host == "host1"


def test_a_move_within_a_cell_that_is_declared_down_parks_with_one_command(lab: Stage) -> None:
    """It waits while the cell is merely away; nothing of it is anywhere else."""
    within = MoveSpec(server="web", flavor=None, host="host2")
    with gone(lab, "cell1", "mark_migrating", lambda: submit(lab.lab, within)) as move:
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code, ended.waits_for) == ("needs-operator", "cell-away", None)
        assert "cell cell1 is declared down" in (ended.error or "")
        assert f"droveway cell up cell1, then droveway move retry {move[:8]}" in (ended.error or "")
    lab.cli("move", "retry", move)
    assert (shown(lab, move).state, lab.server("web").host) == ("verifying", "host2")
    lab.assert_balanced()


def test_a_move_with_both_cells_declared_down_parks_and_names_both(lab: Stage) -> None:
    with gone(lab, "cell2", "show_target", begin(lab, "cell2"), also="cell1") as move:
        until(lambda: shown(lab, move).state == "needs-operator", "it rests")
        ended = shown(lab, move)
        assert ended.error_code == "cell-away"
        assert "cells cell1 and cell2 are both declared down" in (ended.error or "")
        assert f"then droveway move retry {move[:8]}" in (ended.error or "")
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "verifying"
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["carry_late_writes", "hide_source"])
def test_a_forward_move_whose_target_cell_is_gone_goes_back_before_its_start(lab: Stage, step: str) -> None:
    """Rule 18: from the source's rows, which its mapping names again; what nobody could read is named."""
    before = lab.standing("web")
    with gone(lab, "cell2", step, begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "failed"
        assert unread(lab, move) == ["what users wrote last in cell cell2, which is declared down, was not read"]
        assert runs_on(lab, move) == ["host1"]
        assert ("cell2", "hide") in owed(lab)
    assert settled(lab)
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["move_volumes", "hide_source"])
def test_a_forward_move_whose_source_cell_is_gone_goes_on_with_its_whole_copy(lab: Stage, step: str) -> None:
    """With the rows as they were copied; the source's are hidden and its fence dropped when the cell is up."""
    with gone(lab, "cell1", step, begin(lab, "cell2")) as move:
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error) == ("verifying", None)
        assert runs_on(lab, move) == ["host3"]
        named = ["what users wrote last in cell cell1, which is declared down, was not read"]
        assert named[: step != "hide_source"] == unread(lab, move)[:1]
    assert settled(lab)
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


def test_a_forward_move_whose_source_cell_is_gone_rests_without_a_whole_copy(lab: Stage) -> None:
    with gone(lab, "cell1", "copy_disks", begin(lab, "cell2")) as move:
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
        assert f"droveway cell up cell1, then droveway move retry {move[:8]}" in (ended.error or "")
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "verifying"
    lab.assert_balanced()


def test_a_source_cell_that_is_up_before_the_start_hides_its_copy_first(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hiding was owed, and beside a copy that is shown no guest is started."""
    start, up = host.StartGuest.perform, threading.Event()

    def perform(step: host.StartGuest, ctx: Context) -> Any:
        if not up.is_set():
            raise Fenced("another conductor has the claim")
        return start(step, ctx)

    monkeypatch.setattr(host.StartGuest, "perform", perform)
    with gone(lab, "cell1", "hide_source", begin(lab, "cell2")) as move:
        until(lambda: ("cell1", "hide") in owed(lab), "what the cell owes")
        until(lambda: shown(lab, move).step == "start_guest", "the start")
    up.set()
    lab.cli("move", "resume")
    assert (shown(lab, move).state, owed(lab)) == ("verifying", [])
    lab.assert_balanced()
