"""A real Neutron, which a real Keystone lets us into, keeps the contract that the embedded one keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network_contract import (
    BRIDGE,
    ELSEWHERE,
    HERE,
    REACHED,
    SILENT,
    THERE,
    UNREACHED,
    NetworkContract,
    Tampered,
    World,
)
from support.servers import openstack_services
from support.servers.openstack_services import Keystone, OpenStack

from droveway.clients import sessions
from droveway.clients.configured import Services
from droveway.clients.network import Network
from droveway.conf import settings
from droveway.errors import Refused

DROVEWAY, NO_ADMIN, NO_SERVICE = "droveway", "lacks-admin", "lacks-service"


@pytest.fixture(scope="module", name="services")
def fixture_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStack]:
    with openstack_services.running(tmp_path_factory.mktemp("openstack")) as running:
        given = {BRIDGE: {"egress": 10000, "ingress": 10000}}
        for host, physical in ((HERE, REACHED), (THERE, REACHED), (ELSEWHERE, UNREACHED), (SILENT, REACHED)):
            running.neutron.add_agent(host, {BRIDGE: physical}, {} if host == SILENT else given, kpps=100)
        running.keystone.add_user(DROVEWAY, "service", "admin")
        running.keystone.add_user(NO_ADMIN, "service")
        running.keystone.add_user(NO_SERVICE, "admin")
        yield running


def configured(folder: Path, keystone: Keystone, user: str) -> Path:
    """A configuration by which Neutron is asked as this user."""
    path = folder / f"{user}.conf"
    path.write_text(keystone.section("neutron", user))
    return path


@pytest.fixture(scope="module", name="network_id")
def fixture_network_id(services: OpenStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    conf = settings.load_deployment(configured(tmp_path_factory.mktemp("network"), services.keystone, DROVEWAY))
    return Network(sessions.Neutron(conf)).create_network("net1", REACHED)


class TestRealNeutron(NetworkContract):
    """Each case of the contract, over HTTP."""

    @pytest.fixture
    def world(self, services: OpenStack, network_id: str, tmp_path: Path) -> World:
        conf = settings.load_deployment(configured(tmp_path, services.keystone, DROVEWAY))
        return World(Tampered(sessions.Neutron(conf)), network_id)


@pytest.mark.parametrize(("user", "role"), [(NO_ADMIN, "admin"), (NO_SERVICE, "service")])
def test_a_role_that_was_taken_away_is_named(
    services: OpenStack, network_id: str, tmp_path: Path, user: str, role: str
) -> None:
    """As the doctor asks: Neutron leaves a key out, or refuses, and the sentence says what to mend."""
    conf = settings.load_deployment(configured(tmp_path, services.keystone, DROVEWAY))
    world = World(Tampered(sessions.Neutron(conf)), network_id)
    port = world.make(HERE)
    try:
        lacking = Services(settings.load_deployment(configured(tmp_path, services.keystone, user)))
        with pytest.raises(Refused, match=f"the user {user} of .neutron. lacks the role {role}"):
            lacking.require_answer("neutron")
        Services(conf).require_answer("neutron")
    finally:
        world.network.delete_port(port)
