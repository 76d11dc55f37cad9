"""A real Keystone that is not well, or does not know us, and services that are busy: what a move does then.

Relays stand between Droveway and the real services. They keep what passes, and answer in a service's place what the
service itself would only say when it is in trouble.
"""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import daemons
from support.daemons.daemons import Installation
from support.labs.operations import Stage, stage
from support.servers import openstack_lab, openstack_services, zookeeper_server
from support.servers.certificates import Authority
from support.servers.openstack_lab import CLOUD, SERVER, USER
from support.servers.openstack_services import OpenStack
from support.servers.relay import Relay, running_relay

from droveway.clients.configured import Services
from droveway.conf import settings
from droveway.errors import Refused
from droveway.persistence.journal.states import State

WRONG = "canary-keystone-9a17"
"""A password that Keystone does not know."""


@dataclasses.dataclass
class World:
    """A lab over the real services, all of which are reached through relays."""

    lab: Stage
    services: OpenStack
    folder: Path
    keystone: Relay
    placement: Relay
    neutron: Relay

    def configured(self, **options: dict[str, str]) -> Path:
        """Write a configuration with these options changed, by their group."""
        return _configured(self.folder, self.services, (self.keystone, self.placement, self.neutron), options)

    def fresh(self, **options: dict[str, str]) -> Services:
        """Return clients that have no token yet."""
        return Services(settings.load_deployment(self.configured(**options)))

    def revoke(self) -> None:
        """Revoke all tokens of the user, as a new password does."""
        identity = self.services.keystone.connection("admin", "admin").identity
        identity.update_user(identity.find_user(USER), password=openstack_services.PASSWORD)

    def assert_moved_and_bring_back(self) -> None:
        """Assert that the server waits on the second host as if nothing had been, and revert its move."""
        move = self.lab.move(SERVER)
        assert move.state == State.VERIFYING
        assert [row.step for row in self.lab.history(move.id) if row.error] == []
        small = {"host1": openstack_lab.on("host1"), "host2": openstack_lab.on("host2")}
        held = openstack_lab.held(self.services)
        assert held == {self.lab.id_of(SERVER): small["host2"], move.id: small["host1"]}
        assert openstack_lab.bindings(self.services, self.lab.id_of(SERVER)) == openstack_lab.bound_on("host2")
        self.lab.cli("server", "revert", SERVER)
        assert openstack_lab.held(self.services) == {self.lab.id_of(SERVER): small["host1"]}
        self.lab.assert_balanced()


def _configured(
    folder: Path, services: OpenStack, relays: tuple[Relay, Relay, Relay], options: dict[str, dict[str, str]]
) -> Path:
    keystone, *others = relays
    path = openstack_lab.configuration(services, folder / "changed.conf")
    written = configparser.ConfigParser(interpolation=None)
    written.read(path)
    for group, relay in zip(("placement", "neutron"), others, strict=True):
        written[group].update({"auth_url": f"{keystone.url}/v3", "endpoint_override": relay.url})
        written[group].update(options.get(group, {}))
    with path.open("w") as file:
        written.write(file)
    return path


@pytest.fixture(scope="module", name="world")
def fixture_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("keystone")
    # Else a service would take a token that is revoked for minutes.
    with openstack_services.running(folder, believed_for=-1) as services, contextlib.ExitStack() as stack:
        services.keystone.add_user(USER, "service", "admin")
        ports = (services.keystone.port, services.placement.port, services.neutron.port)
        keystone, placement, neutron = (stack.enter_context(running_relay(port)) for port in ports)
        path = _configured(folder, services, (keystone, placement, neutron), {})
        stack.enter_context(openstack_lab.over(services, path))
        lab = stack.enter_context(stage(folder / "lab", CLOUD))
        yield World(lab, services, folder, keystone, placement, neutron)


@pytest.fixture(scope="module", name="site")
def fixture_site(
    world: World, zookeeper: zookeeper_server.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """An installation on the lab's databases, of which no daemon runs."""
    with daemons.installation(world.lab.lab, tmp_path_factory.mktemp("site"), zookeeper.hosts, None) as made:
        yield made


@contextlib.contextmanager
def reaching(site: Installation, path: Path) -> Iterator[None]:
    """Let the installation reach Placement and Neutron as the configuration at ``path`` says."""
    before = site.configuration.read_text()
    written = configparser.ConfigParser(interpolation=None)
    written.read(site.configuration)
    for group in ("placement", "neutron"):
        written.remove_section(group)
    written.read(path)
    with site.configuration.open("w") as file:
        written.write(file)
    try:
        yield
    finally:
        site.configuration.write_text(before)


def test_a_move_whose_tokens_are_revoked_ends_as_if_nothing_had_been(world: World) -> None:
    """A new token counts for nothing in the second of the revocation either: Keystone compares whole seconds."""
    steps = {"claim", "reserve_ports", "move_ports"}

    def probe(_move: str, step: str, direction: str, phase: str) -> None:
        if step in steps and (direction, phase) == ("execute", "before"):
            steps.remove(step)
            world.revoke()

    with world.lab.running(probe):
        refused = len([each for each in world.neutron.passed if each.status == 401])
        world.lab.cli("server", "migrate", SERVER, "--host", "host2", "--wait")
        assert steps == set()
        assert len([each for each in world.neutron.passed if each.status == 401]) > refused
        world.assert_moved_and_bring_back()


def test_a_request_that_is_refused_for_its_token_is_sent_again_with_a_new_one(world: World) -> None:
    services = world.fresh()
    services.ask("placement")
    tokens = world.keystone.count("POST", "/auth/tokens", 201)
    world.placement.refusals.append(("GET /allocations", 401, {}))
    services.ask("placement")
    assert world.placement.refusals == []
    assert world.keystone.count("POST", "/auth/tokens", 201) == tokens + 1


def test_services_that_are_busy_are_left_alone_for_as_long_as_they_say(world: World) -> None:
    """All three are in one move, each at a write of it; Keystone when a new token is wanted."""
    busy = [
        (world.placement, "POST /allocations"),
        (world.neutron, "PUT /v2.0/ports/"),
        (world.keystone, "POST /v3/auth/tokens"),
    ]

    def probe(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("check_destination", "execute", "before"):
            world.revoke()

    with world.lab.running(probe):
        for relay, begins in busy:
            relay.refusals += [(begins, 503, {"Retry-After": "2"})] * 2
        world.lab.cli("server", "migrate", SERVER, "--host", "host2", "--wait")
        for relay, begins in busy:
            assert relay.refusals == []
            asked = [each for each in relay.passed if f"{each.method} {each.path}".startswith(begins)]
            pauses = [after.at - each.at for each, after in itertools.pairwise(asked) if each.status == 503]
            assert len(pauses) == 2
            assert min(pauses) >= 2
        world.assert_moved_and_bring_back()


def test_a_service_that_wants_to_be_left_alone_for_a_day_is_asked_again_before(world: World) -> None:
    services = world.fresh()
    world.placement.refusals.append(("GET /allocations", 503, {"Retry-After": "86400"}))
    services.ask("placement")
    assert world.placement.refusals == []


@pytest.mark.parametrize("group", ["placement", "neutron"])
def test_a_wrong_password_is_told_with_the_section_and_the_user(world: World, site: Installation, group: str) -> None:
    wrong = world.configured(**{group: {"password": WRONG}})
    expected = f"Keystone does not let in the user {USER} of [{group}]"
    with reaching(site, wrong):
        ended, said, complained = site.droveway("doctor", "-f", "json")
        assert ended == 2
        assert expected in said
        refusal = site.refused("server", "migrate", SERVER, "--host", "host2")
    assert expected in refusal
    assert refusal.count("\n") == 1
    for text in (said, complained, refusal):
        assert WRONG not in text
        assert openstack_services.PASSWORD not in text
        assert "Traceback" not in text


@pytest.mark.parametrize("behind", ["keystone", "placement"])
def test_a_certificate_is_held_against_the_authority_that_the_section_names(
    world: World, authority: Authority, tmp_path: Path, behind: str
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    port: int = getattr(world.services, behind).port
    with running_relay(port, authority.issue("openstack")) as relay:
        option = {"keystone": {"auth_url": f"{relay.url}/v3"}, "placement": {"endpoint_override": relay.url}}[behind]
        world.fresh(placement={**option, "cafile": str(authority.path)}).require_answer("placement")
        assert relay.passed
        seen = len(relay.passed)
        refusing = world.fresh(placement={**option, "cafile": str(stranger.path)})
        with pytest.raises(Refused) as caught:
            refusing.require_answer("placement")
        assert str(caught.value) == (
            f"the Placement service cannot be asked: the certificate of localhost:{relay.server_port} is not for that "
            "name, or of no authority that [placement] trusts: name the file of its authority in cafile there"
        )
        assert len(relay.passed) == seen
