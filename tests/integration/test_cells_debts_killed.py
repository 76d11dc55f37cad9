"""Whoever pays what a cell owes is killed before each of its writes there: the next one pays the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from support.labs.cells_away import Databases, begin, configure, copies, moving, owed, shown
from support.labs.cells_gone import WIDE, gone, settled
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.clients.zookeeper import connect_embedded, embedded_store
from droveway.engines.keeper.cell_debts import CellDebts
from droveway.engines.keeper.debts import Collector
from droveway.engines.operations import move_requests
from droveway.errors import StepError
from droveway.flows.run import MoveOptions

ROUNDS = 40


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("debts") / "lab", WIDE) as made:
        configure(made, step_deadline=1.0)
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its server where it was."""
    yield built
    if built.move("web").state == "verifying":
        built.cli("server", "revert", "web")
    assert built.server("web").host == "host1"


def pay(lab: Stage, cell: str, kill_before: int) -> None:
    """One round of the collector, killed before its so-manieth transaction in the cell ends."""
    left = kill_before

    def count(_connection: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    site = lab.lab
    event.listen(site.cell_databases[cell].engine, "commit", count)
    cells = CellDebts(site.journal, site.api, site.cells, site.cloud, MoveOptions())
    Collector(connect_embedded(embedded_store()), site.journal, every=1.0, cells=cells).round()


def paid_over_kills(lab: Stage, cell: str) -> int:
    """How many collectors were killed, each one write further than the one before, until one had paid."""
    for number in range(1, ROUNDS):
        lab.lab.close()
        child = multiprocessing.get_context("fork").Process(target=pay, args=(lab, cell, number))
        child.start()
        child.join()
        if child.exitcode == 0:
            assert cell not in [name for name, _ in owed(lab)]
            return number - 1
        assert child.exitcode == -signal.SIGKILL
    raise AssertionError(f"it is not paid after {ROUNDS} kills")


def test_a_copy_that_was_shown_is_hidden_and_removed_over_kills(lab: Stage) -> None:
    before = lab.standing("web")
    away = Databases(lab, "cell2", "show_target", "revert")

    def probe(move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("show_target", "execute", "after"):
            raise StepError("turned back", code="test")
        away(move, step, direction, phase)

    with lab.running(probe=probe):
        move = begin(lab, "cell2")().id
        until(away.went.is_set, "the cell is away")
        assert move_requests.carry(lab.lab, move).state == "failed"
    away.bring()
    assert owed(lab) == [("cell2", "hide"), ("cell2", "remove"), ("cell2", "drop fence")]
    assert paid_over_kills(lab, "cell2") > len(("hide", "remove", "drop fence"))
    assert settled(lab)
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


def test_events_are_closed_over_kills(lab: Stage) -> None:
    away = Databases(lab, "cell1", "finish_source_records")
    with moving(lab, away, begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "verifying"
    away.bring()
    assert owed(lab) == [("cell1", "close events"), ("cell1", "drop fence")]
    assert paid_over_kills(lab, "cell1") > 1
    assert settled(lab)
    assert shown(lab, move).state == "verifying"
    lab.assert_balanced()


def test_a_copy_that_was_finished_nowhere_is_hidden_and_removed_over_kills(lab: Stage) -> None:
    before = lab.standing("web")
    with gone(lab, "cell2", "finish_records", begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "verifying"
        move_requests.end(lab.lab, move, "revert")
        assert move_requests.carry(lab.lab, move).state == "reverted"
    what = [action for cell, action in owed(lab) if cell == "cell2"]
    assert what == ["finish", "drop fence", "hide", "remove", "drop fence"]
    assert paid_over_kills(lab, "cell2") > len(what)
    assert settled(lab)
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()
