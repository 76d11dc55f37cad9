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
        found = None if policy == "none" else next(self.network.qos_policies(name=policy)).id
        answer = self.network.put(f"/ports/{self.port}", json={"port": {"qos_policy_id": found}})
        return [answer.status_code]

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
        yield worlds


@pytest.mark.parametrize(("life", "step", "direction"), [each for each in CASES if each[0].place in PLACES], ids=str)
def test_a_move_ends_though_a_policy_was_changed(
    worlds: dict[str, World], life: Life, step: str, direction: str
) -> None:
    worlds[life.place].run(life, step, direction)
    assert set(worlds[life.place].meddler.answers) <= {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}
