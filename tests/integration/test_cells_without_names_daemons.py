"""Daemons, commands and the audit in a cell that Nova gave no name, and in one that was renamed; on real daemons."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.daemons.daemons import Daemon, Ended, Installation
from support.labs.small_lab import SERVER

from droveway.persistence.nova.api import CellMapping


@pytest.mark.parametrize("site", ["postgresql", "mariadb"], indirect=True)
def test_a_server_of_a_cell_without_a_name_is_moved_there_and_back(site: Installation) -> None:
    """``nova-manage cell_v2 simple_cell_setup`` makes such a cell: it goes by its id."""
    named = sa.update(CellMapping).where(CellMapping.name == "cell1")
    with site.lab.api.write() as session:
        session.execute(named.values(name=None))
        cell = session.scalar(sa.select(CellMapping.uuid).where(CellMapping.name.is_(None)))
    begin(site)
    assert {row["id"]: row["name"] for row in site.told("cell", "list")}[cell] == cell
    assert site.told("server", "show", SERVER)["cell"] == cell
    for end in ("revert", "confirm"):
        site.done("move", "create", SERVER, "--flavor", "large", "--confirm", "manual", "--wait")
        site.done("server", end, SERVER)
        (move, *_others) = site.told("move", "list", "--all")
        site.done("move", "wait", str(move["id"]))
    assert site.told("server", "show", SERVER)["flavor"] == "large"
    # It ends with another code where it finds anything.
    site.done("audit")


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_no_conductor_starts_while_a_move_is_in_a_renamed_cell(site: Installation) -> None:
    conductor = begin(site)
    site.done("move", "create", SERVER, "--flavor", "large", "--confirm", "manual", "--wait")
    conductor.stop()
    rename(site, "cell1", "east")
    said = "Nova has no cell of the name cell1 any more"
    with pytest.raises(Ended) as ended:
        site.conductor("second")
    assert said in str(ended.value)
    assert said in site.refused("server", "confirm", SERVER)
    code, printed, _ = site.droveway("doctor")
    assert code == 2
    assert "(cell-renamed)" in printed
    rename(site, "east", "cell1")
    site.conductor("third")
    site.done("server", "confirm", SERVER)
    (move,) = site.told("move", "list")
    site.done("move", "wait", str(move["id"]))
    site.done("audit")


def begin(site: Installation) -> Daemon:
    """Start all daemons; the conductor."""
    conductor = site.conductor()
    site.workers()
    return conductor


def rename(site: Installation, old: str, new: str) -> None:
    """Rename the cell, as ``nova-manage cell_v2 update_cell --name`` does."""
    with site.lab.api.write() as session:
        session.execute(sa.update(CellMapping).where(CellMapping.name == old).values(name=new))
