"""The allocations of both consumers, read before and after each step of each flow in both directions."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import pytest
from support.labs.operations import Amounts, Stage, stage

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault
from droveway.flows import registry
from droveway.persistence.nova import catalog
from droveway.persistence.nova.cell import Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {vcpus: 2, memory_mb: 512, allocation_ratio: {VCPU: 1.0}}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  one: {flavor: small, host: host1, image: base}
  two: {flavor: small, host: host1, image: base}
  three: {flavor: small, host: host1, image: base}
"""
SERVERS = ["one", "three", "two", "web"]
SMALL = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}
LARGE = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 2}
BEFORE = ({"host1": SMALL}, {})
MOVING = ({"host2": LARGE}, {"host1": SMALL})
# By flow and direction: the step that changes what both consumers hold, and what they hold before and after it.
TURNS = {
    ("resize", "execute"): ("claim", BEFORE, MOVING),
    ("resize", "revert"): ("claim", MOVING, BEFORE),
    ("confirm", "execute"): ("release_source_allocation", MOVING, ({"host2": LARGE}, {})),
    ("confirm", "revert"): (None, MOVING, MOVING),
    ("revert", "execute"): ("return_allocation", MOVING, BEFORE),
    ("revert", "revert"): (None, MOVING, MOVING),
}


@dataclasses.dataclass(frozen=True)
class Look:
    """What both consumers hold at one moment, what each host's provider counts, and where the server's things are."""

    step: str
    direction: str
    phase: str
    server: dict[str, Amounts]
    migration: dict[str, Amounts]
    used: dict[str, Amounts]
    present: set[str]
    listed: list[str]
    """The names of the servers, as a list shows them."""


class Looker:
    """Looks whenever the conductor begins or ends a step; lets one step fail with a proof that it did nothing."""

    def __init__(self, lab: Stage, name: str) -> None:
        self.lab = lab
        self.looks: list[Look] = []
        self.fails = ""
        self._server = lab.id_of(name)
        self._nodes = {host.name: host.node for host in catalog.hosts(lab.lab.api, lab.lab.cell_databases)}
        self._lock = threading.Lock()

    def __call__(self, move: str, step: str, direction: str, phase: str) -> None:
        with self._lock:
            self.looks.append(self.look(move, step, direction, phase))
        if (step, direction, phase) == (self.fails, "execute", "before"):
            raise DestinationFault(f"{step} was made to fail", code="fault")

    def look(self, move: str, step: str, direction: str, phase: str) -> Look:
        used = {host: self.lab.lab.cloud.placement.provider_usages(node) for host, node in self._nodes.items()}
        present = {host for host in self._nodes if list(self.lab.root.glob(f"hosts/{host}/instances/{self._server}*"))}
        listed = [server.name for server in catalog.servers(self.lab.lab.api, self.lab.lab.cell_databases)]
        return Look(step, direction, phase, self.lab.held(self._server), self.lab.held(move), used, present, listed)


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("books") / "lab", CLOUD) as made:
        yield made


def run(lab: Stage, kind: str, fails: str = "") -> list[Look]:
    """Carry one flow of the server's move to its rest, looking at each step."""
    looker = Looker(lab, "web")
    looker.fails = fails
    if kind == "resize":
        move = submit(lab.lab, MoveSpec(server="web", flavor="large")).id
    else:
        move = lab.move("web").id
        with lab.lab.journal.write() as session:
            getattr(move_requests, kind)(session, session.get_one(type(lab.move("web")), move))
    with lab.running(looker):
        move_requests.carry(lab.lab, move)
    return looker.looks


def assert_books(kind: str, direction: str, looks: list[Look]) -> None:
    """Both consumers hold what they should at every look; nobody holds less than what is really there."""
    turn, early, late = TURNS[kind, direction]
    turned = False
    for look in looks:
        if (look.step, look.phase) == (turn, "after"):
            turned = True
        in_the_step = look.step == turn and look.phase != "after" and not turned
        allowed = [late] if turned else [early, late] if in_the_step and look.phase != "before" else [early]
        assert (look.server, look.migration) in allowed, look
        # The server's own consumer never holds two hosts, and is never without an allocation.
        assert len(look.server) == 1, look
        owned = {**look.server, **look.migration}
        for host, held in owned.items():
            others = {"host1": 3}.get(host, 0)
            assert look.used[host]["VCPU"] == held["VCPU"] + others, look
        assert look.present <= set(owned), look
        # Whatever is written, a list shows each server once.
        assert look.listed == SERVERS, look


def split(looks: list[Look]) -> tuple[list[Look], list[Look]]:
    return (
        [look for look in looks if look.direction == "execute"],
        [each for each in looks if each.direction != "execute"],
    )


def test_the_books_at_every_step_of_every_flow(lab: Stage) -> None:
    """R3-01, R3-02, R3-04, R3-05, R3-07, R3-08, R3-09, R3-15: each step of each flow, in both directions."""
    lab.cli("host", "disable", "host3")
    for kind, outcome in (
        ("resize", "failed"),
        ("resize", "verifying"),
        ("revert", "verifying"),
        ("confirm", "verifying"),
    ):
        graph = registry.latest(kind)
        names = graph.names()
        no_return = graph.no_return.step_name()
        undone = outcome == "failed" or kind != "resize"
        fails = "check_source" if kind == "confirm" else no_return if undone else ""
        looks = run(lab, kind, fails)
        forward, backward = split(looks)
        reached = names[: names.index(fails) + 1] if fails else names
        assert list(dict.fromkeys(look.step for look in forward if look.step in names)) == reached
        assert_books(kind, "execute", [look for look in forward if look.step in names])
        assert_books(kind, "revert", backward)
        if undone:
            back = [step for step in reversed(reached[:-1]) if step in {each.step for each in backward}]
            assert (
                list(dict.fromkeys(each.step for each in backward if each.step in names and each.step != fails)) == back
            )
            assert set(back) >= {"mark_confirming", "mark_reverting", "claim", "accept"} & set(names)
        assert lab.move("web").state == outcome
        lab.assert_balanced()
    for kind, end in (("revert", "reverted"), ("resize", "verifying"), ("confirm", "done")):
        looks = run(lab, kind)
        names = registry.latest(kind).names()
        assert list(dict.fromkeys(look.step for look in looks if look.step in names)) == names
        assert_books(kind, "execute", [look for look in looks if look.step in names])
        assert lab.move("web").state == end
        lab.assert_balanced()
    lab.cli("host", "enable", "host3")
    with lab.lab.cell_databases["cell1"].read() as session:
        assert lab.move("web").id in {row.uuid for row in session.query(Migration)}


def test_of_several_moves_for_the_last_slot_one_wins(lab: Stage) -> None:
    """R0-19, R3-04: no provider is ever used beyond its capacity, whoever loses ends elsewhere or as it was."""
    lab.cli("host", "disable", "host2")
    names = ("one", "two", "three")
    looker = Looker(lab, "one")
    moves = [submit(lab.lab, MoveSpec(server=name, flavor="large")).id for name in names]
    with lab.running(looker):
        ended = [move_requests.carry(lab.lab, move) for move in moves]
    lab.cli("host", "enable", "host2")
    assert sorted(move.state for move in ended) == ["failed", "failed", "verifying"]
    winner = names[[move.state for move in ended].index("verifying")]
    assert lab.standing(winner).held == {"host3": LARGE}
    for name, move in zip(names, ended, strict=True):
        if name != winner:
            assert (lab.standing(name).held, lab.standing(name).status) == ({"host1": SMALL}, "ACTIVE")
            assert lab.held(move.id) == {}
            assert "host3" in str(move.error)
    assert max(look.used["host3"]["VCPU"] for look in looker.looks) == 2
    assert max(look.used["host3"]["MEMORY_MB"] for look in looker.looks) == 512
    lab.assert_balanced()
