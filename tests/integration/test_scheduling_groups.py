"""Server groups from end to end: the choice, and the second look once the destination is claimed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, stage

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import cloud, operations

CLOUD = """
cells:
  cell1:
    hosts: {host1: {}, host2: {}, host3: {}, host4: {}, host5: {}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
groups:
  apart: {policy: anti-affinity}
  pairs: {policy: anti-affinity, max_server_per_host: 2}
  together: {policy: affinity}
servers:
  red: {flavor: small, host: host1, image: base, ports: [{}], group: apart}
  blue: {flavor: small, host: host2, image: base, state: stopped, group: apart}
  one: {flavor: small, host: host1, image: base, state: stopped, group: pairs}
  two: {flavor: small, host: host2, image: base, state: stopped, group: pairs}
  three: {flavor: small, host: host2, image: base, state: stopped, group: pairs}
  lone: {flavor: small, host: host1, image: base, group: together}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("groups") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers where they were."""
    yield built
    built.bring_back()
    built.assert_balanced()


class Meeting:
    """The probe of a conductor: the moves wait for each other before each of the steps is first carried out."""

    def __init__(self, parties: int, *steps: str) -> None:
        self.barriers = {step: threading.Barrier(parties, timeout=180) for step in steps}
        self.met: set[tuple[str, str]] = set()

    def __call__(self, move: str, step: str, direction: str, phase: str) -> None:
        if step in self.barriers and (direction, phase) == ("execute", "before") and (move, step) not in self.met:
            self.met.add((move, step))
            self.barriers[step].wait()


def left_out(lab: Stage, server: str) -> dict[str, tuple[str, str]]:
    """Host → filter and reason of everyone that a plan leaves out."""
    checks = lab.json("move", "plan", server)["checks"]
    return {check["host"]: (check["check"], check["detail"]) for check in checks if not check["ok"]}


def test_the_second_of_two_moves_that_meet_on_one_host_goes_elsewhere(lab: Stage) -> None:
    """Both claim host3, each scheduled before the other was seen: the group's policy is asked again there."""
    moves = {name: submit(lab.lab, MoveSpec(server=name)).id for name in ("red", "blue")}
    with lab.running(probe=Meeting(2, "claim", "record_destination")):
        ended = {name: move_requests.carry(lab.lab, move) for name, move in moves.items()}
    assert {move.state for move in ended.values()} == {"verifying"}
    assert sorted((move.attempt, move.dest_host) for move in ended.values()) == [(1, "host3"), (2, "host4")]
    loser = next(move for move in ended.values() if move.attempt == 2)
    failed = [step for step in lab.history(loser.id) if step.error]
    assert [(step.step, step.attempt) for step in failed] == [("record_destination", 1)]
    assert failed[0].error == {
        "code": "group-policy",
        "fault": "destination",
        "host": "host3",
        "message": f"host host3 cannot take {loser.server_name} any more: its anti-affinity group may have 1 on a "
        "host, and this one has 1 (ServerGroupAntiAffinityFilter)",
    }
    assert {lab.standing(name).host for name in moves} == {"host3", "host4"}
    shown = lab.json("move", "show", loser.id)["left_out"]
    assert {each["host"]: each["filter"] for each in shown} == {
        "host1": "ServerGroupAntiAffinityFilter" if loser.server_name == "blue" else "IgnoreHosts",
        "host2": "ServerGroupAntiAffinityFilter" if loser.server_name == "red" else "IgnoreHosts",
        "host3": "group-policy",
    }
    page = lab.cli("move", "show", loser.id)
    assert f"host      host3 failed: {failed[0].error['message']}\n" in page
    chosen = next(row for row in lab.json("move", "history", loser.id) if row["step"] == "choose_destinations")
    assert set(chosen["result"]["rejected"]) == {"host1", "host2"}
    assert "host3, then host4, then host5" in lab.cli("move", "history", loser.id)
    assert "not host1: " in lab.cli("move", "history", loser.id)


def test_a_host_is_kept_free_for_the_revert_of_a_member(lab: Stage) -> None:
    """While red may still be reverted to host1, blue cannot go there; nor to where red is now."""
    lab.cli("server", "migrate", "red", "--host", "host5")
    found = left_out(lab, "blue")
    assert {host: why[0] for host, why in found.items()} == {
        "host1": "ServerGroupAntiAffinityFilter",
        "host2": "IgnoreHosts",
        "host5": "ServerGroupAntiAffinityFilter",
    }
    lab.cli("server", "revert", "red")
    assert set(left_out(lab, "blue")) == {"host1", "host2"}


def test_max_server_per_host_is_heeded(lab: Stage) -> None:
    assert set(left_out(lab, "one")) == {"host1", "host2"}
    assert left_out(lab, "one")["host2"] == (
        "ServerGroupAntiAffinityFilter",
        "host2 is left out: its anti-affinity group may have 2 on a host, and this one has 2",
    )
    # One beside another is allowed.
    assert set(left_out(lab, "two")) == {"host2"}


def test_a_move_away_from_a_member_that_came_meanwhile_is_refused_everywhere(lab: Stage) -> None:
    """Lone when it was scheduled, with company when its destinations are claimed: it stays."""
    before = lab.standing("lone")
    spec = cloud.Server(flavor="small", host="host1", image="base", state="stopped", group="together")
    move = submit(lab.lab, MoveSpec(server="lone")).id

    def company(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("choose_destinations", "execute", "after"):
            operations.create_server(lab.lab, "company", spec)

    with lab.running(probe=company):
        ended = move_requests.carry(lab.lab, move)
    assert (ended.state, ended.error_code, ended.attempt) == ("failed", "group-policy", 3)
    assert "its affinity group is on host1 (ServerGroupAffinityFilter)" in str(ended.error)
    assert lab.standing("lone") == before
    lab.cli("lab", "server", "delete", "company")
