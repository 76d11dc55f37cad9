"""Nova evacuates a server in the middle of its delete: the delete follows it, and nothing of it is left anywhere."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proofs import leftovers
from support.labs.operations import Stage, stage
from support.rows import remains
from support.two_faults import ways_out
from support.two_faults.nova_acts import REFUGE, Acts

from droveway.engines.operations import move_requests
from droveway.flows import registry
from droveway.lab import operations
from droveway.persistence.nova import usage

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
"""
WORDS = ("--flavor", "small", "--host", "host1", "--image", "base", "--volume", "1")
STEPS = [step.step_name() for step in registry.latest("delete").walk()]
STEPS = STEPS[: STEPS.index("settle_records") + 1]
"""Those before which there is a server that Nova could evacuate."""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("evacuated") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


@pytest.fixture(name="nova")
def fixture_nova(lab: Stage) -> Acts:
    """A server of the test's own."""
    name = f"web-{uuid.uuid4().hex[:6]}"
    lab.cli("lab", "server", "create", name, *WORDS)
    return Acts(lab, name)


def delete(nova: Acts, step: str, act: Callable[[], None], *, away: str = "") -> str:
    """Delete the server, and act before a step, while a host's worker is away."""
    met: list[str] = []
    lab = nova.stage

    def meet(_move: str, at: str, _direction: str, phase: str) -> None:
        if (at, phase) == (step, "before") and not met:
            met.append(at)
            act()

    move = operations.request_delete(lab.lab, nova.name)
    with lab.running(meet) as workers:
        if away:
            workers.stop(away)
        move_requests.carry(lab.lab, move)
    assert met == [step]
    return move


def assert_nothing_is_left(nova: Acts, move: str) -> None:
    lab, server = nova.stage, nova.server
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error) == ("done", None)
    with lab.lab.cell_databases["cell1"].write() as session:
        # Where Nova built it, its tracker counts anew.
        usage.recompute(session, REFUGE)
    assert leftovers.of(lab.lab, server) == []
    assert remains.of(lab.root, server) == []
    assert lab.json("debt", "list") == []
    lab.assert_balanced()


@pytest.mark.parametrize("step", STEPS)
def test_the_delete_follows_the_server(nova: Acts, step: str) -> None:
    """Before whatever step of the delete that is, Nova has built the server on another host."""
    move = delete(nova, step, nova.evacuate)
    assert nova.row["host"] == REFUGE
    assert_nothing_is_left(nova, move)


def test_the_host_that_it_left_is_not_waited_for(lab: Stage, nova: Acts) -> None:
    """It is the one that Nova took for dead; what it still has of the server it owes."""
    move = delete(nova, "stop_guest", nova.evacuate, away="host1")
    assert move_requests.read_move(lab.lab, move).state == "done"
    assert {(debt["host"], debt["step"]) for debt in lab.json("debt", "list")} == {
        ("host1", "stop_guest"),
        ("host1", "disconnect_guest"),
        ("host1", "remove_guest"),
    }
    lab.cli("move", "resume")
    assert_nothing_is_left(nova, move)


@pytest.mark.parametrize("step", ["mark_deleting", "remove_guest", "delete_ports", "settle_records"])
def test_the_delete_waits_for_an_evacuation_that_is_under_way(lab: Stage, nova: Acts, step: str) -> None:
    """Nothing more is deleted meanwhile; once it is over, the server is deleted where it is."""
    seen: list[Any] = []

    def begin() -> None:
        nova.begin_evacuate()
        seen.append((lab.standing(nova.name), nova.row))

    move = delete(nova, step, begin)
    rests = move_requests.read_move(lab.lab, move)
    assert (rests.state, rests.error_code) == ("needs-operator", "being-evacuated")
    assert seen == [(lab.standing(nova.name), nova.row)]
    nova.end_evacuate()
    assert nova.row["host"] == REFUGE
    assert ways_out.finish(lab, move) == ""
    assert_nothing_is_left(nova, move)


@pytest.mark.parametrize("step", ["stop_guest", "settle_records"])
def test_an_evacuation_that_hangs_keeps_no_delete(lab: Stage, nova: Acts, step: str) -> None:
    """Who was told of it and asks once more has the server deleted all the same, as by Nova's own delete."""
    move = delete(nova, step, nova.begin_evacuate)
    assert move_requests.read_move(lab.lab, move).error_code == "being-evacuated"
    assert ways_out.finish(lab, move) == ""
    assert_nothing_is_left(nova, move)
