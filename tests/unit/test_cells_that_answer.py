"""What is found by its name while the database of a cell does not answer, in the databases of an installation."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from droveway.cli import main
from droveway.conf import settings
from droveway.engines.operations import end_facts
from droveway.engines.site.installation import Installation
from droveway.errors import NotFound, Refused
from droveway.lab import topology
from droveway.lab.cloud import Cell, Host
from droveway.lab.serve_settings import map_cell
from droveway.persistence.database import Database, DatabaseAway, sqlite_url
from droveway.persistence.journal import freezes, migrate
from droveway.persistence.journal.tables import Debt, Move
from droveway.persistence.nova import api as api_tables
from droveway.persistence.nova import base as nova_base
from droveway.persistence.nova import catalog
from droveway.persistence.nova import cell as cell_tables

MOVE = "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"
SERVER = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6ad01"


@pytest.fixture(name="conf")
def fixture_conf(tmp_path: Path) -> cfg.ConfigOpts:
    path = tmp_path / "droveway.conf"
    urls = {group: sqlite_url(tmp_path / f"{group}.sqlite") for group in ("journal", "api_database")}
    path.write_text("".join(f"[{group}]\nconnection = {url}\n" for group, url in urls.items()))
    return settings.load_deployment(path)


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, conf: cfg.ConfigOpts) -> Iterator[Installation]:
    """Cell1 has host1 and a server; the database of cell2, with host2, cannot be opened."""
    names = ("journal", "api_database", "1")
    journal, api, here = (Database(sqlite_url(tmp_path / f"{name}.sqlite")) for name in names)
    migrate.sync(journal)
    nova_base.ApiBase.metadata.create_all(api.engine)
    nova_base.CellBase.metadata.create_all(here.engine)
    with api.write() as session:
        topology.add_cells(session, {f"cell{each}": Cell(hosts={f"host{each}": Host()}) for each in (1, 2)})
        mapping = {"instance_uuid": SERVER, "cell_id": 1, "project_id": "p", "queued_for_delete": False}
        session.add(api_tables.InstanceMapping(**mapping))
    with here.write() as session:
        topology.add_hosts(session, {"host1": Host()}, "sandbox")
        session.add(cell_tables.Instance(uuid=SERVER, display_name="web", host="host1", deleted=0))
    map_cell(api, "cell1", sqlite_url(tmp_path / "1.sqlite"))
    map_cell(api, "cell2", sqlite_url(tmp_path / "nowhere" / "2.sqlite"))
    made = Installation(conf)
    yield made
    made.close()
    for database in (journal, api, here):
        database.close()


def test_what_a_cell_that_answers_has_is_found(site: Installation) -> None:
    assert catalog.find_server(site.api, site.known_cells, "web").id == SERVER
    assert catalog.find_host(site.api, site.known_cells, "host1").cell == "cell1"


@pytest.mark.parametrize("name", ["host2", "misspelt"])
def test_a_name_that_no_answering_cell_has_may_be_in_the_cell_that_is_away(site: Installation, name: str) -> None:
    """It is no NotFound, which would be taken for the proof that there is none."""
    for find in (catalog.find_server, catalog.find_host):
        with pytest.raises(DatabaseAway, match=f"{name} .*nobody could look in cell cell2, whose database does not"):
            find(site.api, site.known_cells, name)
    with pytest.raises(NotFound):
        catalog.find_host(site.api, {"cell1": site.known_cells["cell1"]}, name)


def test_only_who_needs_a_cell_is_told_that_it_is_away(site: Installation) -> None:
    assert site.cell_databases["cell1"] is site.known_cells["cell1"]
    assert list(site.cell_databases) == ["cell1", "cell2"]
    assert "cell2" in site.cell_databases
    with pytest.raises(DatabaseAway, match="of cell cell2 does not answer"):
        _ = site.cell_databases["cell2"]
    with pytest.raises(Refused, match="Nova has no cell of the name cell3 any more"):
        _ = site.cell_databases["cell3"]


def test_whether_a_host_is_declared_down_is_known_while_another_cell_is_away(site: Installation) -> None:
    assert not end_facts.is_gone(site, "host1", {"host1"}, cell="cell1")
    with pytest.raises(DatabaseAway):
        end_facts.is_gone(site, "host2", {"host2"}, cell="cell2")


def owe(site: Installation, **columns: str | None) -> None:
    """Record a debt of a host or of a cell, and the move that it is owed for."""
    now = dt.datetime(2026, 11, 30)  # noqa: DTZ001 - as databases hold it
    with site.journal.write() as session:
        if session.get(Move, MOVE) is None:
            session.add(
                Move(
                    id=MOVE,
                    kind="migrate",
                    server=SERVER,
                    server_name="web",
                    state="failed",
                    policy="manual",
                    old_flavor="small",
                    new_flavor="small",
                    source_cell="cell1",
                    source_host="host1",
                    delete_requested=False,
                    created_at=now,
                    updated_at=now,
                )
            )
            session.flush()
        fields = {"host": "", "action": "hide", "details": {}, "move_id": MOVE, "created_at": now} | columns
        session.add(Debt(**fields))


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """What a command of this installation prints as JSON."""
    capsys.readouterr()
    assert main.main([*words, "-f", "json", "--config-file", str(tmp_path / "droveway.conf")]) == 0
    found = json.loads(capsys.readouterr().out)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("name", ["host2", "gone"])
def test_what_a_host_owes_is_listed_though_its_cell_is_away_or_it_left_nova(
    name: str, site: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owe(site, host=name)
    assert [row["host"] for row in told(capsys, tmp_path, "debt", "list", "--host", name)] == [name]


@pytest.mark.usefixtures("site")
def test_a_host_that_owes_nothing_is_looked_for_in_the_api_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("host1", "host2"):
        assert told(capsys, tmp_path, "debt", "list", "--host", name) == []
    assert main.main(["debt", "list", "--host", "misspelt", "--config-file", str(tmp_path / "droveway.conf")]) == 2
    assert capsys.readouterr().err == "droveway: host misspelt is unknown: droveway host list shows the hosts\n"


def test_the_freeze_of_a_host_that_left_nova_can_be_ended(site: Installation, tmp_path: Path) -> None:
    with site.journal.write() as session:
        for scope, name in (("host", "gone"), ("cell", "gone")):
            freezes.freeze(session, scope, name, who="ops", reason=None)
    words = ("--config-file", str(tmp_path / "droveway.conf"))
    for scope in ("host", "cell"):
        assert main.main(["thaw", f"--{scope}", "gone", *words]) == 0
        assert main.main(["thaw", f"--{scope}", "gone", *words]) == 2
    with site.journal.read() as session:
        assert freezes.listing(session) == []


def test_what_a_cell_owes_is_listed_by_the_name_that_the_column_shows(
    site: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owe(site, host="host1")
    owe(site, cell="cell2")
    for name in ("cell2", catalog.find_cell(site.api, "cell2").id):
        assert [row["host"] for row in told(capsys, tmp_path, "debt", "list", "--host", name)] == ["cell2"]
    assert told(capsys, tmp_path, "debt", "list", "--host", "cell1") == []


def test_what_a_cell_has_paid_is_done_and_not_undone(
    site: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell undoes no step: it does what the step or its undo could not do there."""
    owe(site, cell="cell2", settled_at=dt.datetime(2026, 11, 30))  # noqa: DTZ001 - as databases hold it
    (shown,) = told(capsys, tmp_path, "debt", "show", "1")
    assert shown["next"] == "nothing to do: it is done"
