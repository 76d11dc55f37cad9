"""What the demonstration plans, and how it kills."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proofs import kills
from proofs.demo.command import LEAST_KILLS, LEAST_MOVES, LEAST_UNDOS
from proofs.demo.plan import LATE, Aim, Planner, Round, count
from proofs.kills import Child, Standing

from droveway.flows import registry
from droveway.lab.cloud import demo_cloud

CLOUD = demo_cloud()
SEEDS = st.integers(min_value=0, max_value=2**32)

_STEPS = list(registry.latest("resize").names())
CLAIM = f"step {_STEPS.index('claim') + 1} of {len(_STEPS)}"
STANDING = Standing(
    move="m", server="web", pid=1, flow="resize", step="claim", direction="execute", inside=True, failed=False, passed=6
)


def planned(seed: int) -> list[Round]:
    return list(Planner(seed, CLOUD).rounds())


@given(SEEDS)
def test_a_seed_plans_the_same_again(seed: int) -> None:
    assert planned(seed) == planned(seed)


@given(SEEDS)
def test_every_plan_shows_enough(seed: int) -> None:
    found = count(planned(seed))
    assert (found["moves"], found["kills"]) == (LEAST_MOVES, LEAST_KILLS + 2)
    assert found["undos"] > LEAST_UNDOS


@given(SEEDS)
def test_a_server_goes_into_another_cell_and_comes_home(seed: int) -> None:
    cells = {host: name for name, cell in CLOUD.cells.items() for host in cell.hosts}
    homes = {name: cells[str(server.host)] for name, server in CLOUD.servers.items()}
    *moves, unshelve = (words for each in planned(seed) for words in each.commands if "--to-cell" in words)
    server, there = moves[0][2], moves[0][4]
    assert homes[server] != there
    assert moves == [("server", "migrate", server, "--to-cell", there)] * 2
    assert unshelve == ("server", "unshelve", server, "--to-cell", homes[server])
    assert ("server", "shelve", server) in [words for each in planned(seed) for words in each.commands]


@given(SEEDS)
def test_a_resize_is_always_to_a_larger_flavor(seed: int) -> None:
    flavors = {name: server.flavor for name, server in CLOUD.servers.items()}
    asked: dict[str, str] = {}
    for _noun, verb, server, *rest in (command for each in planned(seed) for command in each.commands):
        if verb == "resize":
            asked[server] = rest[-1]
            assert CLOUD.flavors[rest[-1]].memory_mb > CLOUD.flavors[flavors[server]].memory_mb
        elif verb == "migrate":
            asked[server] = flavors[server]
        elif verb == "confirm":
            flavors[server] = asked[server]


@given(SEEDS)
def test_every_kill_is_aimed_at_a_server_of_its_round(seed: int) -> None:
    for each in planned(seed):
        assert {aim.server for aim in each.aims} <= {command[2] for command in each.commands}


def test_an_aim_waits_for_its_server_direction_and_step() -> None:
    aim = Aim("web", "execute", 6, between=False, delay=0.0)
    assert aim.fits(STANDING)
    assert not aim.fits(dataclasses.replace(STANDING, server="db"))
    assert not aim.fits(dataclasses.replace(STANDING, direction="revert"))
    assert not aim.fits(dataclasses.replace(STANDING, passed=5))


def test_an_aim_between_two_steps_is_made_up_later_when_it_was_missed() -> None:
    aim = Aim("web", "execute", 6, between=True, delay=0.0)
    assert not aim.fits(STANDING)
    assert aim.fits(dataclasses.replace(STANDING, inside=False))
    assert aim.fits(dataclasses.replace(STANDING, passed=6 + LATE))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, f"inside claim ({CLAIM})"),
        ({"inside": False}, "between claim and record_destination"),
        ({"inside": False, "failed": True}, "between the failure of claim and its undo"),
        ({"direction": "revert"}, f"inside the undo of claim ({CLAIM})"),
        ({"direction": "revert", "inside": False}, "between the undo of claim and the undo of alternates"),
        (
            {"direction": "revert", "inside": False, "step": "record_before"},
            "between the undo of record_before and the end",
        ),
        ({"inside": False, "step": "finish_records"}, "between finish_records and the end"),
    ],
)
def test_a_place_names_the_step_or_the_two(changes: dict[str, object], place: str) -> None:
    assert dataclasses.replace(STANDING, **changes).place() == place  # type: ignore[arg-type]


def test_a_child_ends_with_its_commands_exit_code_and_output(tmp_path: Path) -> None:
    child = Child(lambda words: os.write(1, words[0].encode()) and 3, ["said"], tmp_path / "out")
    assert child.wait() == 3
    assert child.said() == "said"
    assert child.has_ended()


def test_a_child_that_breaks_tells_why(tmp_path: Path) -> None:
    child = Child(lambda words: len(words[5]), [], tmp_path / "out")
    assert child.wait() == 1
    assert "IndexError" in child.said()


def test_a_stopped_child_goes_on_until_it_is_killed(tmp_path: Path) -> None:
    child = Child(lambda _words: signal.pause() or 0, [], tmp_path / "out")
    assert child.halt()
    assert not child.has_ended()
    child.let_go()
    assert not child.has_ended()
    assert child.kill()
    assert child.ended == kills.KILLED


def test_a_child_that_had_ended_is_no_kill(tmp_path: Path) -> None:
    child = Child(lambda _words: 0, [], tmp_path / "out")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not child.halt()
    assert child.ended == 0
