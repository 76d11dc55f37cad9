"""What a person says of a step or of a cell is proved by the workers of an installation, each a process of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
import support
from support.daemons.daemons import LONG, Installation
from support.labs.small_lab import SERVER, assert_balanced, file_flow, read_move, until

from droveway.clients.zookeeper import ROOT
from droveway.persistence.database import Database
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim
from droveway.persistence.nova import catalog
from droveway.persistence.nova.base import CellBase

FAILING: Final = str(Path(next(iter(support.__path__))) / "habits" / "failing")
WHY: Final = ("--reason", "it was looked at")


def failing(site: Installation, *places: str) -> None:
    """Start the workers and a conductor in which these steps fail."""
    site.workers()
    site.conductor("failing", PYTHONPATH=FAILING, FAILS=",".join(places), OS_CONDUCTOR__RETRY_FOR="0")


def parked(site: Installation, move: str, step: str) -> None:
    """Wait until the move rests at the step, and nobody has it."""
    until(lambda: read_move(site.lab, move).state == State.NEEDS_OPERATOR, f"that it rests at {step}", LONG)
    assert site.told("move", "show", move)["step"] == step


def directory(site: Installation, host: str, ending: str = "") -> Path:
    server = catalog.find_server(site.lab.api, site.lab.cell_databases, SERVER).id
    return site.lab.layout.host(host) / "instances" / f"{server}{ending}"


def asked(site: Installation) -> set[str]:
    """The nodes of commands and their answers that stand; a move that rests keeps those of its last steps."""
    paths = site.nodes(f"{ROOT}/hosts")
    return {path for path in paths if re.search("/(commands|results|progress)/", path)}


def host_of(site: Installation, host: str) -> Any:
    (daemon,) = [each for each in site.daemons if each.name == f"worker-{host}" and each.process.poll() is None]
    return daemon


def settled(site: Installation, move: str, step: str) -> None:
    site.done("move", "settle", move, step, "--as", "done", *WHY)


def refused(site: Installation, move: str, step: str) -> str:
    """Why the word is refused; the move rests as before, and no question of it is left."""
    before = asked(site)
    said = site.refused("move", "settle", move, step, "--as", "done", *WHY)
    assert f"droveway move retry {move[:8]}" in said
    assert read_move(site.lab, move).state == State.NEEDS_OPERATOR
    assert asked(site) - before == set()
    return said


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_what_is_set_aside_counts_as_gone_once_both_workers_have_shown_it(site: Installation) -> None:
    failing(site, "discard_source execute after")
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING
    site.done("move", "confirm", move)
    parked(site, move, "discard_source")
    shutil.copytree(directory(site, "host2"), directory(site, "host1", "_resize"))
    assert "host1 still holds what was set aside" in refused(site, move, "discard_source")
    shutil.rmtree(directory(site, "host1", "_resize"))
    disk = directory(site, "host2") / "disk"
    hidden = disk.rename(site.folder / "hidden")
    assert "host2 does not show its copy whole" in refused(site, move, "discard_source")
    hidden.rename(disk)
    # Its session outlives it for a moment: then it is asked and says nothing.
    host_of(site, "host1").kill()
    assert re.search("host1 did not answer|worker of host host1 is away", refused(site, move, "discard_source"))
    site.worker("host1")
    settled(site, move, "discard_source")
    assert site.await_rest(move) == State.DONE
    assert_balanced(site.lab)


@pytest.mark.parametrize("site", ["mariadb"], indirect=True)
def test_a_copy_counts_as_discarded_once_the_source_has_shown_what_it_set_aside(site: Installation) -> None:
    failing(site, "define_guest execute before", "copy_disks revert before")
    move = file_flow(site.lab, "resize")
    parked(site, move, "copy_disks")
    aside = directory(site, "host1", "_resize")
    hidden = aside.rename(site.folder / "hidden")
    assert "host1 does not show its copy whole" in refused(site, move, "copy_disks")
    hidden.rename(aside)
    # As a person does it by hand.
    shutil.rmtree(directory(site, "host2"))
    settled(site, move, "copy_disks")
    assert site.await_rest(move) == State.FAILED
    assert_balanced(site.lab)


@pytest.mark.parametrize("site", ["postgresql", "mariadb"], indirect=True)
def test_a_cell_is_settled_wherever_its_move_rests(site: Installation) -> None:
    """In the middle of a flow, and again behind it; no question of it stays."""
    cell = site.lab.cell_databases["cell1"]
    kept = _copied(cell)
    failing(site, "finish_records execute before")
    move = file_flow(site.lab, "resize")
    parked(site, move, "finish_records")
    until(lambda: _is_given_back(site, move), "that its conductor has given it back", LONG)
    _put_back(kept, cell)
    standing = asked(site)
    words = ("move", "settle", move, "--reason", "last night's copy was put back", "--cell")
    told = site.done(*words, "cell1")
    assert "instances.host: host1 -> host2" in told
    assert "instances.task_state: None -> resize_finish" in told
    for where in ("cell1", "api"):
        assert "nothing differs" in site.done(*words, where)
    assert asked(site) == standing
    settled(site, move, "finish_records")
    assert site.await_rest(move) == State.VERIFYING
    assert "instances.vm_state: active -> resized" in site.done(*words, "cell1")
    assert "nothing differs" in site.done(*words, "cell1")
    until(lambda: asked(site) == set(), "that nothing is asked any more", LONG)
    assert_balanced(site.lab)
    site.done("move", "revert", move)
    assert site.await_rest(move) == State.REVERTED
    assert_balanced(site.lab)


def _is_given_back(site: Installation, move: str) -> bool:
    with site.lab.journal.read() as session:
        claim = session.get(Claim, move)
        return claim is not None and claim.released_at is not None


def _copied(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a cell's database by their table."""
    with database.reading() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for table in CellBase.metadata.sorted_tables
        }


def _put_back(kept: dict[str, list[dict[str, Any]]], database: Database) -> None:
    with database.begin() as connection:
        for table in reversed(CellBase.metadata.sorted_tables):
            connection.execute(sa.delete(table))
        for table in CellBase.metadata.sorted_tables:
            if kept[table.name]:
                connection.execute(sa.insert(table), kept[table.name])
