"""Cells that Nova gave no name go by their ids; two cells of one name, and renamed ones, are refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from droveway.audit.read import nova as audited
from droveway.conf import settings
from droveway.engines.site.installation import Installation
from droveway.errors import Refused
from droveway.lab import topology
from droveway.lab.cloud import Cell, Host
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import cells_down, migrate, used_cells
from droveway.persistence.journal.tables import Debt, Move
from droveway.persistence.nova import api as api_tables
from droveway.persistence.nova import base as nova_base
from droveway.persistence.nova import catalog, mappings
from droveway.persistence.nova import cell as cell_tables
from droveway.scheduler import hosts

MOVE = "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"
SERVER = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6ad01"


@pytest.fixture(name="api")
def fixture_api(tmp_path: Path) -> Iterator[Database]:
    """Two cells with a host each, and a server in the first."""
    api = Database(sqlite_url(tmp_path / "api_database.sqlite"))
    nova_base.ApiBase.metadata.create_all(api.engine)
    with api.write() as session:
        topology.add_cells(session, {f"cell{each}": Cell(hosts={f"host{each}": Host()}) for each in (1, 2)})
        mapping = {"instance_uuid": SERVER, "cell_id": 1, "project_id": "p", "queued_for_delete": False}
        session.add(api_tables.InstanceMapping(**mapping))
    for number in (1, 2):
        cell = Database(sqlite_url(tmp_path / f"{number}.sqlite"))
        nova_base.CellBase.metadata.create_all(cell.engine)
        with cell.write() as session:
            topology.add_hosts(session, {f"host{number}": Host()}, "sandbox")
            if number == 1:
                session.add(cell_tables.Instance(uuid=SERVER, display_name="web", host="host1", deleted=0))
        cell.close()
        map_to(api, number, {"database_connection": sqlite_url(tmp_path / f"{number}.sqlite")})
    yield api
    api.close()


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, api: Database) -> Iterator[Installation]:
    """An installation that has read nothing yet."""
    path = tmp_path / "droveway.conf"
    path.write_text(f"[api_database]\nconnection = {api.engine.url}\n")
    conf: cfg.ConfigOpts = settings.load_deployment(path)
    made = Installation(conf)
    yield made
    made.close()


def map_to(api: Database, number: int, values: dict[str, str | None]) -> str:
    """Change a cell's mapping; its id."""
    row = api_tables.CellMapping
    with api.write() as session:
        session.execute(sa.update(row).where(row.id == number).values(values))
        return str(session.scalar(sa.select(row.uuid).where(row.id == number)))


@pytest.mark.parametrize("name", [None, ""])
def test_a_cell_without_a_name_goes_by_its_id(api: Database, site: Installation, name: str | None) -> None:
    """``nova-manage cell_v2 simple_cell_setup`` makes it, and ``create_cell`` where no name is given."""
    own, other = map_to(api, 1, {"name": name}), "cell2"
    assert set(site.known_cells) == {own, other}
    assert {each.name for each in catalog.cells_of(api)} == {own, other}
    assert (catalog.find_cell(api, own).id, catalog.hosts_of(api, own)) == (own, ["host1"])
    assert [server.cell for server in catalog.servers(api, site.known_cells)] == [own]
    assert catalog.find_server(api, site.known_cells, "web").cell == own
    with api.write() as session:
        assert mappings.cell_of(session, SERVER) == own
        mappings.switch(session, SERVER, own, other)
        assert mappings.cell_of(session, SERVER) == other
        mappings.switch(session, SERVER, other, own)
    with api.read() as session, site.known_cells[own].read() as first, site.known_cells[other].read() as second:
        states = hosts.host_states(session, {own: first, other: second}, home=own, up_hosts={"host1", "host2"})
        assert [(state.host, state.cell) for state in states] == [("host1", own), ("host2", other)]
        assert [(row.server, row.cell) for row in audited.mappings(session)] == [(SERVER, own)]


def test_the_audit_knows_a_server_that_no_cell_has(api: Database) -> None:
    row = api_tables.InstanceMapping
    with api.write() as session:
        session.execute(sa.update(row).values(cell_id=None))
    with api.read() as session:
        assert [found.cell for found in audited.mappings(session)] == [None]


def test_two_cells_of_one_name_are_refused_with_the_command_that_renames_one(api: Database, site: Installation) -> None:
    second = map_to(api, 2, {"name": "cell1"})
    with pytest.raises(Refused, match=f"both named cell1, .*update_cell --cell_uuid {second} --name NAME"):
        assert site.known_cells


@pytest.fixture(name="journal")
def fixture_journal(tmp_path: Path) -> Iterator[Database]:
    """A journal with a move from cell1 into cell2, and a debt of cell3."""
    journal = Database(sqlite_url(tmp_path / "journal.sqlite"))
    migrate.sync(journal)
    at = dt.datetime(2026, 11, 1)  # noqa: DTZ001 - as databases hold it
    facts: dict[str, Any] = {
        "kind": "resize",
        "server": SERVER,
        "server_name": "web",
        "source_host": "host1",
        "policy": "manual",
    }
    facts |= {"old_flavor": "small", "new_flavor": "large", "delete_requested": False}
    times = {"created_at": at, "updated_at": at}
    with journal.write() as session:
        cells = {"source_cell": "cell1", "dest_cell": "cell2"}
        session.add(Move(id=MOVE, state="verifying", **facts, **cells, **times))
        session.flush()
        session.add(Debt(host="", cell="cell3", move_id=MOVE, action="drop_fence", details={}, created_at=at))
    yield journal
    journal.close()


def test_a_renamed_cell_is_named_as_long_as_a_move_or_a_debt_is_there(journal: Database, site: Installation) -> None:
    with journal.write() as session:
        assert set(used_cells.unknown(session, ())) == {"cell1", "cell2", "cell3"}
        assert set(used_cells.unknown(session, (), of_debts=False)) == {"cell1", "cell2"}
        cells_down.declare(session, "cell1", reason="burnt", who="ana")
        assert set(used_cells.unknown(session, ())) == {"cell2", "cell3"}
        assert cells_down.lift(session, "cell1")
        assert set(used_cells.unknown(session, {"cell1", "cell3"})) == {"cell2"}
        session.execute(sa.update(Move).values(state="done"))
        assert set(used_cells.unknown(session, ())) == {"cell3"}
        session.execute(sa.update(Debt).values(settled_at=sa.func.utc_now()))
        assert used_cells.unknown(session, ()) == {}
    with pytest.raises(Refused, match=r"Nova has no cell of the name gone any more, .*update_cell --cell_uuid ID"):
        site.known_cells["gone"]
