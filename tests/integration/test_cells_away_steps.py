"""A cell goes away before a step of a move between cells: the move ends, and nothing of it is left anywhere."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import pytest
from support.labs.cells_away import CLOUD, Databases, ask, begin, configure, copies, moving, owed, shown
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.flows import registry
from droveway.persistence.journal.tables import Move

ENDS = {"forward": "cross_cell_resize", "confirm": "cross_cell_confirm", "revert": "cross_cell_revert"}
OF_HOSTS = ("stop_guest", "copy_disks", "start_guest", "discard_source", "discard_destination")
"""Of the steps of hosts these, which need rows as each does; all others that are left out touch services alone."""

EVERY = [
    (flow, step.step_name(), cell)
    for flow, kind in ENDS.items()
    for step in registry.latest(kind).walk()
    for cell in ("cell1", "cell2")
    if ".records." in step.__module__ or step.step_name() in OF_HOSTS
]
STEPS = EVERY[::5]
"""A fixed sample, in which each flow has both cells."""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("away") / "lab", CLOUD) as made:
        configure(made, step_deadline=1.0)
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its server where it was."""
    yield built
    move = built.move("web")
    if move.state == "verifying":
        built.cli("server", "revert", "web")
    elif move.state == "done":
        built.cli("server", "resize", "web", "--flavor", "small", "--to-cell", "cell1")
        built.cli("server", "confirm", "web")
    assert built.server("web").host == "host1"


@pytest.mark.parametrize(("flow", "step", "cell"), STEPS)
def test_a_cell_that_is_away_at_a_step_leaves_nothing_behind(lab: Stage, flow: str, step: str, cell: str) -> None:
    """R1-31: until its deadline has passed and for good after that, whichever way the move went."""
    asks: Callable[[], Move] = begin(lab, "cell2")
    if flow != "forward":
        with lab.running():
            move_requests.carry(lab.lab, asks().id)
        asks = ask(lab, flow)
    away = Databases(lab, cell, step)

    def rests_or_waits(move: str) -> bool:
        row = shown(lab, move)
        at_rest = row.flow_uuid is None or row.state == "needs-operator"
        return at_rest or "does not answer" in (row.waits_for or "")

    with moving(lab, away, asks) as move:
        until(lambda: rests_or_waits(move), "the move waits, or has ended")
        away.bring()
        move_requests.carry(lab.lab, move)
    if shown(lab, move).state == "needs-operator":
        assert shown(lab, move).error_code == "cell-away"
        lab.cli("move", "retry", move)
    lab.cli("move", "resume")
    ended = shown(lab, move)
    assert ended.state in {"forward": ("verifying", "failed"), "confirm": ("done", "verifying")}.get(
        flow, ("reverted", "verifying")
    )
    assert (owed(lab), ended.waits_for) == ([], None)
    left = {"verifying": {"cell1", "cell2"}, "done": {"cell2"}}.get(ended.state, {"cell1"})
    assert copies(lab) == {each: int(each in left) for each in ("cell1", "cell2", "cell3")}
    for path in (lab.root / "cells").glob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(path)) as rows:
            marks = "SELECT count(*) FROM instance_system_metadata WHERE key LIKE 'droveway%'"
            assert rows.execute(marks).fetchone()[0] == 0, path
    lab.assert_balanced()
