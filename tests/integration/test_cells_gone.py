"""A cell that is declared down in the middle of a move: the move ends by the rows that are left, or says what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.labs.cells_away import CLOUD, Databases, ask, begin, copies, owed, shown, waits
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.journal import cells_down
from droveway.persistence.journal.tables import Move

WIDE = CLOUD.replace("{host1: {}}", "{host1: {}, host2: {}}")
HOSTS = {"cell1": ("host1", "host2"), "cell2": ("host3",), "cell3": ("host5",)}


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


@contextlib.contextmanager
def gone(lab: Stage, cell: str, step: str, asks: Callable[[], Move], *, also: str = "") -> Iterator[str]:
    """Let the move run until it waits for its cell, and declare that down with its hosts off; yields the move's id."""
    away = Databases(lab, cell, step)
    down = [each for each in (cell, also) if each]
    try:
        with lab.running(probe=away) as workers:
            asked = asks()
            move = asked.id
            until(lambda: waits(lab, move, cell), f"the move waits for {cell}")
            for host in HOSTS[cell]:
                workers.stop(host)
                guest = lab.lab.hypervisor(host).guest(asked.server)
                if guest is not None and guest.running:
                    lab.lab.hypervisor(host).stop(asked.server, grace=0.0, fence=lambda: None)
            with lab.lab.journal.write() as session:
                for each in down:
                    cells_down.declare(session, each, reason="the room burnt down", who="me")
            yield move
    finally:
        if away.went.is_set():
            away.bring()
    for each in down:
        lab.cli("cell", "up", each)


def settled(lab: Stage) -> bool:
    """Whether all that was owed is paid, once the lab has gone on."""
    lab.cli("move", "resume")
    return owed(lab) == []


def runs_on(lab: Stage, move: str) -> list[str]:
    """The hosts on which a guest runs, though one of the cells cannot be asked."""
    server = shown(lab, move).server
    guests = {host: lab.lab.hypervisor(host).guest(server) for host in sorted(lab.lab.identity.hosts)}
    return [host for host, guest in guests.items() if guest is not None and guest.running]


def unread(lab: Stage, move: str) -> list[str]:
    return [str(each.result["unread"]) for each in lab.history(move) if "unread" in (each.result or {})]


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
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
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


@pytest.mark.parametrize("step", ["move_volumes", "hand_over_source", "hide_source"])
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
