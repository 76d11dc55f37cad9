"""Hosts of one name in two cells: what finds them in the databases of an installation."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from droveway.conf import settings
from droveway.doctor import databases
from droveway.doctor.findings import Examined, Level
from droveway.engines.operations import ends, hosts
from droveway.engines.site.installation import Installation
from droveway.errors import Refused
from droveway.lab import topology
from droveway.lab.cloud import Cell, Host
from droveway.lab.serve_settings import map_cell
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import migrate
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import base as nova_base
from droveway.persistence.nova import namesakes
from droveway.persistence.nova.cell import Service


def installation(path: Path, *, away: bool) -> Installation:
    """Cell1 has host1, and cell2, which may be away, has host1 and host2; Nova maps host1 to cell2."""
    urls = {group: sqlite_url(path / f"{group}.sqlite") for group in ("journal", "api_database", "cell1", "cell2")}
    urls |= {"cell2": sqlite_url(path / "nowhere" / "2.sqlite")} if away else {}
    (path / "droveway.conf").write_text(
        "".join(f"[{group}]\nconnection = {urls[group]}\n" for group in ("journal", "api_database"))
    )
    made = {name: Database(url) for name, url in urls.items()}
    migrate.sync(made["journal"])
    nova_base.ApiBase.metadata.create_all(made["api_database"].engine)
    with made["api_database"].write() as session:
        second = {"host1": Host(), "host2": Host()}
        topology.add_cells(session, {"cell1": Cell(hosts={}), "cell2": Cell(hosts=second)})
    for cell, names in (("cell1", ["host1"]), ("cell2", ["host1", "host2"])):
        map_cell(made["api_database"], cell, urls[cell])
        if cell == "cell1" or not away:
            nova_base.CellBase.metadata.create_all(made[cell].engine)
            with made[cell].write() as session:
                topology.add_hosts(session, {name: Host() for name in names}, "sandbox")
    for database in made.values():
        database.close()
    return Installation(settings.load_deployment(path / "droveway.conf"))


@pytest.mark.parametrize("away", [False, True], ids=["both cells answer", "one is known by its mappings"])
def test_the_doctor_names_each_host_whose_name_stands_in_two_cells(tmp_path: Path, *, away: bool) -> None:
    site = installation(tmp_path, away=away)
    found = [each for each in databases.check(Examined(site.conf, site, None)) if each.code == "host-twice"]
    assert [(each.subject, each.level) for each in found] == [("host host1", Level.FAILURE)]
    assert "host host1 stands in cell cell1 and cell cell2" in found[0].detail
    site.close()


def test_no_command_changes_a_host_whose_name_stands_in_two_cells(tmp_path: Path) -> None:
    """A command for the host would change the row of one cell, and mean the worker of the other."""
    site = installation(tmp_path, away=False)
    for change in (
        lambda: hosts.set_enabled(site, "host1", enabled=False, reason=None),
        lambda: hosts.forget(site, "host1"),
    ):
        with pytest.raises(Refused, match="host host1 stands in cell cell1 and cell cell2"):
            change()
    site.close()


@pytest.mark.parametrize("away", [False, True], ids=["both cells answer", "the source's cell is away"])
def test_only_the_host_of_the_moves_cell_counts_as_declared_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    """Else the guest might be started elsewhere, since somebody made sure that another machine is off."""
    site = installation(tmp_path, away=away)
    monkeypatch.setattr(site, "away", lambda: frozenset({"host1"}))
    with site.known_cells["cell1"].write() as session:
        session.execute(sa.update(Service).where(Service.host == "host1").values(forced_down=True))
    moves = {cell: Move(kind="cross_cell_migrate", source_cell=cell, source_host="host1") for cell in site.known_cells}
    assert {cell: ends.goes_elsewhere(site, move) for cell, move in moves.items()} == {"cell1": True, "cell2": False}
    site.close()


def test_two_nodes_of_one_host_are_no_namesakes() -> None:
    assert namesakes.several([("cell1", "host1"), ("cell1", "host1"), ("cell2", "host2")]) == {}
