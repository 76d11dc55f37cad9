"""Moves between cells beside Nova's own super conductors, which the database of cell0 tells of."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from support.daemons.daemons import Installation, installation
from support.labs.snapshot import Snapshot
from support.servers import mariadb_server, postgres_server, zookeeper_server
from support.servers.spread import Server, Spread

from droveway.lab import cloud
from droveway.persistence.nova import api, cell
from droveway.persistence.nova.cell_hosts import Service

_CELL0: Final = "00000000-0000-0000-0000-000000000000"
_CLOUD: Final = """
cells: {cell1: {hosts: {host1: {}}}, cell2: {hosts: {host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 0}}
images: {base: {size_mb: 1}}
servers:
  web: {host: host1, flavor: small, image: base}
  shelved: {cell: cell1, flavor: small, image: base, state: shelved_offloaded}
"""
_AHEAD: Final = -3600
"""So far in the future that the service counts as up for as long as the test may take."""

_BARRED: Final = "Nova's super conductor on host ctl1 is up"


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(_CLOUD, "beside super conductors")


@pytest.fixture(scope="module", name="server", params=["postgresql", "mariadb"])
def fixture_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    make = {"postgresql": postgres_server, "mariadb": mariadb_server}[request.param]
    with make.running_server() as server:
        yield server


class Cell0:
    """The database of Nova's cell0, and the super conductor that registers there."""

    def __init__(self, site: Installation, spread: Spread) -> None:
        spread.create("cell0")
        self._url = spread.url("cell0")
        self._engine = sa.create_engine(self._url)
        cell.CellBase.metadata.create_all(self._engine)
        self._api = sa.create_engine(spread.url("api"))
        self._site = site

    def map(self, url: str | None = None) -> None:
        """Let Nova know the cell, under this URL in the place of its own."""
        with orm.Session(self._api) as session:
            session.execute(sa.delete(api.CellMapping).where(api.CellMapping.uuid == _CELL0))
            mapping = {"uuid": _CELL0, "name": "cell0", "transport_url": "none:///", "disabled": False}
            session.add(api.CellMapping(**mapping, database_connection=url or self._url))
            session.commit()

    def seen(self, binary: str, seconds: int, *, deleted: int = 0) -> None:
        """Have one service of this kind alone, on ctl1, that was seen up so many seconds ago."""
        with orm.Session(self._engine) as session:
            session.execute(sa.delete(Service))
            at = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(seconds=seconds)
            session.add(Service(host="ctl1", binary=binary, topic="conductor", last_seen_up=at, deleted=deleted))
            session.commit()

    def close(self) -> None:
        """Give back every connection."""
        self._engine.dispose()
        self._api.dispose()


@pytest.fixture(name="spread")
def fixture_spread(server: Server) -> Spread:
    return Spread(server)


@pytest.fixture(name="site")
def fixture_site(
    rest: Snapshot, spread: Spread, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[Installation]:
    lab = rest.restore()
    with installation(lab, tmp_path, zookeeper.hosts, spread) as site:
        images = "".join(f"{name} = {value}\n" for name, value in site.cloud.image_settings()["glance"].items())
        with site.configuration.open("a") as file:
            file.write(f"\n[cross_cell]\nallowed = true\n\n[glance]\n{images}")
        yield site
    lab.close()


@pytest.fixture(name="cell0")
def fixture_cell0(site: Installation, spread: Spread) -> Iterator[Cell0]:
    made = Cell0(site, spread)
    yield made
    made.close()


def of_cell0(site: Installation) -> list[str]:
    """The findings of the doctor about cell0 and its services."""
    _, said, _ = site.droveway("doctor", "-f", "json")
    found = [row["finding"] for row in json.loads(said) if row["subject"] in ("host ctl1", "cell0")]
    assert {row["subject"] for row in json.loads(said)} > {"cell cell1", "cell cell2"}
    return found


def test_no_move_leaves_its_cell_beside_a_super_conductor_of_nova(site: Installation, cell0: Cell0) -> None:
    """Nova's API would send it the confirm, the revert and the delete of such a server."""
    site.workers()
    site.conductor()
    assert of_cell0(site) == []
    cell0.map()
    cell0.seen("nova-conductor", _AHEAD)
    assert of_cell0(site) == ["super-conductor"]
    assert _BARRED in site.refused("server", "migrate", "web", "--to-cell", "cell2")
    assert _BARRED in site.refused("server", "migrate", "web", "--host", "host3")
    assert f"cell2/host3: {_BARRED}" in site.refused("move", "plan", "web")
    site.done("server", "unshelve", "shelved", "--to-cell", "cell2")
    cell0.seen("nova-conductor", 3600)
    assert of_cell0(site) == []
    cell0.seen("nova-conductor", _AHEAD, deleted=1)
    assert of_cell0(site) == []
    cell0.seen("nova-scheduler", _AHEAD)
    assert of_cell0(site) == []
    cell0.map("mysql+pymysql://nova:hidden@127.0.0.1:1/nova_cell0")
    assert of_cell0(site) == ["database-away"]
    refused = site.refused("server", "migrate", "web", "--to-cell", "cell2")
    assert "nobody can tell whether a super conductor of Nova is up: the database of cell0 does not answer" in refused
    assert "hidden" not in refused
    cell0.map()
    site.done("server", "migrate", "web", "--to-cell", "cell2")
