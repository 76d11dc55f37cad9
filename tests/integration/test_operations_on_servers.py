"""Shelves, unshelves and reverts to another host over PostgreSQL and MariaDB, each with half of the databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.daemons.daemons import LONG, Installation, installation
from support.labs.small_lab import assert_balanced, until
from support.labs.snapshot import Snapshot
from support.servers import mariadb_server, postgres_server, zookeeper_server
from support.servers.spread import Server, Spread

from droveway.lab import cloud, operations
from droveway.persistence.journal import moves

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"

_CLOUD: Final = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {_HOST}, host2: {_HOST}}}}}
  cell2: {{hosts: {{host3: {_HOST}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 0, swap_mb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 0, swap_mb: 1}}
images: {{base: {{size_mb: 2}}}}
servers:
  web: {{host: host1, flavor: small, image: base, ports: [{{}}], volumes: [{{size_gb: 1}}]}}
  idle: {{host: host1, flavor: small, image: base, state: stopped, ports: [{{}}]}}
"""


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(_CLOUD, "on servers")


@pytest.fixture(scope="module", name="servers")
def fixture_servers() -> Iterator[dict[str, Server]]:
    with postgres_server.running_server() as first, mariadb_server.running_server() as second:
        yield {"postgresql": first, "mariadb": second}


@pytest.fixture(name="site")
def fixture_site(
    request: pytest.FixtureRequest,
    rest: Snapshot,
    servers: dict[str, Server],
    zookeeper: zookeeper_server.Server,
    tmp_path: Path,
) -> Iterator[Installation]:
    """Give the first server the journal and one cell, the second the API database and the other cell."""
    lab = rest.restore()
    first, second = (servers[make] for make in request.param)
    with installation(lab, tmp_path, zookeeper.hosts, Spread(first, api=second, cell_cell2=second)) as site:
        images = "".join(f"{name} = {value}\n" for name, value in site.cloud.image_settings()["glance"].items())
        with site.configuration.open("a") as file:
            file.write(f"\n[cross_cell]\nallowed = true\n\n[glance]\n{images}")
        yield site
    lab.close()


def ends(site: Installation, server: str, *words: str) -> str:
    """Ask for the operation; where its move rests."""
    site.done("server", *words)
    with site.lab.journal.read() as session:
        move = next(row.id for row in moves.open_moves(session) if row.server_name == server)
    return site.await_rest_of(move)


def told(site: Installation) -> str:
    """Return all that daemons have logged of their errors."""
    return "".join(daemon.log.read_text() for daemon in site.daemons)


@pytest.mark.parametrize("site", [("postgresql", "mariadb")], indirect=True, ids="-".join)
def test_a_server_is_shelved_and_unshelved_here_and_in_the_other_cell(site: Installation) -> None:
    site.workers()
    site.conductor()
    for cell in ("cell1", "cell2", "cell1"):
        assert ends(site, "web", "shelve", "web") == "done"
        assert site.told("server", "show", "web")["status"] == "SHELVED_OFFLOADED"
        assert_balanced(site.lab)
        assert ends(site, "web", "unshelve", "web", "--to-cell", cell) == "done"
        shown = site.told("server", "show", "web")
        assert (shown["status"], shown["cell"]) == ("ACTIVE", cell)
        assert_balanced(site.lab)
    assert ends(site, "idle", "shelve", "idle") == "done"
    operations.request_delete(site.lab, "idle")
    until(
        lambda: [row["name"] for row in site.told("server", "list")] == ["web"], "the end of the shelved server", LONG
    )
    assert_balanced(site.lab)
    assert "Traceback" not in told(site)


@pytest.mark.parametrize("site", [("mariadb", "postgresql")], indirect=True, ids="-".join)
def test_another_host_gets_a_server_whose_source_is_dead(site: Installation) -> None:
    workers = site.workers()
    site.conductor(OS_CONDUCTOR__HOST_AWAY="1")
    resize = ("resize", "idle", "--flavor", "large", "--to-cell", "cell2", "--keep-image")
    assert ends(site, "idle", *resize) == "verifying"
    workers["host1"].kill()
    down = ("host", "down", "host1", "--i-made-sure", "power is off, ticket 1")
    until(lambda: site.droveway(*down)[0] == 0, "the end of its worker's session", LONG)
    assert ends(site, "idle", "revert", "idle") == "reverted"
    shown = site.told("server", "show", "idle")
    assert (shown["cell"], shown["host"], shown["flavor"]) == ("cell1", "host2", "small")
    assert [debt["host"] for debt in site.told("debt", "list")] == ["host1"]
    site.worker("host1")
    site.done("host", "enable", "host1")
    until(lambda: site.told("debt", "list") == [], "what the source owes", LONG)
    assert_balanced(site.lab)
    assert "Traceback" not in told(site)
