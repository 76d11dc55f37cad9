"""A target cell that is declared down once its copy was started: the server goes back by the source's rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.labs.cells_away import ask, begin, copies, owed
from support.labs.cells_gone import WIDE, gone, runs_on, settled, unread
from support.labs.operations import Stage, stage

from droveway.engines.operations import move_requests
from droveway.errors import DestinationFault
from droveway.flows.steps import reverting


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


@pytest.mark.parametrize("step", ["start_guest", "finish_records"])
def test_a_move_whose_target_cell_is_gone_since_its_start_is_reverted(lab: Stage, step: str) -> None:
    """It waits for that by the source's rows; whether its guest ever ran nobody can tell."""
    before = lab.standing("web")
    with gone(lab, "cell2", step, begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "verifying"
        assert ("cell2", "finish") in owed(lab)
        move_requests.end(lab.lab, move, "revert")
        assert move_requests.carry(lab.lab, move).state == "reverted"
        assert runs_on(lab, move) == ["host1"]
    assert settled(lab)
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


def test_a_revert_that_is_undone_without_its_target_cell_shows_the_rows_there_when_that_is_up(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were hidden when the cell went, and the server is mapped there again: it is in every list.

    Which attachments it has by now was written in the other cell alone: the next revert says so, with its mend.
    """
    with lab.running():
        move_requests.carry(lab.lab, begin(lab, "cell2")().id)

    def fail(*_: object) -> None:
        raise DestinationFault("it cannot start", code="start-failed", host="host1")

    monkeypatch.setattr(reverting.StartGuest, "perform", fail)
    with gone(lab, "cell2", "start_guest", ask(lab, "revert")) as move:
        assert move_requests.carry(lab.lab, move).state == "verifying"
        assert ("cell2", "show") in owed(lab)
    monkeypatch.undo()
    assert settled(lab)
    assert [row["name"] for row in lab.json("server", "list")] == ["web"]
    assert f"droveway move settle {move[:8]} --cell cell2" in lab.cli("server", "revert", "web", code=4)
    lab.cli("move", "settle", move, "--cell", "cell2", "--reason", "the room burnt down")
    lab.cli("move", "retry", move)
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


def test_a_revert_whose_target_cell_is_gone_goes_on_from_the_sources_rows(lab: Stage) -> None:
    before = lab.standing("web")
    with lab.running():
        move_requests.carry(lab.lab, begin(lab, "cell2")().id)
    with gone(lab, "cell2", "show_source", ask(lab, "revert")) as move:
        assert move_requests.carry(lab.lab, move).state == "reverted"
        assert runs_on(lab, move) == ["host1"]
        assert "what users wrote last in cell cell2, which is declared down, was not read" in unread(lab, move)
    assert settled(lab)
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()
