"""Whole moves of a server with guaranteed ports over a real Placement and Neutron, which a real Keystone lets us into.

Hosts and rows are a lab's; Neutron's agents are rows with a heartbeat far in the future, and what they tell of their
bridges goes to Placement by Neutron's own code. What became of all is read from the services' own tables.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.servers import openstack_healer, openstack_lab, openstack_services
from support.servers.openstack_lab import CLOUD, OTHER, SERVER, USER
from support.servers.openstack_services import AWAY, HEARD, OpenStack

_EGRESS = "NET_BW_EGR_KILOBIT_PER_SEC"
_PROFILE = sa.text("UPDATE ml2_port_bindings SET profile = :profile WHERE port_id = :port")


@dataclasses.dataclass
class World:
    """A lab over the real services."""

    lab: Stage
    services: OpenStack
    configuration: Path

    def held(self, consumer: str) -> openstack_lab.Held:
        """Return what the consumer holds."""
        return openstack_lab.held(self.services).get(consumer, {})

    def bindings(self) -> list[tuple[str, str, list[str]]]:
        """Return host, status and the names of the providers of each binding of the server's ports."""
        return openstack_lab.bindings(self.services, self.lab.id_of(SERVER))

    def assert_on(self, host: str) -> None:
        """Assert that the server holds what it asks for of the host alone, and each port is bound there alone."""
        server = self.lab.server(SERVER)
        assert self.held(server.id) == openstack_lab.on(host, server.flavor)
        assert self.bindings() == openstack_lab.bound_on(host)
        self.lab.assert_balanced()


@pytest.fixture(scope="module", name="world")
def fixture_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("moves")
    with openstack_services.running(folder) as services:
        services.keystone.add_user(USER, "service", "admin")
        path = openstack_lab.configuration(services, folder / "droveway.conf")
        with openstack_lab.over(services, path), stage(folder / "lab", CLOUD) as lab, lab.running():
            yield World(lab, services, path)


@pytest.mark.parametrize("end", ["revert", "confirm"])
@pytest.mark.parametrize(
    ("operation", "host"),
    [
        ("resize", ""),
        ("migrate", "host2"),
        ("migrate", "host3"),
    ],
    ids=["resize", "migrate", "cross-cell"],
)
def test_a_move_takes_what_ports_are_guaranteed_with_it(world: World, operation: str, host: str, end: str) -> None:
    """The source's binding keeps its own providers until it goes, and a revert makes it again."""
    world.assert_on("host1")
    flavor = world.lab.server("fast").flavor
    wanted = ("--host", host) if host else ("--flavor", OTHER[flavor])
    world.lab.cli("server", operation, "fast", *wanted, "--wait")
    found = host or str(world.lab.server("fast").host)
    world.assert_on(found)
    assert world.held(world.lab.move("fast").id) == openstack_lab.on("host1", flavor)
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


def test_a_host_whose_agent_is_away_is_passed_over(world: World) -> None:
    """ML2 binds nothing there, so the alternate in the other cell gets the server, and that host holds nothing."""
    world.services.neutron.hear_agent("host2", AWAY)
    try:
        world.lab.cli("server", "migrate", "fast", "--wait")
    finally:
        world.services.neutron.hear_agent("host2", HEARD)
    world.assert_on("host3")
    world.lab.cli("server", "revert", "fast")
    world.assert_on("host1")


def test_what_ports_are_guaranteed_is_put_right_where_the_server_is(world: World) -> None:
    """R4-19: no move is needed; Neutron binds the ports again on their host, by the providers that are claimed."""
    lab, server = world.lab, world.lab.id_of("fast")
    placement, network = lab.lab.cloud.placement, lab.lab.cloud.network
    world.assert_on("host1")
    held = placement.allocations(server)
    ports = [port for port in network.listed_ports(server) if port.resources is not None]
    besides = {provider: amounts for provider, amounts in held.allocations.items() if "VCPU" in amounts}
    owner = {"project_id": held.project_id, "user_id": held.user_id}
    for kept, claims in ((held.allocations, False), (besides, True)):
        placement.ensure_allocation(server, kept, **owner)
        for port in ports:
            network.set_profile(port.id, {"trusted": "true"})
        told = lab.cli("audit", "--heal", "--yes")
        assert ("instead of nothing" in told) == claims, told
        world.assert_on("host1")
    for port in ports:
        network.set_profile(port.id, port.profile)


@pytest.mark.parametrize("profile", [1, 2])
def test_who_heals_is_killed_between_the_claim_and_the_profiles_and_the_next_goes_on(
    world: World, profile: int
) -> None:
    """R4-19: what was claimed stays and is not claimed again; the profiles that are left are written."""
    lab, server = world.lab, world.lab.id_of("fast")
    placement, network = lab.lab.cloud.placement, lab.lab.cloud.network
    world.assert_on("host1")
    held = placement.allocations(server)
    ports = [port for port in network.listed_ports(server) if port.resources is not None]
    besides = {provider: amounts for provider, amounts in held.allocations.items() if "VCPU" in amounts}
    placement.ensure_allocation(server, besides, project_id=held.project_id, user_id=held.user_id)
    for port in ports:
        network.set_profile(port.id, {"trusted": "true"})
    openstack_healer.killed(lab.root, world.configuration, profile=profile)
    assert world.held(server) == openstack_lab.on("host1", lab.server("fast").flavor)
    written = openstack_lab.generation(world.services, server)
    unnamed = [(host, status) for host, status, named in world.bindings() if not named]
    # The third port asks for nothing.
    assert unnamed == [("host1", "ACTIVE")] * (len(ports) - profile + 2)
    told = lab.cli("audit", "--heal", "--yes")
    assert "instead of nothing" not in told, told
    world.assert_on("host1")
    assert openstack_lab.generation(world.services, server) == written
    for port in ports:
        network.set_profile(port.id, port.profile)


def test_a_provider_that_was_named_before_there_were_groups_is_named_for_its_group(world: World) -> None:
    """What Neutron kept as a string, until somebody sanitizes it, becomes an object."""
    lab, server = world.lab, world.lab.id_of("fast")
    (port,) = [
        port
        for port in lab.lab.cloud.network.listed_ports(server)
        if port.resources is not None and len(port.resources.groups) == 2
    ]
    (bandwidth,) = [group.id for group in port.resources.groups if _EGRESS in group.resources] if port.resources else []
    told = json.dumps({"allocation": port.profile["allocation"][bandwidth]})
    world.services.neutron.write(_PROFILE, port=port.id, profile=told)
    assert "as before Neutron had groups" in lab.cli("audit", "--heal", "--yes")
    world.assert_on("host1")
