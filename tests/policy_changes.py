"""Somebody changes the QoS policies of a server's ports while it moves: Neutron writes what the server holds by itself.

It is planted before each step of each flow, in both directions, and where the server waits for verification.  The
policies that come have other amounts, no packet rate, or nothing at all.  The move ends as if nobody had done it, and
nothing of any amount is left anywhere else.  The embedded Neutron and a real one are both asked.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from support.labs.operations import Stage

from droveway.errors import StepError
from droveway.flows import registry
from droveway.lab import books

_BRIDGES: Final = "{bandwidth: {br-a: {physical_network: NET, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40}"
_PLACES: Final = {
    "hosts": ("net-a", "{cell1: {hosts: {host1: BRIDGES, host2: BRIDGES}}}"),
    "one host": ("net-b", "{cell1: {hosts: {host3: BRIDGES}}}"),
    "cells": ("net-c", "{cell1: {hosts: {host4: BRIDGES}}, cell2: {hosts: {host5: BRIDGES}}}"),
}
"""The physical network of each place, and its hosts: no name stands twice, so that labs may share a real Neutron."""
PLACES: Final = tuple(_PLACES)
_CLOUD: Final = """
options: {cross_cell: CROSS, allow_resize_to_same_host: SAME}
cells: CELLS
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0}
  large: {vcpus: 2, memory_mb: 512, root_gb: 0}
images: {base: {size_mb: 1}}
networks: {NET: {physical_network: NET}}
qos:
  gold: {egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}
  more: {egress_kbps: 1100, ingress_kbps: 1400, kpps: 12}
  thin: {egress_kbps: 900, ingress_kbps: 1600}
servers:
  web: {flavor: small, host: FIRST, image: base, ports: [{network: NET, qos: gold}, {network: NET}]}
"""
EGRESS, INGRESS, PACKETS = (
    "NET_BW_EGR_KILOBIT_PER_SEC",
    "NET_BW_IGR_KILOBIT_PER_SEC",
    "NET_PACKET_RATE_KILOPACKET_PER_SEC",
)
POLICIES: Final[Mapping[str, tuple[dict[str, int], dict[str, int]]]] = {
    "gold": ({EGRESS: 1000, INGRESS: 1500}, {PACKETS: 10}),
    "more": ({EGRESS: 1100, INGRESS: 1400}, {PACKETS: 12}),
    "thin": ({EGRESS: 900, INGRESS: 1600}, {}),
    "none": ({}, {}),
}
"""What each guarantees: bandwidth, and packet rates."""

MOVES: Final = ("migrate", "resize", "cross_cell_migrate")
OTHER: Final = {"host1": "host2", "host2": "host1", "host4": "host5", "host5": "host4"}
RESTS: Final = "verifying"
"""The boundary between the flow that moves the server and the one that ends the move."""


@dataclasses.dataclass(frozen=True)
class Life:
    """What is asked of the server, and in which flow somebody changes its policies."""

    place: str
    flow: str
    """The kind of the flow, whose steps are the boundaries."""
    end: str
    """How the move ends: confirm, revert, undone, or done for one that is not ended by its user."""
    fails_at: str = ""
    """The step behind which the flow fails, so that it is undone."""

    def __str__(self) -> str:
        return f"{self.place}-{self.flow}-{self.end}".replace(" ", "-")


LIVES: Final = (
    Life("hosts", "migrate", "confirm"),
    Life("hosts", "migrate", "revert"),
    Life("hosts", "migrate", "undone", "define_guest"),
    Life("hosts", "confirm", "confirm"),
    Life("hosts", "revert", "revert"),
    Life("hosts", "revert", "undone", "switch_records"),
    Life("one host", "resize", "confirm"),
    Life("one host", "resize", "revert"),
    Life("one host", "resize", "undone", "define_guest"),
    Life("one host", "revert", "revert"),
    Life("cells", "cross_cell_migrate", "confirm"),
    Life("cells", "cross_cell_migrate", "undone", "switch_mapping"),
    Life("cells", "cross_cell_revert", "revert"),
    Life("hosts", "shelve", "done"),
    Life("hosts", "shelve", "undone", "unbind_ports"),
    Life("hosts", "unshelve", "done"),
    Life("hosts", "unshelve", "undone", "define_guest"),
    Life("cells", "cross_cell_unshelve", "done"),
)


def boundaries(life: Life) -> Iterator[tuple[str, str]]:
    """Yield step and direction of each boundary at which somebody changes the policies."""
    steps = registry.latest(life.flow).by_name
    if life.end != "undone":
        yield from ((name, "execute") for name in steps)
        if life.flow in MOVES:
            yield RESTS, "execute"
        return
    ran = list(steps)[: list(steps).index(life.fails_at) + 1]
    yield from ((name, "revert") for name in reversed(ran) if not steps[name].no_undo)


CASES: Final = [(life, step, direction) for life in LIVES for step, direction in boundaries(life)]


def cloud_of(place: str) -> str:
    """Return the cloud file of the place."""
    network, cells = _PLACES[place]
    first = next(host for host in ("host1", "host3", "host4") if host in cells)
    text = _CLOUD.replace("CELLS", cells.replace("BRIDGES", _BRIDGES)).replace("NET", network).replace("FIRST", first)
    return text.replace("CROSS", str(place == "cells").lower()).replace("SAME", str(place == "one host").lower())


class Neutron(Protocol):
    """What is asked of Neutron and Placement beside the product."""

    def set_policies(self, server: str, policy: str) -> list[int]:
        """Give each port that has a policy this one, or none; the statuses of the answers."""

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Provider's name → class → amount of what ports ask for, from Placement's tables."""

    def bindings(self, server: str) -> list[tuple[str, str, dict[str, str]]]:
        """Host, status and group → provider's name of each binding of ports that had a policy when all began."""

    def asked(self, server: str) -> set[str]:
        """The groups that the server's ports ask for now."""


class Meddler:
    """The conductor's probe: it changes the policies at the boundary, once, and lets a flow fail behind a step."""

    def __init__(self, lab: Stage, neutron: Neutron) -> None:
        self.lab, self.neutron = lab, neutron
        self.at: tuple[str, str] | None = None
        self.fails_at = ""
        self.policy = ""
        self.answers: list[int] = []
        self.bound = ""

    def plant(self, step: str, direction: str, policy: str) -> None:
        """Let the boundary be met."""
        self.at, self.policy, self.answers = (step, direction), policy, []

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        if phase == "before" and (step, direction) == self.at:
            self.change()
        if phase == "after" and (step, direction) == (self.fails_at, "execute"):
            raise StepError("it fails", code="test")

    def change(self) -> None:
        """Change them now."""
        self.at = None
        server = self.lab.id_of("web")
        self.bound = next((host for host, status, _ in self.neutron.bindings(server) if status == "ACTIVE"), "")
        self.answers = self.neutron.set_policies(server, self.policy)


@dataclasses.dataclass
class World:
    """A running lab in one place, whose conductor's probe is the meddler."""

    lab: Stage
    neutron: Neutron
    meddler: Meddler

    def begin(self, life: Life) -> str:
        """Bring the server to where the flow begins, with the first policy; the host that it is on, or was."""
        home = str(self.lab.server("web").host)
        if "unshelve" in life.flow:
            self.lab.cli("server", "shelve", "web", "--wait")
        elif life.flow not in (*MOVES, "shelve"):
            self.ask(life, home)
        return home

    def ask(self, life: Life, home: str, code: int = 0) -> None:
        """Ask for the move itself."""
        if life.place == "one host":
            other = {"small": "large", "large": "small"}[self.lab.server("web").flavor]
            self.lab.cli("server", "resize", "web", "--flavor", other, "--wait", code=code)
        elif life.flow == "shelve":
            self.lab.cli("server", "shelve", "web", "--wait", code=code)
        elif "unshelve" in life.flow:
            cell = ["--to-cell", "cell2" if home == "host4" else "cell1"] if life.place == "cells" else []
            self.lab.cli("server", "unshelve", "web", "--host", OTHER[home], *cell, "--wait", code=code)
        else:
            self.lab.cli("server", "migrate", "web", "--host", OTHER[home], "--wait", code=code)

    def run(self, life: Life, step: str, direction: str) -> None:
        """Run the life with the change planted, and judge where everything is."""
        home = self.begin(life)
        policy = ("more", "thin", "none")[zlib.crc32(f"{life}{step}{direction}".encode()) % 3]
        self.meddler.fails_at = life.fails_at
        self.meddler.plant(step, direction, policy)
        ends = life.flow if life.flow in ("confirm", "revert") else life.flow.removeprefix("cross_cell_")
        if ends in ("confirm", "revert"):
            self.lab.cli("server", ends, "web", code=3 if life.fails_at else 0)
        else:
            self.ask(life, home, code=3 if life.fails_at else 0)
            if step == RESTS:
                self.meddler.change()
            if life.end in ("confirm", "revert"):
                self.lab.cli("server", life.end, "web")
        self.meddler.fails_at = ""
        assert self.meddler.at is None, "the boundary was not met"
        back = life.end == "revert" or (life.end == "undone" and ends not in ("confirm", "revert"))
        self.judge(life, home if back or life.place == "one host" else OTHER[home], policy)
        self.restore(life)

    def judge(self, life: Life, host: str, policy: str) -> None:
        """Nothing is held or bound elsewhere, and what is held on the host is of the one policy or of the other."""
        server, move = self.lab.id_of("web"), self.lab.move("web").id
        changed = self.meddler.answers and set(self.meddler.answers) == {200}
        gone = str(self.lab.server("web").host or "") == ""
        held = self.neutron.held(server)
        assert self.neutron.held(move) == {} or self.lab.move("web").state == "verifying"
        if gone:
            assert held == {}
            assert {(each[0], each[1]) for each in self.neutron.bindings(server)} == {("", "ACTIVE")}
            return
        assert {name.partition(":")[0] for name in held} <= {host}
        bandwidth, packets = POLICIES["gold"]
        kinds = {f"{host}:Open vSwitch agent:br-a": (0, bandwidth), f"{host}:Open vSwitch agent": (1, packets)}
        fresh = changed and self.meddler.bound == host and life.place != "one host"
        for provider, (kind, old) in kinds.items():
            new = POLICIES[policy][kind] if changed else old
            assert held.get(provider, {}) in ([new] if fresh else [old, new]), (provider, self.meddler.bound)
        asked = self.neutron.asked(server)
        for found, status, named in self.neutron.bindings(server):
            assert (found, status) == (host, "ACTIVE")
            assert {name.partition(":")[0] for name in named.values()} <= {host}
            assert named.keys() <= asked
        names = {group for _, _, named in self.neutron.bindings(server) for group in named}
        assert names == asked

    def restore(self, life: Life) -> None:
        """End what waits, and let the server hold again what its first policy asks for."""
        if self.lab.move("web").state == "verifying":
            self.lab.cli("server", "confirm", "web")
        if self.lab.server("web").host is None:
            self.neutron.set_policies(self.lab.id_of("web"), "gold")
            self.lab.cli("server", "unshelve", "web", "--wait")
        else:
            # What a move leads to is claimed by what is asked for now.
            self.neutron.set_policies(self.lab.id_of("web"), "gold")
            self.ask(dataclasses.replace(life, flow="migrate"), str(self.lab.server("web").host))
            self.lab.cli("server", "confirm", "web")
        # Other labs may have ports in the same Neutron, of servers that this one does not know.
        found = books.balance(self.lab.lab).findings
        assert [each.detail for each in found if each.server == self.lab.id_of("web")] == []
