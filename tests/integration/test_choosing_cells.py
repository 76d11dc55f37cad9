"""The scheduler chooses the cell, from end to end: what a plan says of each cell, and where the move then goes."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.operations import Stage, faults_cleared, stage
from support.two_faults.copies import copy_database

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault, Parked, StepError
from droveway.persistence.journal import moves, requests

CLOUD = """
options: {cross_cell: true, cross_cell_weight: WEIGHT}
cells:
  cell1: {hosts: {host1: {az: az1}, host2: {az: az1}}}
  cell2: {hosts: {host3: {az: az2, traits: [CUSTOM_NEW]}, host4: {az: az1}}}
  cell3: {hosts: {host5: {az: az2}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  bigger: {vcpus: 2, memory_mb: 512, root_gb: 1}
  new: {vcpus: 2, memory_mb: 512, root_gb: 1, extra_specs: {"trait:CUSTOM_NEW": required}}
images: {base: {size_mb: 1}}
groups: {near: {policy: affinity}, apart: {policy: anti-affinity}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  pinned: {flavor: small, host: host1, image: base, state: stopped, az: az1}
  near1: {flavor: small, host: host1, image: base, state: stopped, group: near}
  near2: {flavor: small, host: host5, image: base, state: stopped}
  apart1: {flavor: small, host: host1, image: base, state: stopped, group: apart}
  apart2: {flavor: small, host: host3, image: base, state: stopped, group: apart}
  apart3: {flavor: small, host: host5, image: base, state: stopped, group: apart}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("cells") / "lab", CLOUD.replace("WEIGHT", "1000000.0")) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers and hosts as they were."""
    with faults_cleared(built):
        yield built
    built.bring_back()
    for host in ("host2", "host3", "host4", "host5"):
        built.cli("host", "enable", host)
    homes = {row["name"]: row["host"] for row in built.json("server", "list")}
    assert {homes[name] for name in ("web", "idle", "pinned", "near1", "apart1")} == {"host1"}
    built.assert_balanced()


def plan(lab: Stage, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.json("move", "plan", *words)
    return found


def goes_to(found: dict[str, Any]) -> tuple[str, list[str]]:
    return found["cell"], [found["destination"], *found["alternates"]]


def left_out(found: dict[str, Any]) -> dict[str, str]:
    """Place → reason."""
    return {
        check["host"]: check["detail"].partition(" is left out: ")[2] for check in found["checks"] if not check["ok"]
    }


def mapped(lab: Stage, name: str) -> str:
    return str(lab.json("server", "show", name)["cell"])


def copies(lab: Stage, name: str) -> dict[str, int]:
    """How many rows of the server, deleted ones too, each cell has."""
    found = {}
    for cell in ("cell1", "cell2", "cell3"):
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows:
            query = "SELECT count(*) FROM instances WHERE uuid = ?"
            found[cell] = int(rows.execute(query, (lab.id_of(name),)).fetchone()[0])
    return found


@contextlib.contextmanager
def changed(path: Path, change: str, back: str) -> Iterator[None]:
    """The database with a change."""

    def execute(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as rows, rows:
            rows.execute(statement)

    execute(change)
    try:
        yield
    finally:
        execute(back)


@contextlib.contextmanager
def near(lab: Stage) -> Iterator[None]:
    """The lab where near1 has near2, in another cell, in its affinity group: a lab is made with none so far apart."""
    member = lab.id_of("near2")
    insert = f"""INSERT INTO instance_group_member (instance_uuid, group_id)
                 SELECT '{member}', id FROM instance_groups WHERE name = 'near'"""
    remove = f"DELETE FROM instance_group_member WHERE instance_uuid = '{member}'"
    with changed(lab.root / "api.sqlite", insert, remove):
        yield


@contextlib.contextmanager
def away(lab: Stage, cell: str) -> Iterator[None]:
    """The cell's database cannot be opened."""
    path = lab.root / "cells" / f"{cell}.sqlite"
    kept = path.with_suffix(".kept")
    for made in lab.lab.cell_databases.values():
        made.close()
    path.rename(kept)
    path.mkdir()
    try:
        yield
    finally:
        path.rmdir()
        kept.rename(path)


# Own cell and others.


def test_a_server_stays_in_its_cell_while_there_is_room(lab: Stage) -> None:
    """R1-05: and a plan tells of no other cell's host that it could not go there, since it could."""
    found = plan(lab, "web")
    assert (found["kind"], *goes_to(found)) == ("migrate", "cell1", ["host2", "cell2/host4", "cell2/host3"])
    assert left_out(found) == {"host1": "the server is on it"}


def test_a_full_cell_is_left_for_another_one(lab: Stage) -> None:
    """R1-04, R1-05: by itself, the rows and all; a revert brings it back."""
    before = lab.standing("web")
    lab.cli("host", "disable", "host2")
    found = plan(lab, "web")
    assert (found["kind"], found["cell"]) == ("cross_cell_migrate", "cell2")
    assert [found["destination"], *found["alternates"]] == ["host4", "cell2/host3", "cell3/host5"]
    assert left_out(found) == {"host1": "the server is on it", "host2": "it is disabled"}
    shown = lab.cli("move", "plan", "web")
    assert "destination  host4 in cell cell2, then cell2/host3, cell3/host5" in shown
    lab.cli("server", "migrate", "web")
    move = lab.move("web")
    assert (move.kind, move.state, move.dest_cell, move.dest_host) == (
        "cross_cell_migrate",
        "verifying",
        "cell2",
        "host4",
    )
    assert mapped(lab, "web") == "cell2"
    lab.cli("server", "revert", "web")
    assert lab.standing("web") == before
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}


def test_a_flavor_that_only_another_cell_has_leads_there(lab: Stage) -> None:
    """R1-01, R1-05: filters that leave only another cell win over the weigher."""
    found = plan(lab, "idle", "--flavor", "new")
    assert (found["kind"], *goes_to(found)) == ("cross_cell_resize", "cell2", ["host3"])
    assert left_out(found)["cell3/host5"] == "it lacks the trait CUSTOM_NEW"
    lab.cli("server", "resize", "idle", "--flavor", "new")
    assert (lab.move("idle").kind, lab.move("idle").dest_host) == ("cross_cell_resize", "host3")


def test_a_negative_weight_turns_the_choice_round(tmp_path: Path) -> None:
    """R1-05: room in both, and the server goes."""
    with stage(tmp_path / "lab", CLOUD.replace("WEIGHT", "-1000000.0")) as lab:
        assert plan(lab, "web")["kind"] == "cross_cell_migrate"
        lab.cli("server", "migrate", "idle", "--confirm", "auto")
        assert mapped(lab, "idle") == "cell2"
        assert goes_to(plan(lab, "web", "--to-cell", "cell1")) == ("cell1", ["host2"])
        lab.assert_balanced()


def test_a_cell_that_is_named_is_the_only_one(lab: Stage) -> None:
    """Another one though the own has room, and the own though others have more."""
    assert goes_to(plan(lab, "web", "--to-cell", "cell3")) == ("cell3", ["host5"])
    assert goes_to(plan(lab, "web", "--to-cell", "cell1")) == ("cell1", ["host2"])
    lab.cli("host", "disable", "host2")
    said = lab.refused("server", "migrate", "web", "--to-cell", "cell1")
    assert "cell2/host3: it is in cell cell2 (Cell)" in said


def test_nobody_leaves_without_permission_and_nobody_is_told_off_for_it(tmp_path: Path) -> None:
    """R1-03: by default only hosts of the own cell are tried."""
    text = CLOUD.replace("cross_cell: true", "cross_cell: false").replace("WEIGHT", "-1.0")
    with stage(tmp_path / "lab", text) as lab:
        assert goes_to(plan(lab, "web")) == ("cell1", ["host2"])
        assert left_out(plan(lab, "web"))["cell2/host3"] == "it is in cell cell2"
        lab.cli("host", "disable", "host2")
        assert "no host can take the server web" in lab.refused("server", "migrate", "web")


# Groups, zones, cells that take no servers.


def test_groups_hold_over_cells(lab: Stage) -> None:
    """R1-36: a member in another cell draws there, or keeps away from its host."""
    with near(lab):
        assert goes_to(plan(lab, "near1")) == ("cell3", ["host5"])
    lab.cli("host", "disable", "host2")
    found = plan(lab, "apart1")
    assert goes_to(found) == ("cell2", ["host4"])
    assert "this one has 1" in left_out(found)["cell2/host3"]
    assert "this one has 1" in left_out(found)["cell3/host5"]
    lab.cli("server", "migrate", "apart1")
    assert lab.move("apart1").dest_host == "host4"


def test_a_zone_that_was_asked_for_binds_over_cells(lab: Stage) -> None:
    """R1-30: of the hosts of other cells those in the zone count."""
    lab.cli("host", "disable", "host2")
    found = plan(lab, "pinned")
    assert goes_to(found) == ("cell2", ["host4"])
    assert left_out(found)["cell2/host3"] == "it is in zone az2, not az1"
    lab.cli("server", "migrate", "pinned")
    assert lab.move("pinned").dest_host == "host4"


def test_a_disabled_cell_takes_no_servers_and_lets_its_own_go(lab: Stage) -> None:
    """R1-04: what lives there may move within it, or leave it."""
    api = lab.root / "api.sqlite"
    off, on = (f"UPDATE cell_mappings SET disabled = {value} WHERE name = 'cell2'" for value in (1, 0))
    lab.cli("host", "disable", "host2")
    with changed(api, off, on):
        found = plan(lab, "web")
        assert goes_to(found) == ("cell3", ["host5"])
        assert left_out(found)["cell2/host3"] == "its cell cell2 is disabled"
        assert goes_to(plan(lab, "apart2")) == ("cell2", ["host4"])
    own = [each.replace("cell2", "cell1") for each in (off, on)]
    with changed(api, *own):
        assert plan(lab, "web")["kind"] == "cross_cell_migrate"
        lab.cli("host", "enable", "host2")
        assert (plan(lab, "web")["cell"], plan(lab, "web")["destination"]) == ("cell1", "host2")


def test_a_cell_that_is_away_is_left_out(lab: Stage) -> None:
    """Moves within other cells, and between them, go on; one into it is refused."""
    lab.cli("host", "disable", "host2")
    with away(lab, "cell2"):
        found = plan(lab, "idle")
        assert goes_to(found) == ("cell3", ["host5"])
        assert left_out(found)["cell2/host4"] == "the database of its cell cell2 does not answer"
        assert "whose database does not answer" in lab.refused("server", "migrate", "idle", "--to-cell", "cell2")
        assert "nobody could look in cell cell2" in lab.refused("server", "migrate", "idle", "--host", "host4")
        lab.cli("server", "resize", "idle", "--flavor", "new", code=2)
    lab.cli("host", "enable", "host2")
    with away(lab, "cell2"):
        assert goes_to(plan(lab, "idle")) == ("cell1", ["host2", "cell3/host5"])
    with near(lab), away(lab, "cell3"):
        said = lab.refused("server", "migrate", "near1")
        assert "host2: its affinity group is on cell3/host5 (ServerGroupAffinityFilter)" in said


@contextlib.contextmanager
def namesake(lab: Stage, host: str, cell: str) -> Iterator[None]:
    """The lab where another cell has a host of this name too, which Nova maps to its first cell alone."""
    with contextlib.ExitStack() as stack:
        for table in ("services", "compute_nodes"):
            path = lab.root / "cells" / f"{cell}.sqlite"
            with contextlib.closing(sqlite3.connect(lab.root / "cells" / "cell1.sqlite")) as rows:
                row = rows.execute(f"SELECT * FROM {table} WHERE host = '{host}'")
                values = dict(zip((each[0] for each in row.description), row.fetchone(), strict=True))
            values |= {"id": 99, "uuid": f"twin-of-{host}"} | ({"service_id": 99} if table == "compute_nodes" else {})
            named = ", ".join("NULL" if each is None else repr(each) for each in values.values())
            insert = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({named})"
            stack.enter_context(changed(path, insert, f"DELETE FROM {table} WHERE id = 99"))
        yield


def test_a_host_whose_name_stands_in_two_cells_takes_and_gives_no_server(lab: Stage) -> None:
    """Commands go to a worker by its host's name alone, so they might reach the other machine."""
    with namesake(lab, "host1", "cell2"):
        for words in (("move", "plan", "web"), ("server", "migrate", "web"), ("server", "shelve", "web")):
            said = lab.refused(*words)
            assert "host host1 stands in cell cell1 and cell cell2, and commands go to a worker by its host's" in said
            assert "openstack compute service delete" in said
        assert "host host1 stands in cell cell1 and cell cell2" in lab.refused("host", "disable", "host1")
    with namesake(lab, "host2", "cell2"):
        found = plan(lab, "web")
        assert goes_to(found)[0] == "cell2"
        assert left_out(found)["host2"].startswith("host host2 stands in cell cell1 and cell cell2, and commands go")
        said = lab.refused("server", "migrate", "web", "--host", "host2")
        assert "host host2 stands in cell cell1 and cell cell2" in said
    assert goes_to(plan(lab, "web"))[0] == "cell1"


def test_a_server_that_cannot_leave_keeps_its_cell(lab: Stage) -> None:
    """An address of nova-network stands in its own cell alone; rows of it are in the way in another."""
    server = lab.id_of("idle")
    insert = f"INSERT INTO fixed_ips (instance_uuid, deleted) VALUES ('{server}', 0)"
    with changed(lab.root / "cells" / "cell1.sqlite", insert, "DELETE FROM fixed_ips"):
        assert goes_to(plan(lab, "idle")) == ("cell1", ["host2"])
        assert "addresses of nova-network" in left_out(plan(lab, "idle"))["cell2/host3"]
        lab.cli("host", "disable", "host2")
        assert "it cannot cross to another one (Cell)" in lab.refused("server", "migrate", "idle")
        assert "it cannot cross to another one" in lab.refused("server", "migrate", "idle", "--to-cell", "cell2")
    insert = f"INSERT INTO instances (uuid, hidden, deleted) VALUES ('{server}', 1, 0)"
    with changed(lab.root / "cells" / "cell2.sqlite", insert, f"DELETE FROM instances WHERE uuid = '{server}'"):
        found = plan(lab, "idle")
        assert goes_to(found) == ("cell3", ["host5"])
        assert f"it has rows of server {server} already, hidden" in left_out(found)["cell2/host3"]
        assert "already, hidden" in lab.refused("server", "migrate", "idle", "--to-cell", "cell2")


# A plan, and what comes of it.


def test_a_plan_holds_for_cell_host_and_kind(lab: Stage) -> None:
    """By the time it is used the server would stay in its cell, or go to another one."""
    lab.cli("host", "disable", "host2")
    made = plan(lab, "idle")
    assert made["kind"] == "cross_cell_migrate"
    lab.cli("host", "enable", "host2")
    said = lab.refused("move", "create", "idle", "--from-plan", made["id"])
    assert "went from host1 to cell2/host4, cell2/host3, cell3/host5 and would now go from host1 to host2, " in said
    lab.cli("host", "disable", "host2")
    lab.cli("move", "create", "idle", "--from-plan", made["id"])
    assert (lab.move("idle").kind, lab.move("idle").dest_cell) == ("cross_cell_migrate", "cell2")


@pytest.mark.parametrize("step", ["claim", "record_destination_copy", "hide_source"])
def test_the_next_cell_is_tried_when_a_host_fails(lab: Stage, step: str) -> None:
    """R1-42: nothing is left in the first one, and the second has the whole server."""
    for host in ("host2", "host4"):
        lab.cli("host", "disable", host)
    before = lab.standing("web")
    lab.arm(step, "fail", phase="after", fault="destination")
    lab.cli("server", "migrate", "web")
    move = lab.move("web")
    assert (move.state, move.attempt, move.dest_cell, move.dest_host) == ("verifying", 2, "cell3", "host5")
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 1}
    assert mapped(lab, "web") == "cell3"
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    assert lab.standing("web") == before
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}


def test_a_plan_into_a_cell_is_used_with_the_name_or_the_id_of_the_cell(lab: Stage) -> None:
    cell = lab.json("cell", "show", "cell2")["id"]
    made = lab.json("move", "plan", "idle", "--to-cell", cell)
    other = lab.json("cell", "show", "cell3")["id"]
    for wrong in ("cell3", other):
        said = lab.refused("move", "create", "idle", "--from-plan", made["id"], "--to-cell", wrong)
        assert "was made for another request" in said
    lab.cli("move", "create", "idle", "--from-plan", made["id"], "--to-cell", cell)
    assert lab.move("idle").dest_cell == "cell2"


def test_a_move_that_no_cell_takes_is_undone(lab: Stage) -> None:
    """Each is tried once, and all is as before."""
    for host in ("host2", "host4"):
        lab.cli("host", "disable", host)
    before = lab.standing("web")
    lab.arm("copy_disks", "fail", phase="after", fault="destination", count=2)
    lab.cli("server", "migrate", "web", code=3)
    assert (lab.move("web").state, lab.move("web").attempt) == ("failed", 2)
    assert lab.standing("web") == before
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}


# A host of the other kind of cell is next: the graph changes.


def only(lab: Stage, *hosts: str) -> None:
    for host in {"host2", "host3", "host4", "host5"} - set(hosts):
        lab.cli("host", "disable", host)


def rows_of(lab: Stage, cell: str, table: str, name: str) -> list[dict[str, Any]]:
    """The server's rows in a table of the cell."""
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows:
        rows.row_factory = sqlite3.Row
        query = f"SELECT * FROM {table} WHERE instance_uuid = ? ORDER BY id"
        return [dict(row) for row in rows.execute(query, (lab.id_of(name),))]


def flows(lab: Stage, name: str) -> list[tuple[str, str | None]]:
    """Kind and outcome of the flows of the server's latest move, in order."""
    with contextlib.closing(sqlite3.connect(lab.root / "journal.sqlite")) as rows:
        query = "SELECT kind, outcome FROM move_flows WHERE move_id = ? ORDER BY created_at"
        return [tuple(row) for row in rows.execute(query, (lab.move(name).id,))]


STEPS = ["claim", "record_destination", "copy_disks", "define_guest", "start_guest"]


@pytest.mark.parametrize("step", STEPS)
def test_the_graph_changes_with_the_next_cell(lab: Stage, step: str) -> None:
    """One move, one migration, one action: its own cell's host fails, and another cell's takes the server."""
    only(lab, "host2", "host5")
    before, earlier = lab.standing("web"), len(rows_of(lab, "cell1", "migrations", "web"))
    actions = len(rows_of(lab, "cell1", "instance_actions", "web"))
    lab.arm(step, "fail", phase="before" if step == "start_guest" else "after", fault="destination")
    lab.cli("server", "migrate", "web")
    move = lab.move("web")
    assert (move.state, move.kind, move.attempt) == ("verifying", "cross_cell_migrate", 2)
    assert (move.dest_cell, move.dest_host, move.error) == ("cell3", "host5", None)
    assert flows(lab, "web") == [("migrate", "undone"), ("cross_cell_migrate", "done")]
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 1}
    for cell in ("cell1", "cell3"):
        migrations = rows_of(lab, cell, "migrations", "web")
        assert len(migrations) == earlier + 1
        assert (migrations[-1]["uuid"], migrations[-1]["cross_cell_move"]) == (move.id, 1)
        assert len(rows_of(lab, cell, "instance_actions", "web")) == actions + 1
    entered = [run.step for run in lab.history(move.id) if (run.flow, run.direction) == ("migrate", "revert")]
    assert entered[-4:] == ["choose_destinations", "record_migration", "accept", "record_before"]
    left = lab.json("move", "show", move.id)["left_out"]
    assert [each["attempt"] for each in left if each["host"] == "host2"] == [1]
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    assert lab.standing("web") == before
    assert rows_of(lab, "cell1", "migrations", "web")[-1]["status"] == "reverted"


def test_the_graph_changes_back_to_the_own_cell(tmp_path: Path) -> None:
    """Two hosts of other cells fail, and the server stays in its own after all: `max_attempts` counts over all."""
    with stage(tmp_path / "lab", CLOUD.replace("WEIGHT", "-1000000.0")) as lab:
        only(lab, "host2", "host3", "host5")
        lab.arm("copy_disks", "fail", phase="after", fault="destination", count=2)
        lab.cli("server", "resize", "web", "--flavor", "bigger", "--confirm", "auto")
        move = lab.move("web")
        assert (move.state, move.kind, move.attempt, move.dest_host) == ("done", "resize", 3, "host2")
        assert flows(lab, "web") == [("cross_cell_resize", "undone"), ("resize", "done"), ("confirm", "done")]
        assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}
        assert rows_of(lab, "cell1", "migrations", "web")[-1]["cross_cell_move"] == 0
        lab.assert_balanced()


@pytest.mark.parametrize("count", [2, 3])
def test_when_the_last_graph_fails_too_all_is_undone(lab: Stage, count: int) -> None:
    """What the first flow began with is undone by the last one; the action ends with Error, once."""
    only(lab, "host2", "host5")
    before = lab.standing("web")
    lab.arm("copy_disks", "fail", phase="after", fault="destination", count=count)
    lab.cli("server", "migrate", "web", code=3)
    move = lab.move("web")
    assert (move.state, move.kind, move.attempt) == ("failed", "cross_cell_migrate", 2)
    assert lab.standing("web") == before
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}
    assert rows_of(lab, "cell1", "migrations", "web")[-1]["status"] == "error"
    assert rows_of(lab, "cell1", "migrations", "web")[-1]["cross_cell_move"] == 0
    assert rows_of(lab, "cell1", "instance_actions", "web")[-1]["message"] == "Error"


@pytest.mark.parametrize("step", ["record_before", "accept", "record_migration", "choose_destinations"])
@pytest.mark.parametrize("way", ["cancel", "fail"])
def test_a_flow_that_goes_on_undoes_what_the_first_one_did(lab: Stage, step: str, way: str) -> None:
    """It ends at one of its first steps: those that it has not come to yet were done before it."""
    only(lab, "host2", "host5")
    before = lab.standing("web")
    entered: list[str] = []

    def probe(_move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == ("copy_disks", "execute", "after"):
            raise DestinationFault("it fails")
        if (at, direction, phase) == (step, "execute", "before"):
            entered.append(at)
            if len(entered) == 2 and way == "cancel":
                lab.cli("move", "cancel", lab.move("web").id)
            elif len(entered) == 2:
                raise StepError("it fails", code="step-failed")

    with lab.running(probe=probe):
        lab.cli("server", "migrate", "web", "--wait", code=3)
    assert lab.move("web").state == ("cancelled" if way == "cancel" else "failed")
    assert lab.standing("web") == before
    assert rows_of(lab, "cell1", "migrations", "web")[-1]["status"] == "error"


def test_a_server_that_is_deleted_between_two_graphs_goes(lab: Stage) -> None:
    """Nothing of it stays, in either cell."""
    only(lab, "host2", "host5")
    lab.cli("lab", "server", "create", "gone", "--flavor", "small", "--host", "host1", "--image", "base")
    server = lab.id_of("gone")
    asked: list[str] = []

    def probe(move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == ("copy_disks", "execute", "after"):
            raise DestinationFault("it fails")
        if (at, direction, phase) == ("accept", "revert", "before") and not asked:
            asked.append(at)
            with lab.lab.journal.write() as session:
                requests.delete(session, moves.get(session, move, lock=True))

    with lab.running(probe=probe):
        lab.cli("server", "migrate", "gone", "--wait", code=3)
    assert lab.lab.cloud.placement.allocations(server).allocations == {}
    assert "gone" not in {row["name"] for row in lab.json("server", "list")}
    lab.assert_balanced()


@pytest.mark.parametrize("words", [("--to-cell", "cell1"), ("--host", "host2")])
def test_a_cell_that_was_named_is_kept_to(lab: Stage, words: tuple[str, ...]) -> None:
    """The other hosts are no alternates, whatever fails."""
    only(lab, "host2", "host5")
    lab.arm("copy_disks", "fail", phase="after", fault="destination")
    lab.cli("server", "migrate", "web", *words, code=3)
    assert flows(lab, "web") == [("migrate", "undone")]


FIRST = ["record_before", "accept", "record_migration", "choose_destinations"]
INSTANTS = [
    ("alternates", "execute", "before"),
    ("alternates", "execute", "after"),
    *[(step, "revert", phase) for step, phase in zip(FIRST[::-1], ("before", "stored") * 2, strict=True)],
    *[(step, "execute", phase) for step, phase in zip(FIRST, ("before", "stored") * 2, strict=True)],
    ("claim", "execute", "before"),
]
"""Where a conductor dies between two graphs: in the flow that ends, at its end, and where the next one begins."""


@pytest.mark.parametrize(
    ("step", "direction", "phase", "fails"),
    [(*each, 2 if number % 3 == 2 else 1) for number, each in enumerate(INSTANTS)],
)
def test_a_conductor_that_dies_between_two_graphs_changes_nothing(
    lab: Stage, step: str, direction: str, phase: str, fails: int
) -> None:
    """It is killed once before the point, so that what comes is the second graph's, and once there."""
    only(lab, "host2", "host5")
    before, actions = lab.standing("web"), len(rows_of(lab, "cell1", "instance_actions", "web"))
    lab.arm("copy_disks", "fail", phase="after", fault="destination", count=fails)
    lab.arm("record_destination", "kill", direction="revert", phase="after")
    lab.killed("server", "migrate", "web")
    lab.arm(step, "kill", direction=direction, phase=phase)
    lab.killed("move", "resume")
    lab.cli("move", "resume", code=0 if fails == 1 else 3)
    move = lab.move("web")
    assert (move.kind, move.attempt) == ("cross_cell_migrate", 2)
    assert [outcome for _kind, outcome in flows(lab, "web")] == ["undone", "done" if fails == 1 else "undone"]
    assert len(rows_of(lab, "cell1", "instance_actions", "web")) == actions + 1
    lab.assert_balanced()
    if fails == 1:
        assert (move.state, mapped(lab, "web")) == ("verifying", "cell3")
        lab.cli("server", "revert", "web")
    assert lab.standing("web") == before
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 0}


@pytest.mark.parametrize(
    ("left_at", "kept_at"),
    [
        ("copy_records", "choose_destinations"),
        ("copy_disks", "claim"),
        ("hide_source", "copy_disks"),
        ("save_request_spec", "choose_destinations"),
    ],
)
def test_a_journal_of_the_graph_before_takes_the_next_one(lab: Stage, kept_at: str, left_at: str) -> None:
    """By the copy the move is on its way within its cell, where all was undone since: it goes on in the other one."""
    only(lab, "host2", "host5")
    move = submit(lab.lab, MoveSpec(server="web")).id
    kept, failed, left = lab.root / "copy.sqlite", threading.Event(), threading.Event()
    kept.unlink(missing_ok=True)

    def meet(_move: str, step: str, direction: str, phase: str) -> None:
        if (direction, phase) != ("execute", "before"):
            return
        if step == kept_at and not kept.exists():
            copy_database(lab.lab.layout.journal, kept)
        if step == "copy_disks" and not failed.is_set():
            failed.set()
            raise DestinationFault("the disk is full", code="full")
        if step == left_at and failed.is_set():
            left.set()
            raise Parked("the conductor's process is gone")

    with lab.running(meet):
        assert left.wait(180)
    copy_database(kept, lab.lab.layout.journal)
    lab.lab.adopt()
    with lab.running():
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error, ended.kind) == ("verifying", None, "cross_cell_migrate")
    assert (ended.attempt, ended.dest_host, mapped(lab, "web")) == (2, "host5", "cell3")
    assert copies(lab, "web") == {"cell1": 1, "cell2": 0, "cell3": 1}
    lab.assert_balanced()
