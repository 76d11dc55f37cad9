"""Moves of a server with guaranteed ports by daemons that are killed, over a real Keystone, Placement and Neutron.

Conductors reach Placement and Neutron through proxies. One of them falls silent at a request, and the conductor dies in
the middle of that, whether the service has heard it or not. Then the next conductor carries on.

``tools/matrix --real`` kills four times in each operation.
"""

from __future__ import annotations

import configparser
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest
from support.daemons import daemons
from support.daemons.daemons import LONG, Daemon, Installation
from support.labs.small_lab import history, read_move, until
from support.servers import openstack_lab, openstack_services, zookeeper_server
from support.servers.openstack_lab import CLOUD, OTHER, SERVER, USER
from support.servers.openstack_services import OpenStack
from support.servers.proxy import Proxy, running_proxy

from droveway.lab import build, serve_settings
from droveway.lab import cloud as clouds
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State
from droveway.persistence.nova import catalog


@dataclasses.dataclass(frozen=True)
class InRequest:
    """A SIGKILL of the conductor in the middle of a request of this kind."""

    service: str
    """The group of its configuration."""
    begins: str
    """How the request begins; ``{port}`` is one of the server's ports."""
    heard: bool
    """Whether the service hears of it, and only its answer is lost."""


@dataclasses.dataclass(frozen=True)
class InStep:
    """A SIGKILL once the move has come to a step."""

    step: str
    host: str = ""
    """Whose worker dies; without one it is the conductor."""


Kill = InRequest | InStep

ALL = slice(None)
NONE = slice(0)


class World:
    """An installation over the real services, one of whose conductors runs at a time."""

    def __init__(self, site: Installation, services: OpenStack, lines: dict[str, Proxy], *, each: bool) -> None:
        """``each``: every kill of each operation is carried out, where else one of most operations' is."""
        self.site = site
        self._each = each
        self.services = services
        self._lines = lines
        self._workers = site.workers()
        self._numbers = itertools.count(1)
        self._conductor = self._begin()

    @property
    def server(self) -> catalog.Server:
        """The server's row."""
        return catalog.find_server(self.site.lab.api, self.site.lab.cell_databases, SERVER)

    def ask(self, *words: str, kills: Sequence[Kill], always: slice = ALL) -> str:
        """Give the command, kill the daemons one after another, and return the id of the move, which rests then.

        ``always``: which of the kills are carried out even where not each is.
        """
        kills = kills if self._each else kills[always]
        self._arm(*kills[:1])
        self.site.done("server", *words)
        with self.site.lab.journal.read() as session:
            (move,) = [each.id for each in moves.open_moves(session)]
            begun = len(moves.history(session, move))
        for number, kill in enumerate(kills, 1):
            self._await(kill, move, begun)
            self._kill(kill, kills[number : number + 1])
        self.site.await_rest(move)
        return move

    def assert_held(self, server: openstack_lab.Held, migration: tuple[str, openstack_lab.Held] | None = None) -> None:
        """Assert that Placement gives this to the server, to the migration of this id, and nothing to anybody else."""
        expected = {self.server.id: server} | dict([migration] if migration else [])
        assert openstack_lab.held(self.services) == {consumer: held for consumer, held in expected.items() if held}
        self.site.done("audit")
        assert self.site.places_of(openstack_services.PASSWORD) == []

    def assert_on(self, host: str, migration: tuple[str, openstack_lab.Held] | None = None) -> None:
        """Assert the same of a server that is on the host, and that its ports are bound there alone."""
        assert openstack_lab.bindings(self.services, self.server.id) == openstack_lab.bound_on(host)
        self.assert_held(openstack_lab.on(host, self.server.flavor), migration)

    def assert_state(self, move: str, state: State) -> None:
        """Assert where the move has come to rest."""
        row = read_move(self.site.lab, move)
        assert row.state == state, f"{row.error}\n{self._conductor.text()}"

    def _begin(self) -> Daemon:
        ways = {
            f"OS_{group.upper()}__ENDPOINT_OVERRIDE": f"http://127.0.0.1:{line.port}"
            for group, line in self._lines.items()
        }
        return self.site.conductor(f"conductor{next(self._numbers)}", **ways)

    def _arm(self, *kills: Kill) -> None:
        for kill in kills:
            if isinstance(kill, InRequest):
                begins = kill.begins.format(port=openstack_lab.ports(self.services, self.server.id)[0])
                self._lines[kill.service].fall_silent(begins.encode(), heard=kill.heard)

    def _await(self, kill: Kill, move: str, begun: int) -> None:
        if isinstance(kill, InRequest):
            until(lambda: self._lines[kill.service].unanswered, f"{kill.begins}\n{self._conductor.text()}", LONG)
        else:
            lab = self.site.lab
            until(lambda: kill.step in {row.step for row in history(lab, move)[begun:]}, kill.step, LONG)

    def _kill(self, kill: Kill, following: Sequence[Kill]) -> None:
        if isinstance(kill, InStep) and kill.host:
            self._arm(*following)
            self._workers[kill.host].kill()
            self._workers[kill.host] = self.site.worker(kill.host)
            return
        self._conductor.kill()
        for line in self._lines.values():
            # What it has sent and nobody has heard is never heard.
            line.cut()
            line.heal()
        self._arm(*following)
        self._conductor = self._begin()


@pytest.fixture(scope="module", name="world")
def fixture_world(
    zookeeper: zookeeper_server.Server, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("openstack")
    with openstack_services.running(folder) as services:
        services.keystone.add_user(USER, "service", "admin")
        written = openstack_lab.configuration(services, folder / "services.conf")
        with openstack_lab.over(services, written):
            build.create(folder / "lab", clouds.parse_cloud(CLOUD, "test")).close()
            lab = Lab.open(folder / "lab")
            with (
                daemons.installation(lab, folder, zookeeper.hosts, services.databases) as site,
                running_proxy(("127.0.0.1", services.placement.port)) as placement,
                running_proxy(("127.0.0.1", services.neutron.port)) as neutron,
            ):
                settings = configparser.ConfigParser(interpolation=None)
                settings.read([site.configuration])
                for group in ("placement", "neutron"):
                    settings.remove_section(group)
                settings.read([written])
                settings.read_dict({"cross_cell": {"allowed": "true"}, **site.cloud.image_settings()})
                serve_settings.write(settings, site.configuration)
                lines = {"placement": placement, "neutron": neutron}
                yield World(site, services, lines, each=request.config.getoption("--each-kill"))
            lab.close()
            build.destroy(folder / "lab")


def _neighbour(host: str) -> str:
    """Return the other host of the first cell."""
    return {"host1": "host2", "host2": "host1"}[host]


def test_a_resize_is_confirmed(world: World) -> None:
    before = world.server
    here, there = str(before.host), _neighbour(str(before.host))
    kills: list[Kill] = [
        InRequest("neutron", "PUT /v2.0/ports/{port}/bindings/" + there + "/activate", heard=True),
        InRequest("neutron", "DELETE /v2.0/ports/{port}/bindings/" + here, heard=False),
        InStep("define_guest", there),
        InStep("switch_records"),
    ]
    move = world.ask("resize", SERVER, "--flavor", OTHER[before.flavor], kills=kills, always=slice(1))
    world.assert_state(move, State.VERIFYING)
    assert world.server.flavor == OTHER[before.flavor]
    world.assert_on(there, (move, openstack_lab.on(here, before.flavor)))
    kills = [
        InStep("check_source"),
        InStep("keep_copy"),
        InRequest("placement", "POST /allocations", heard=False),
        InRequest("placement", "POST /allocations", heard=True),
    ]
    world.ask("confirm", SERVER, kills=kills, always=NONE)
    world.assert_state(move, State.DONE)
    world.assert_on(there)


def test_a_cold_migration_is_reverted(world: World) -> None:
    """Two die on the way there, and two on the way back."""
    here, there = str(world.server.host), _neighbour(str(world.server.host))
    kills: list[Kill] = [
        InRequest("placement", "POST /allocations", heard=True),
        InStep("copy_disks", there),
        InRequest("neutron", "DELETE /v2.0/ports/{port}/bindings/" + here, heard=True),
        InStep("start_guest", there),
    ]
    move = world.ask("migrate", SERVER, "--host", there, kills=kills, always=slice(2))
    world.assert_state(move, State.VERIFYING)
    world.assert_on(there, (move, openstack_lab.on(here, world.server.flavor)))
    kills = [
        InRequest("neutron", "PUT /v2.0/ports/{port}/bindings/" + here + "/activate", heard=False),
        InRequest("placement", "POST /allocations", heard=False),
        InRequest("placement", "POST /allocations", heard=True),
        InStep("settle_records"),
    ]
    world.ask("revert", SERVER, kills=kills, always=slice(2))
    world.assert_state(move, State.REVERTED)
    world.assert_on(here)


def test_a_migration_into_another_cell_is_reverted(world: World) -> None:
    here = str(world.server.host)
    kills: list[Kill] = [
        InRequest("neutron", "POST /v2.0/ports/{port}/bindings", heard=True),
        InStep("set_aside", here),
        InRequest("neutron", "PUT /v2.0/ports/{port}/bindings/host3/activate", heard=False),
        InStep("switch_mapping"),
    ]
    move = world.ask("migrate", SERVER, "--host", "host3", kills=kills)
    world.assert_state(move, State.VERIFYING)
    world.assert_on("host3", (move, openstack_lab.on(here, world.server.flavor)))
    kills = [
        InRequest("neutron", "POST /v2.0/ports/{port}/bindings", heard=False),
        InRequest("neutron", "PUT /v2.0/ports/{port}/bindings/" + here + "/activate", heard=True),
        InStep("switch_mapping"),
        InRequest("placement", "POST /allocations", heard=True),
    ]
    world.ask("revert", SERVER, kills=kills, always=NONE)
    world.assert_state(move, State.REVERTED)
    world.assert_on(here)


def test_a_shelved_server_comes_back(world: World) -> None:
    here = str(world.server.host)
    write = "PUT /v2.0/ports/{port} "
    kills: list[Kill] = [
        InRequest("neutron", write, heard=False),
        InRequest("neutron", write, heard=True),
        InRequest("placement", "POST /allocations", heard=False),
        InRequest("placement", "POST /allocations", heard=True),
    ]
    move = world.ask("shelve", SERVER, kills=kills, always=slice(1))
    world.assert_state(move, State.DONE)
    assert openstack_lab.bindings(world.services, world.server.id) == [("", "ACTIVE", [])] * 3
    world.assert_held({})
    kills = [
        InRequest("placement", "POST /allocations", heard=False),
        InRequest("neutron", write, heard=True),
        InStep("copy_disks", here),
        InStep("switch_records"),
    ]
    move = world.ask("unshelve", SERVER, "--host", here, kills=kills, always=slice(1, 2))
    world.assert_state(move, State.DONE)
    world.assert_on(here)
