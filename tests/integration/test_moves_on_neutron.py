"""Whole moves of a server with guaranteed ports whose Neutron is a real one, which a real Keystone lets us into.

Hosts, rows and Placement are a lab's; Neutron's agents are rows with a heartbeat far in the future. What became of the
ports is read from Neutron's own tables.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.servers import openstack_services
from support.servers.openstack_services import Keystone, Neutron

from droveway.clients import sessions
from droveway.clients.embedded import cloud as embedded
from droveway.clients.network import Network
from droveway.conf import settings

BRIDGES = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000},"
    " br-b: {physical_network: net-b, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
)
CLOUD = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {{{BRIDGES}}}, host2: {{{BRIDGES}}}}}}}
  cell2: {{hosts: {{host3: {{{BRIDGES}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}, b: {{physical_network: net-b}}}}
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}, old: {{egress_kbps: 500, ingress_kbps: 600}}}}
servers:
  fast:
    flavor: small
    host: host1
    image: base
    ports: [{{network: a, qos: gold}}, {{network: b, qos: old}}, {{network: a}}]
"""
AGENT = "Open vSwitch agent"
EGRESS, INGRESS, PACKETS = (
    "NET_BW_EGR_KILOBIT_PER_SEC",
    "NET_BW_IGR_KILOBIT_PER_SEC",
    "NET_PACKET_RATE_KILOPACKET_PER_SEC",
)
_ALLOCATIONS = (
    "SELECT resource_providers.name, resource_classes.name, used FROM allocations"
    " JOIN resource_providers ON resource_providers.id = resource_provider_id"
    " JOIN resource_classes ON resource_classes.id = resource_class_id WHERE consumer_id = ?"
)
_BINDINGS = sa.text(
    "SELECT ports.id, host, profile, ml2_port_bindings.status FROM ports"
    " JOIN ml2_port_bindings ON port_id = ports.id WHERE device_id = :server ORDER BY ports.id"
)


@dataclasses.dataclass
class World:
    """A lab over a real Neutron."""

    lab: Stage
    neutron: Neutron

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Provider's name → class → amount, of what ports ask for, from Placement's tables."""
        found: dict[str, dict[str, int]] = {}
        with sqlite3.connect(self.lab.lab.layout.root / "placement.sqlite") as rows:
            for name, resource, used in rows.execute(_ALLOCATIONS, (consumer,)):
                if resource.startswith("NET_"):
                    found.setdefault(name, {})[resource] = used
        return found

    def bindings(self) -> list[tuple[str, str, list[str]]]:
        """Host, status and the names of the providers of each binding of the server's ports, from Neutron's tables."""
        with sqlite3.connect(self.lab.lab.layout.root / "placement.sqlite") as rows:
            names = dict(rows.execute("SELECT uuid, name FROM resource_providers"))
        found = []
        for row in self.neutron.rows(_BINDINGS, server=self.lab.id_of("fast")):
            given = json.loads(row.profile or "{}").get("allocation") or {}
            found.append((row.host, row.status, sorted(names[each] for each in given.values())))
        return sorted(found)

    def assert_on(self, host: str) -> None:
        """The server holds what its ports ask for on the host alone, and each port is bound there alone."""
        assert self.held(self.lab.id_of("fast")) == _on(host)
        assert self.bindings() == sorted(
            [
                (host, "ACTIVE", []),
                (host, "ACTIVE", [f"{host}:{AGENT}", f"{host}:{AGENT}:br-a"]),
                (host, "ACTIVE", [f"{host}:{AGENT}:br-b"]),
            ]
        )
        self.lab.assert_balanced()


def _on(host: str) -> dict[str, dict[str, int]]:
    return {
        f"{host}:{AGENT}:br-a": {EGRESS: 1000, INGRESS: 1500},
        f"{host}:{AGENT}:br-b": {EGRESS: 500, INGRESS: 600},
        f"{host}:{AGENT}": {PACKETS: 10},
    }


@pytest.fixture(scope="module", name="services")
def fixture_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keystone, Neutron]]:
    with openstack_services.running(tmp_path_factory.mktemp("openstack")) as (keystone, neutron):
        bridges = {"br-a": "net-a", "br-b": "net-b"}
        for host in ("host1", "host2", "host3"):
            neutron.add_agent(host, bridges, list(bridges))
        keystone.add_user("droveway", "service", "admin")
        yield keystone, neutron


@pytest.fixture(scope="module", name="world")
def fixture_world(services: tuple[Keystone, Neutron], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keystone, neutron = services
    folder = tmp_path_factory.mktemp("moves")
    told = "".join(f"{name} = {value}\n" for name, value in keystone.auth("droveway").items())
    (folder / "neutron.conf").write_text(f"[neutron]\n{told}")
    conf = settings.load_deployment(folder / "neutron.conf")
    made = embedded.embedded_cloud

    def over_neutron(**parts: Any) -> embedded.EmbeddedCloud:
        return dataclasses.replace(made(**parts), network=Network(sessions.Proxy(conf, "neutron", version="2")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "embedded_cloud", over_neutron)
        with stage(folder / "lab", CLOUD) as lab, lab.running():
            yield World(lab, neutron)


@pytest.mark.parametrize("end", ["revert", "confirm"])
@pytest.mark.parametrize(
    ("words", "host"),
    [
        (("resize", "fast", "--flavor", "large"), ""),
        (("migrate", "fast", "--host", "host2"), "host2"),
        (("migrate", "fast", "--host", "host3"), "host3"),
    ],
    ids=["resize", "migrate", "cross-cell"],
)
def test_a_move_takes_what_ports_are_guaranteed_with_it(
    world: World, words: tuple[str, ...], host: str, end: str
) -> None:
    """The source's binding keeps its own providers until it goes, and a revert makes it again."""
    world.assert_on("host1")
    world.lab.cli("server", *words, "--wait")
    found = host or str(world.lab.server("fast").host)
    world.assert_on(found)
    assert world.held(world.lab.move("fast").id) == _on("host1")
    world.lab.cli("server", end, "fast")
    assert world.held(world.lab.move("fast").id) == {}
    if end == "confirm":
        world.assert_on(found)
        world.lab.cli("server", "migrate", "fast", "--host", "host1", "--wait")
        world.lab.cli("server", "confirm", "fast")
    world.assert_on("host1")


@pytest.mark.parametrize("step", ["reserve_ports", "move_ports", "define_guest"])
def test_a_move_that_fails_leaves_neutron_as_it_was(world: World, step: str) -> None:
    world.lab.arm(step, "fail", phase="after")
    world.lab.cli("server", "migrate", "fast", "--host", "host2", "--wait", code=3)
    world.assert_on("host1")


def test_a_shelved_server_is_bound_nowhere_and_comes_back_in_another_cell(world: World) -> None:
    world.lab.cli("server", "shelve", "fast", "--wait")
    assert world.held(world.lab.id_of("fast")) == {}
    assert world.bindings() == [("", "ACTIVE", [])] * 3
    world.lab.assert_balanced()
    world.lab.cli("server", "unshelve", "fast", "--to-cell", "cell2", "--wait")
    world.assert_on("host3")
    world.lab.cli("server", "migrate", "fast", "--host", "host1", "--wait")
    world.lab.cli("server", "confirm", "fast")
    world.assert_on("host1")
