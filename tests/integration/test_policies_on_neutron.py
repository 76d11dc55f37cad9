"""QoS policies that change in the middle of moves, over a real Neutron that writes into a real Placement."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import sqlalchemy as sa
from policy_changes import CASES, Life, Meddler, World, cloud_of
from support.labs.operations import Stage, stage
from support.servers import openstack_lab, openstack_services
from support.servers.openstack_services import OpenStack

from droveway.lab import build

PLACES = ("one host", "cells")
"""Within a cell ports go from host to host by the same steps as between cells."""

_GUARANTEED = sa.text(
    "SELECT port_id FROM qos_port_policy_bindings JOIN ports ON ports.id = port_id WHERE device_id = :server"
)
_BINDINGS = sa.text("SELECT host, status, profile FROM ml2_port_bindings WHERE port_id = :port")
_PROVIDERS = sa.text("SELECT uuid, name FROM resource_providers")


class Real:
    """The real services, read from their tables."""

    def __init__(self, lab: Stage, services: OpenStack, network: Any) -> None:
        self.services, self.network = services, network
        (row,) = services.neutron.rows(_GUARANTEED, server=lab.id_of("web"))
        self.port = row.port_id

    def set_policies(self, server: str, policy: str) -> list[int]:
        """Give the port that has a policy this one, or none."""
        return [set_policy(self.network, f"/ports/{self.port}", policy)]

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Provider's name → class → amount of what ports ask for."""
        held = openstack_lab.held(self.services).get(consumer, {})
        found = {
            provider: {name: used for name, used in amounts.items() if name.startswith("NET_")}
            for provider, amounts in held.items()
        }
        return {provider: amounts for provider, amounts in found.items() if amounts}

    def bindings(self, server: str) -> list[tuple[str, str, dict[str, str]]]:
        """Host, status and group → provider's name of each binding of the port."""
        names = {row.uuid: row.name for row in self.services.placement.rows(_PROVIDERS)}
        found = []
        for row in self.services.neutron.rows(_BINDINGS, port=self.port):
            given = json.loads(row.profile or "{}").get("allocation") or {}
            found.append((row.host, row.status, {group: names[each] for group, each in given.items()}))
        return found

    def asked(self, server: str) -> set[str]:
        """The groups that the port asks for, as Neutron tells."""
        told = self.network.get(f"/ports/{self.port}").json()["port"]["resource_request"]
        return {group["id"] for group in (told or {}).get("request_groups", ())}


class OfNetwork(Real):
    """The same where the port has no policy of its own, and its network has one."""

    def __init__(self, lab: Stage, services: OpenStack, network: Any) -> None:
        self.services, self.network = services, network
        (self.port,) = openstack_lab.ports(services, lab.id_of("web"))

    def set_policies(self, server: str, policy: str) -> list[int]:
        """Give the port's network this policy, or none."""
        on = next(self.network.networks(name="net-a")).id
        return [set_policy(self.network, f"/networks/{on}", policy)]


def set_policy(network: Any, path: str, policy: str) -> int:
    """Give a port or a network the policy, or none; the status of the answer."""
    found = None if policy == "none" else next(network.qos_policies(name=policy)).id
    kind = path.split("/")[1].removesuffix("s")
    return int(network.put(path, json={kind: {"qos_policy_id": found}}).status_code)


@contextlib.contextmanager
def network_policy(network: Any) -> Iterator[None]:
    """Let the network have its first policy before a lab makes the server, whose port is then bound by that."""
    create = build.servers.create

    def late(lab: Any, name: str, spec: Any) -> str:
        assert set_policy(network, f"/networks/{next(network.networks(name='net-a')).id}", "gold") == HTTPStatus.OK
        return create(lab, name, spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build.servers, "create", late)
        yield


@pytest.fixture(scope="module", name="worlds")
def fixture_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """A lab in each place, which runs; Placement and Neutron are the same ones."""
    folder = tmp_path_factory.mktemp("policies")
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(openstack_services.running(folder))
        services.keystone.add_user(openstack_lab.USER, "service", "admin")
        path = openstack_lab.configuration(services, folder / "droveway.conf")
        stack.enter_context(openstack_lab.over(services, path))
        network = services.keystone.connection(openstack_lab.USER).network
        worlds = {}
        for place in PLACES:
            lab = stack.enter_context(stage(folder / place.replace(" ", "-"), cloud_of(place)))
            meddler = Meddler(lab, Real(lab, services, network))
            stack.enter_context(lab.running(meddler))
            worlds[place] = World(lab, meddler.neutron, meddler)
        bare = cloud_of("hosts").replace("[{network: net-a, qos: gold}, {network: net-a}]", "[{network: net-a}]")
        with network_policy(network):
            lab = stack.enter_context(stage(folder / "of-network", bare))
        meddler = Meddler(lab, OfNetwork(lab, services, network))
        stack.enter_context(lab.running(meddler))
        worlds["hosts"] = World(lab, meddler.neutron, meddler)
        yield worlds


@pytest.mark.parametrize(("life", "step", "direction"), [each for each in CASES if each[0].place in PLACES], ids=str)
def test_a_move_ends_though_a_policy_was_changed(
    worlds: dict[str, World], life: Life, step: str, direction: str
) -> None:
    worlds[life.place].run(life, step, direction)
    assert set(worlds[life.place].meddler.answers) <= {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}


OF_NETWORK = [
    (Life("hosts", "migrate", "confirm"), "claim", "execute"),
    (Life("hosts", "migrate", "confirm"), "reserve_ports", "execute"),
    (Life("hosts", "migrate", "confirm"), "move_ports", "execute"),
    (Life("hosts", "migrate", "confirm"), "verifying", "execute"),
    (Life("hosts", "migrate", "revert"), "verifying", "execute"),
    (Life("hosts", "migrate", "undone", "define_guest"), "move_ports", "revert"),
]
"""Where a network's policy is changed: Neutron then writes the profiles of all bindings of its ports."""


@pytest.mark.parametrize(("life", "step", "direction"), OF_NETWORK, ids=str)
def test_a_move_ends_though_the_policy_of_a_network_was_changed(
    worlds: dict[str, World], life: Life, step: str, direction: str
) -> None:
    worlds[life.place].run(life, step, direction)
    assert worlds[life.place].meddler.answers == [HTTPStatus.OK]
