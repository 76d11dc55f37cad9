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
from support.servers.openstack_services import Keystone, Neutron

from droveway.clients import sessions
from droveway.clients.configured import Services
from droveway.clients.network import Network
from droveway.conf import settings
from droveway.errors import Refused

DROVEWAY, NO_ADMIN, NO_SERVICE = "droveway", "lacks-admin", "lacks-service"


@pytest.fixture(scope="module", name="services")
def fixture_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keystone, Neutron]]:
    with openstack_services.running(tmp_path_factory.mktemp("openstack")) as (keystone, neutron):
        for host, physical in ((HERE, REACHED), (THERE, REACHED), (ELSEWHERE, UNREACHED), (SILENT, REACHED)):
            neutron.add_agent(host, {BRIDGE: physical}, [] if host == SILENT else [BRIDGE])
        keystone.add_user(DROVEWAY, "service", "admin")
        keystone.add_user(NO_ADMIN, "service")
        keystone.add_user(NO_SERVICE, "admin")
        yield keystone, neutron


def configured(folder: Path, keystone: Keystone, user: str) -> Path:
    """A configuration by which Neutron is asked as this user."""
    path = folder / f"{user}.conf"
    told = "".join(f"{name} = {value}\n" for name, value in keystone.auth(user).items())
    path.write_text(f"[neutron]\n{told}")
    return path


@pytest.fixture(scope="module", name="network_id")
def fixture_network_id(services: tuple[Keystone, Neutron], tmp_path_factory: pytest.TempPathFactory) -> str:
    conf = settings.load_deployment(configured(tmp_path_factory.mktemp("network"), services[0], DROVEWAY))
    return Network(sessions.Proxy(conf, "neutron", version="2")).create_network("net1", REACHED)


class TestRealNeutron(NetworkContract):
    """Each case of the contract, over HTTP."""

    @pytest.fixture
    def world(self, services: tuple[Keystone, Neutron], network_id: str, tmp_path: Path) -> World:
        conf = settings.load_deployment(configured(tmp_path, services[0], DROVEWAY))
        return World(Tampered(sessions.Proxy(conf, "neutron", version="2")), network_id)


@pytest.mark.parametrize(("user", "role"), [(NO_ADMIN, "admin"), (NO_SERVICE, "service")])
def test_a_role_that_was_taken_away_is_named(
    services: tuple[Keystone, Neutron], network_id: str, tmp_path: Path, user: str, role: str
) -> None:
    """As the doctor asks: Neutron leaves a key out, or refuses, and the sentence says what to mend."""
    conf = settings.load_deployment(configured(tmp_path, services[0], DROVEWAY))
    world = World(Tampered(sessions.Proxy(conf, "neutron", version="2")), network_id)
    port = world.make(HERE)
    try:
        lacking = Services(settings.load_deployment(configured(tmp_path, services[0], user)))
        with pytest.raises(Refused, match=f"the user {user} of .neutron. lacks the role {role}"):
            lacking.require_answer("neutron")
        Services(conf).require_answer("neutron")
    finally:
        world.network.delete_port(port)
