"""Hosts that die for good and are declared down: whatever a move was at, it ends, and only the clean-up is owed."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.labs.beside_nova import Nova
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.conductor import registrations
from droveway.engines.conductor.run import MoveRun
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import books, operations, stopped
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import Instance, Service
from droveway.wire.commands import Registration
from droveway.workers.hypervisors import guests_log

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {shared: nfs1}, host4: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
"""
WORDS = ("--flavor", "small", "--image", "base", "--volume", "1")
NUMBERS = itertools.count()


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\nretry_for = 0.5\n")
        yield made


@pytest.fixture(name="server")
def fixture_server(lab: Stage) -> Iterator[str]:
    """A server's name; afterwards nothing is left of it, and each host is up."""
    name = f"server{next(NUMBERS)}"
    lab.cli("lab", "server", "create", name, "--host", "host1", *WORDS)
    uuid = lab.id_of(name)
    yield name
    if name in {row["name"] for row in lab.json("server", "list")}:
        lab.cli("lab", "server", "delete", name)
    assert leftovers.of(lab.lab, uuid) == []


def burn(lab: Stage, host: str) -> None:
    """The host is off, with all that ran on it, and somebody says so."""
    stopped.stop(lab.lab.layout, host)
    hypervisor = lab.lab.hypervisor(host)
    for guest in list(hypervisor.guests()):
        if guest.running:
            hypervisor.stop(guest.server, grace=0.0, fence=lambda: None)
    # The command waits for the lab, which runs in this process.
    with lab.lab.cell_databases["cell1"].write() as session:
        service = sa.update(Service).where(Service.host == host, Service.binary == "nova-compute")
        session.execute(service.values(disabled=True, disabled_reason="burnt, ticket 1", forced_down=True))


def come_back(lab: Stage, host: str) -> None:
    """The host is back, and does what it owes."""
    stopped.start(lab.lab.layout, host)
    lab.cli("host", "enable", host)
    with lab.running():
        until(lambda: not lab.json("debt", "list"), "the end of what is owed")


@contextlib.contextmanager
def dying(
    lab: Stage, host: str, step: str, direction: str = "execute", phase: str = "before", *, other: str = ""
) -> Iterator[list[str]]:
    """Run the lab, and let the host die as soon as the step comes to that, and with it the ``other`` one."""
    died: list[str] = []

    def die(_move: str, at: str, way: str, when: str) -> None:
        if (at, way, when) == (step, direction, phase) and not died:
            for each in filter(None, (host, other)):
                died.append(each)
                workers.stop(each)
                burn(lab, each)

    with lab.running(die) as workers:
        yield died


def rest(lab: Stage, move: str) -> Move:
    return move_requests.carry(lab.lab, move)


def ask(lab: Stage, move: str, verb: str) -> None:
    with lab.lab.journal.write() as session:
        getattr(move_requests, verb)(session, session.get_one(Move, move))


def moved(lab: Stage, server: str) -> str:
    lab.cli("server", "migrate", server, "--host", "host2")
    return lab.move(server).id


def end(lab: Stage, move: Move, dead: str) -> Move:
    """Give the one command that a move in `verifying` names, and see it end."""
    if move.state == State.VERIFYING:
        verb, other = ("revert", "confirm") if move.dest_host == dead else ("confirm", "revert")
        assert f"droveway move {verb} {move.id[:8]}" in lab.refused("move", other, move.id)
        lab.cli("move", verb, move.id)
        move = lab.move(move.server_name)
    assert State(move.state) in ENDED, (move.state, move.error)
    return move


def owing(lab: Stage, *hosts: str) -> None:
    """Only these hosts owe, and the audit finds nothing else."""
    assert {row["host"] for row in lab.json("debt", "list")} <= set(hosts)
    balanced(lab, hosts[0])


def balanced(lab: Stage, dead: str) -> None:
    """The audit finds nothing but that a guest went off with its host, and no server ever ran twice."""
    found = [each for each in books.balance(lab.lab).findings if f"is off on {dead}, but" not in each.detail]
    assert found == []
    assert guests_log.overlaps(lab.lab.layout.guests_log) == []


def of(*steps: str, host: str) -> list[tuple[str, str]]:
    return [(step, host) for step in steps]


@pytest.mark.parametrize(
    ("step", "dead"),
    of("mark_confirming", "check_source", "discard_source", "settle_records", host="host1")
    + of("check_destination_copy", "discard_source", host="host2"),
)
def test_a_confirm_ends_without_a_host(lab: Stage, server: str, step: str, dead: str) -> None:
    """Without the source the server stays where it runs.  Without the destination no copy is deleted."""
    move = moved(lab, server)
    with dying(lab, dead, step) as died:
        ask(lab, move, "confirm")
        found = rest(lab, move)
    assert died
    ended = end(lab, found, dead)
    owing(lab, dead)
    home = "host2" if dead == "host1" else "host1"
    assert (ended.state, lab.standing(server).runs) == (State.DONE if home == "host2" else State.REVERTED, [home])
    come_back(lab, dead)
    balanced(lab, dead)


@pytest.mark.parametrize(
    ("step", "dead"),
    of("mark_reverting", "stop_guest", "restore_disks", "start_guest", "discard_destination", host="host2")
    + of("check_source", "restore_disks", "start_guest", "discard_destination", "settle_records", host="host1"),
)
def test_a_revert_ends_without_a_host(lab: Stage, server: str, step: str, dead: str) -> None:
    """Without the destination the server comes back from its whole disks.

    Without the source it stays where it was until its start was asked for; after that the other copy is kept.
    """
    move = moved(lab, server)
    with dying(lab, dead, step) as died:
        ask(lab, move, "revert")
        found = rest(lab, move)
    assert died
    ended = end(lab, found, dead)
    owing(lab, dead, "host2")
    if dead == "host2":
        assert (ended.state, lab.standing(server).runs) == (State.REVERTED, ["host1"])
    elif step == "discard_destination":
        assert not lab.directory("host2", server).exists()
        assert lab.directory("host2", server, f"_keep-{move}").is_dir()
        (debt,) = lab.json("debt", "list")
        assert "until host1 is back" in lab.json("debt", "show", str(debt["id"]))["next"]
    elif step != "settle_records":
        assert (ended.state, lab.standing(server).runs) == (State.DONE, ["host2"])
    come_back(lab, dead)
    balanced(lab, dead)


def test_what_nova_left_of_its_revert_is_kept_without_the_source(lab: Stage, server: str) -> None:
    """The destination failed to delete its copy, which may be the only whole one: it goes once the source is back.

    Under the server's own name an evacuation to this host would take it for the server's disks.
    """
    nova = Nova(lab, server)
    move = moved(lab, server)
    copy = lab.directory("host2", server)
    shutil.copytree(copy, copy.with_name("copied"))
    nova.revert(move)
    copy.with_name("copied").rename(copy)
    burn(lab, "host1")
    lab.cli("server", "revert", server)
    assert not copy.exists()
    assert lab.directory("host2", server, f"_keep-{move}").is_dir()
    come_back(lab, "host1")
    balanced(lab, "host1")


def test_in_a_shared_directory_nothing_of_what_nova_reverted_is_kept(lab: Stage) -> None:
    """The destination shows the server's own disks: they keep their name, and stay when it does what it owes."""
    lab.cli("lab", "server", "create", "shared", "--host", "host3", *WORDS)
    nova = Nova(lab, "shared")
    lab.cli("server", "migrate", "shared", "--host", "host4")
    nova.revert(lab.move("shared").id)
    disk = lab.directory("host4", "shared") / "disk"
    own = disk.stat().st_ino
    burn(lab, "host3")
    lab.cli("server", "revert", "shared")
    assert "discard_destination" in owed_by(lab, "host4")
    assert (disk.stat().st_ino, list(disk.parent.parent.glob("*_keep-*"))) == (own, [])
    come_back(lab, "host3")
    balanced(lab, "host3")
    assert disk.stat().st_ino == own
    lab.cli("lab", "server", "delete", "shared")


def test_where_nova_left_nothing_of_its_revert_nothing_is_owed(lab: Stage, server: str) -> None:
    nova = Nova(lab, server)
    nova.revert(moved(lab, server))
    burn(lab, "host1")
    lab.cli("server", "revert", server)
    assert [debt for debt in lab.json("debt", "list") if debt["host"] == "host2"] == []
    come_back(lab, "host1")
    balanced(lab, "host1")


def test_a_start_that_may_have_begun_leaves_no_mark_on_the_disks(lab: Stage, server: str) -> None:
    """The source dies while it is asked for the start: when it is back the disks are the server's own."""
    move = moved(lab, server)
    with dying(lab, "host1", "start_guest", phase="during") as died:
        ask(lab, move, "revert")
        found = rest(lab, move)
    assert (died, found.state) == (["host1"], State.REVERTED)
    come_back(lab, "host1")
    assert not list(lab.directory("host1", server).glob("droveway*"))
    assert not lab.directory("host2", server).exists()


@pytest.mark.parametrize("step", ["prepare_source_guest", "start_guest"])
def test_in_a_shared_directory_the_destination_takes_its_copy_back(lab: Stage, step: str) -> None:
    """The source had its disks back under the server's name: the destination's guest is not started on those."""
    lab.cli("lab", "server", "create", "shared", "--host", "host3", *WORDS)
    lab.cli("server", "migrate", "shared", "--host", "host4")
    disk = lab.directory("host4", "shared") / "disk"
    copy, move = disk.stat().st_ino, lab.move("shared").id
    with dying(lab, "host3", step) as died:
        ask(lab, move, "revert")
        found = rest(lab, move)
    assert died
    assert (found.state, disk.stat().st_ino) == (State.VERIFYING, copy), found.error
    assert lab.standing("shared").runs == ["host4"]
    assert end(lab, found, "host3").state == State.DONE
    owing(lab, "host3")
    come_back(lab, "host3")
    balanced(lab, "host3")
    assert disk.stat().st_ino == copy
    lab.cli("lab", "server", "delete", "shared")


@pytest.mark.parametrize(
    ("step", "dead"),
    of("mark_confirming", "discard_source", host="host1")
    + of("mark_confirming", "discard_source", "mark_deleting", "remove_guest", host="host2"),
)
def test_a_delete_ends_without_a_host(lab: Stage, server: str, step: str, dead: str) -> None:
    move = moved(lab, server)
    with dying(lab, dead, step) as died:
        operations.request_delete(lab.lab, server)
        found = rest(lab, move)
    assert died
    assert found.state == State.DONE, (found.state, found.error, found.waits_for)
    owing(lab, dead)
    come_back(lab, dead)
    balanced(lab, dead)


@pytest.mark.parametrize(
    ("step", "dead", "phase"),
    [
        ("check_destination", "host1", "before"),
        ("set_aside", "host1", "before"),
        ("copy_disks", "host1", "during"),
        ("connect_destination", "host1", "before"),
        ("copy_disks", "host2", "before"),
        ("switch_records", "host2", "before"),
        ("start_guest", "host2", "before"),
        ("start_guest", "host2", "during"),
        ("finish_records", "host2", "before"),
    ],
)
def test_a_move_ends_without_a_host(lab: Stage, server: str, step: str, dead: str, phase: str) -> None:
    """What may have been started on a host that is off leaves the revert; a copy that is whole is started."""
    with dying(lab, dead, step, phase=phase) as died:
        move = submit(lab.lab, MoveSpec(server=server, flavor=None, host="host2")).id
        found = rest(lab, move)
    assert died
    if (step, phase) in {("connect_destination", "before"), ("start_guest", "during"), ("finish_records", "before")}:
        assert found.state == State.VERIFYING, found.error
    end(lab, found, dead)
    owing(lab, dead, "host2")
    if dead == "host2":
        assert lab.standing(server).runs == ["host1"]
    come_back(lab, dead)
    balanced(lab, dead)


def test_a_copy_whose_source_is_dead_is_kept_under_another_name(lab: Stage, server: str) -> None:
    """An evacuation by Nova to that host would take a copy under the server's name for its disks."""
    uuid = lab.id_of(server)
    with dying(lab, "host1", "connect_destination") as died:
        move = submit(lab.lab, MoveSpec(server=server, flavor=None, host="host2")).id
        until(lambda: died, "the death of host1")
        ask(lab, move, "cancel")
        found = rest(lab, move)
    assert (died, found.state) == (["host1"], State.CANCELLED), found.error
    kept = lab.directory("host2", server, f"_keep-{move}")
    assert [path.name for path in kept.parent.glob(f"{uuid}*")] == [kept.name]
    assert (kept / "disk").is_file()
    assert lab.lab.hypervisor("host2").guest(uuid) is None
    owing(lab, "host1", "host2")
    come_back(lab, "host1")
    balanced(lab, "host1")
    assert not kept.exists()


def test_a_worker_of_an_older_release_keeps_the_copy_under_its_name(
    lab: Stage, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no other; its move ends as any other does, and what it owes is paid when the source is back."""
    uuid = lab.id_of(server)
    with monkeypatch.context() as older, dying(lab, "host1", "connect_destination") as died:
        move = submit(lab.lab, MoveSpec(server=server, flavor=None, host="host2")).id
        until(lambda: died, "the death of host1")
        # What a worker registers with is read by the flow, from where it stands.
        told = MoveRun.workers
        older.setattr(MoveRun, "workers", lambda run: {host: older_one(each) for host, each in told(run).items()})
        ask(lab, move, "cancel")
        found = rest(lab, move)
    assert found.state == State.CANCELLED, found.error
    copy = lab.directory("host2", server)
    assert [path.name for path in copy.parent.glob(f"{uuid}*")] == [copy.name]
    owing(lab, "host1", "host2")
    come_back(lab, "host1")
    balanced(lab, "host1")
    assert not copy.exists()


@pytest.mark.parametrize("older", [False, True])
def test_a_copy_that_is_kept_on_a_dead_host_is_renamed_when_that_is_back(
    lab: Stage, server: str, monkeypatch: pytest.MonkeyPatch, *, older: bool
) -> None:
    """Both hosts are dead when the move is undone, and the source is so for longer.

    A worker of an older release, which knows no renaming, is not asked for it.
    """
    uuid = lab.id_of(server)
    with dying(lab, "host1", "connect_destination", other="host2") as died:
        move = submit(lab.lab, MoveSpec(server=server, flavor=None, host="host2")).id
        until(lambda: len(died) == 2, "the death of both")
        ask(lab, move, "cancel")
        found = rest(lab, move)
    assert found.state == State.CANCELLED, found.error
    renaming = owed_by(lab, "host2").get("rename_copy")
    assert renaming is not None
    copy, kept = lab.directory("host2", server), lab.directory("host2", server, f"_keep-{move}")
    assert copy.is_dir()
    with monkeypatch.context() as release:
        if older:
            told = registrations.workers
            release.setattr(
                registrations, "workers", lambda asked: {host: older_one(each) for host, each in told(asked).items()}
            )
        stopped.start(lab.lab.layout, "host2")
        lab.cli("host", "enable", "host2")
        lab.cli("move", "resume")
    ended = lab.json("debt", "show", str(renaming))
    assert ended["state"] == ("void" if older else "settled")
    assert ("does not know rename_copy" in ended["next"]) == older
    assert [path.name for path in copy.parent.glob(f"{uuid}*")] == [copy.name if older else kept.name]
    # All that is left to do there is the undo of the copy: nothing purges what is kept when a time is over.
    assert set(owed_by(lab, "host2")) == {"copy_disks"}
    come_back(lab, "host1")
    balanced(lab, "host1")
    assert not list(copy.parent.glob(f"{uuid}*"))


def owed_by(lab: Stage, host: str) -> dict[str, int]:
    """Read the number of each debt of the host, by its action."""
    numbers = [row["id"] for row in lab.json("debt", "list", "--host", host)]
    return {lab.json("debt", "show", str(number))["action"]: number for number in numbers}


def older_one(worker: Registration) -> Registration:
    """The same worker before it knew how to rename a copy."""
    return msgspec.structs.replace(
        worker, actions=[each for each in worker.actions if not each.startswith("rename_copy@")]
    )


def test_a_debt_of_what_is_the_servers_own_by_then_is_void(lab: Stage, server: str) -> None:
    """The source comes back when the server lives there again: nothing of it is taken, and the history says so."""
    move = moved(lab, server)
    with dying(lab, "host1", "discard_source"):
        ask(lab, move, "confirm")
        rest(lab, move)
    (debt,) = lab.json("debt", "list")
    uuid = lab.id_of(server)
    lives_on(lab, uuid, "host1")
    come_back(lab, "host1")
    assert lab.lab.hypervisor("host1").guest(uuid) is not None
    assert lab.directory("host1", server, "_resize").is_dir()
    shown = lab.json("debt", "show", str(debt["id"]))
    assert (shown["state"], shown["next"]) == (
        "void",
        f"nothing to do: server {server} lives on host1 by now, and what lies there is its own",
    )
    told = lab.history(move)[-1]
    assert told.step == "discard_source"
    assert told.result is not None
    assert told.result["debt"] == debt["id"]
    lives_on(lab, uuid, "host2")
    lab.lab.hypervisor("host1").undefine(uuid)
    shutil.rmtree(lab.directory("host1", server, "_resize"))


def lives_on(lab: Stage, server: str, host: str) -> None:
    """As Nova's evacuation leaves the row."""
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(host=host))
