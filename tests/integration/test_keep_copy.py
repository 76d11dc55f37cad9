"""A confirm ends the mark "copy of this move": disks and guest are the server's own from then on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.flows import registry
from droveway.lab import stopped
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.tables import MoveFlow
from droveway.persistence.nova.cell import Instance
from droveway.workers.actions import table as actions

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {shared: nfs1}, host4: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base}
  mail: {flavor: small, host: host3, image: base, state: stopped}
"""
FIRST = registry.graph("confirm", 1)


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\nretry_for = 0.2\n")
        yield made


def marks(lab: Stage, name: str) -> list[str]:
    """Where anything of the server bears a move's mark."""
    server = lab.id_of(name)
    hosts = sorted(lab.lab.identity.hosts)
    paths = [path for host in hosts for path in (lab.lab.layout.host(host) / "instances").glob(f"{server}*/droveway*")]
    guests = [(host, lab.lab.hypervisor(host).guest(server)) for host in hosts]
    return [path.name for path in paths] + [host for host, guest in guests if guest is not None and guest.mark]


@pytest.mark.parametrize(("name", "there"), [("web", "host2"), ("mail", "host4")])
def test_a_confirm_takes_the_mark_off_disks_and_guest(lab: Stage, name: str, there: str) -> None:
    """Also on shared storage; a guest that runs goes on, and is moved again like any other."""
    lab.cli("server", "migrate", name, "--host", there)
    assert sorted({*marks(lab, name)}) == ["droveway-manifest.json", "droveway.json", there]
    starts = len(lab.starts(name))
    lab.cli("server", "confirm", name)
    assert (marks(lab, name), len(lab.starts(name))) == ([], starts)
    lab.assert_balanced()
    lab.cli("server", "migrate", name, "--confirm", "auto")
    assert marks(lab, name) == []
    lab.assert_balanced()


@pytest.mark.parametrize(("name", "there"), [("web", "host2"), ("mail", "host4")])
def test_a_revert_leaves_no_mark_either(lab: Stage, name: str, there: str) -> None:
    lab.cli("server", "migrate", name, "--host", there)
    lab.cli("server", "revert", name)
    assert marks(lab, name) == []
    lab.assert_balanced()


def test_a_move_that_was_undone_leaves_no_mark(lab: Stage) -> None:
    lab.arm("define_guest", "fail")
    lab.cli("server", "migrate", "web", "--host", "host2", code=3)
    assert marks(lab, "web") == []
    lab.assert_balanced()


def test_a_destination_that_is_away_owes_the_end_of_the_mark(lab: Stage) -> None:
    """The move ends; nobody takes the mark for a copy's meanwhile, and the host takes it off once it is back."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    went: list[str] = []

    def go(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("keep_copy", "execute", "before") and not went:
            went.append("host2")
            workers.stop("host2")
            stopped.stop(lab.lab.layout, "host2")

    with lab.running(go) as workers:
        move_requests.carry(lab.lab, move_requests.file_request(lab.lab, lab.move("web").id, move_requests.confirm).id)
    move = lab.move("web")
    assert (move.state, went, marks(lab, "web")) == ("done", ["host2"], ["droveway.json", "host2"])
    debts = lab.json("debt", "list")
    assert [(debt["host"], debt["step"]) for debt in debts] == [("host2", "keep_copy")]
    owed = debts[0]
    assert f"debt      {owed['id']}: host2, keep_copy, owed" in lab.cli("move", "show", move.id)
    lab.assert_balanced()
    lab.cli("audit", "--heal", "--yes")
    assert (lab.directory("host2", "web") / "disk").stat().st_size == 2**30
    lab.cli("lab", "worker", "start", "host2")
    lab.cli("move", "resume")
    assert (marks(lab, "web"), lab.json("debt", "list")) == ([], [])
    assert lab.json("debt", "show", str(owed["id"]))["next"] == "nothing to do: it is done"
    lab.assert_balanced()


def test_a_worker_of_an_older_release_is_not_asked_for_what_it_does_not_know(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It owes it until it is upgraded."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    with monkeypatch.context() as older:
        older.delitem(actions.ACTIONS, "keep_copy")
        lab.cli("server", "confirm", "web")
    assert (lab.move("web").state, marks(lab, "web")) == ("done", ["droveway.json", "host2"])
    (owed,) = lab.json("debt", "list")
    assert (owed["host"], owed["step"]) == ("host2", "keep_copy")
    assert "does not know keep_copy@1: upgrade it first" in owed["error"]
    with lab.running():
        until(lambda: not lab.json("debt", "list"), "what was owed")
    assert marks(lab, "web") == []


def begin_first(lab: Stage, name: str) -> str:
    """A confirm that an earlier release filed; the move."""
    flow = FlowRef(FIRST.kind, FIRST.version, FIRST.digest())
    move = lab.move(name).id
    with lab.lab.journal.write() as session:
        requests.end_wait(session, moves.get(session, move, lock=True), flow)
    return move


def version(lab: Stage, move: str) -> int | None:
    with lab.lab.journal.read() as session:
        query = sa.select(MoveFlow.version).where(MoveFlow.move_id == move, MoveFlow.kind == "confirm")
        return session.scalar(query.order_by(MoveFlow.created_at.desc()).limit(1))


def test_a_confirm_that_an_earlier_release_began_goes_on_as_it_began(lab: Stage) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = begin_first(lab, "web")
    lab.cli("move", "resume")
    assert (lab.move("web").state, version(lab, move)) == ("done", 1)
    assert "keep_copy" not in [row.step for row in lab.history(move)]
    lab.assert_balanced()
    lab.cli("audit", "--heal", "--yes")
    lab.cli("server", "migrate", "web", "--confirm", "auto")
    assert marks(lab, "web") == []
    lab.assert_balanced()


def test_a_confirm_that_an_earlier_release_began_is_undone_before_it_deletes(lab: Stage) -> None:
    """What comes after that is a confirm of this release."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = begin_first(lab, "web")
    lab.arm("check_source", "fail")
    lab.cli("move", "resume", code=3)
    assert (lab.move("web").state, version(lab, move)) == ("verifying", 1)
    lab.assert_balanced()
    lab.cli("server", "confirm", "web")
    assert (lab.move("web").state, marks(lab, "web")) == ("done", [])


def test_a_confirm_that_an_earlier_release_began_is_settled(lab: Stage) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = begin_first(lab, "web")
    lab.arm("discard_source", "fail", count=20)
    lab.cli("move", "resume", code=4)
    assert lab.move("web").state == "needs-operator"
    lab.cli("lab", "fault", "clear")
    lab.cli("move", "settle", move, "discard_source", "--as", "not-done", "--reason", "nothing was deleted")
    assert (lab.move("web").state, version(lab, move)) == ("done", 1)
    lab.assert_balanced()


def test_a_guest_that_an_earlier_release_confirmed_is_not_healed_away(lab: Stage) -> None:
    """Nova evacuates the server from the host where it was confirmed, and the host comes back."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    begin_first(lab, "web")
    lab.cli("move", "resume")
    assert marks(lab, "web") == ["droveway.json", "host2"]
    lab.cli("lab", "server", "stop", "web")
    server, elsewhere = lab.id_of("web"), lab.directory("host1", "web")
    shutil.copytree(lab.directory("host2", "web"), elsewhere)
    (elsewhere / "droveway.json").unlink()
    guest = lab.lab.hypervisor("host2").guest(server)
    assert guest is not None
    lab.lab.hypervisor("host1").define(
        server,
        guest.definition,
        vcpus=None,
        memory_mb=None,
        disks=[elsewhere / "disk"],
        volumes=[],
        ports=[],
        mark=None,
    )
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(host="host1", node="host1"))
    lab.cli("audit", "--heal", "--yes", code=3)
    assert lab.lab.hypervisor("host2").guest(server) == guest
    assert (lab.directory("host2", "web") / "disk").stat().st_size == 2**30
