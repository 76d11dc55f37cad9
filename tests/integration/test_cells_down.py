"""A cell that a person declared down: what it ends, what is refused, and what is owed until it is up again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.cells_away import CLOUD, Databases, ask, begin, copies, moving, owed, shown, waits
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.lab import operations
from droveway.persistence.journal import cells_down

MADE_SURE = "--i-made-sure"


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


@contextlib.contextmanager
def gone(lab: Stage, cell: str, host: str) -> Iterator[Databases]:
    """Let the cell be away with its only host, and declare it down; it is back, and up, in the end."""
    databases = Databases(lab, cell, "")
    lab.cli("lab", "worker", "stop", host)
    databases.take()
    lab.cli("cell", "down", cell, MADE_SURE, "the room burnt down")
    yield databases
    databases.bring()
    lab.cli("lab", "worker", "start", host)
    lab.cli("cell", "up", cell)


def declare(lab: Stage, cell: str) -> None:
    """What `cell down` records, while the lab runs in the test, where workers are no processes."""
    with lab.lab.journal.write() as session:
        cells_down.declare(session, cell, reason="the room burnt down", who="me")


def test_a_cell_is_declared_down_with_a_reason_and_only_when_nothing_of_it_is_up(lab: Stage) -> None:
    """Bad input changes nothing; what stands is shown, and the cell comes back only with its database."""
    assert "is unknown" in lab.refused("cell", "down", "cell9", MADE_SURE, "x")
    assert "with a reason" in lab.refused("cell", "down", "cell2", MADE_SURE, " ")
    assert "the worker of host host3 is up" in lab.refused("cell", "down", "cell2", MADE_SURE, "x")
    assert "nobody has declared cell cell2 down" in lab.refused("cell", "up", "cell2")
    assert {row["name"]: row["down"] for row in lab.json("cell", "list")} == dict.fromkeys(("cell1", "cell2", "cell3"))
    with gone(lab, "cell2", "host3"):
        assert "the room burnt down" in lab.json("cell", "show", "cell2")["down"]
        assert "does not answer" in lab.refused("cell", "up", "cell2")
        found = lab.json("move", "plan", "web", "--flavor", "large")
        assert (found["cell"], found["destination"]) == ("cell3", "host5")
        assert "cell2" in lab.refused("server", "migrate", "web", "--to-cell", "cell2")
    assert lab.json("cell", "show", "cell2")["down"] is None
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")


def test_no_server_enters_a_cell_that_is_declared_down_though_it_answers(lab: Stage) -> None:
    """The reason is a person's word."""
    lab.cli("lab", "worker", "stop", "host3")
    said = lab.cli("cell", "down", "cell2", MADE_SURE, "it is to be rebuilt")
    assert said == ("cell cell2 is declared down: no move waits for it; to take that back: droveway cell up cell2\n")
    lab.cli("lab", "worker", "start", "host3")
    assert "it is to be rebuilt" in lab.refused("server", "migrate", "web", "--to-cell", "cell2")
    checks = lab.json("move", "plan", "web", "--flavor", "large")["checks"]
    assert [each["ok"] for each in checks if "it is to be rebuilt" in each["detail"]] == [False]
    assert lab.cli("cell", "up", "cell2").startswith("cell cell2 is up: it takes part in moves again")


def test_a_move_that_waits_for_its_target_cell_is_undone_once_that_is_declared_down(lab: Stage) -> None:
    """What it left there is owed until the cell is up."""
    before = lab.standing("web")
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, begin(lab, "cell2")) as move:
        until(lambda: waits(lab, move, "cell2"), "the move waits")
        declare(lab, "cell2")
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error) == ("failed", "cell cell2 is declared down")
        until(
            lambda: owed(lab) == [("cell2", "hide"), ("cell2", "remove"), ("cell2", "drop fence")], "the cell owes it"
        )
        away.bring()
    assert lab.standing("web") == before
    lab.cli("move", "resume")
    assert owed(lab) != []
    lab.cli("cell", "up", "cell2")
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


def test_a_confirm_keeps_what_runs_when_the_source_cell_is_gone_and_a_revert_is_refused(lab: Stage) -> None:
    """Both are refused while it is merely away; what is left there goes when it is up again."""
    with lab.running():
        move = move_requests.carry(lab.lab, begin(lab, "cell2")().id).id
    away = Databases(lab, "cell1", "")
    away.take()
    for what in ("confirm", "revert"):
        assert "needs cell cell1, whose database does not answer" in lab.refused("move", what, move)
    away.bring()
    with gone(lab, "cell1", "host1"):
        assert "declared down" in lab.refused("move", "revert", move)
        lab.cli("move", "confirm", move)
        assert shown(lab, move).state == "done"
        actions = [action for _, action in owed(lab)]
        assert "remove" in actions
        assert "discard_source" in actions
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert copies(lab) == {"cell1": 0, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


def test_a_revert_that_has_begun_is_undone_when_its_source_cell_is_gone(lab: Stage) -> None:
    """The server runs on where it was."""
    with lab.running():
        move_requests.carry(lab.lab, begin(lab, "cell2")().id)
    before = lab.standing("web")
    away = Databases(lab, "cell1", "show_source")
    with moving(lab, away, ask(lab, "revert")) as move:
        until(lambda: waits(lab, move, "cell1"), "the revert waits")
        declare(lab, "cell1")
        assert move_requests.carry(lab.lab, move).state == "verifying"
        away.bring()
    lab.cli("cell", "up", "cell1")
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_a_delete_whose_cell_is_gone_rests_with_one_command(lab: Stage) -> None:
    """Its rows tell which guest and which disks are to go; they are nowhere else once the copy was confirmed."""
    with lab.running():
        move_requests.carry(lab.lab, begin(lab, "cell2")().id)
    away = Databases(lab, "cell2", "remove_guest")
    with moving(lab, away, lambda: shown(lab, operations.request_delete(lab.lab, "web"))) as move:
        declare(lab, "cell2")
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
        assert f"droveway cell up cell2, then droveway move retry {move[:8]}" in (ended.error or "")
        away.bring()
    lab.cli("cell", "up", "cell2")
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "done"
    lab.assert_balanced()
