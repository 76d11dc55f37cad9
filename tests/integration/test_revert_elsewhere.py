"""Reverts of moves between cells whose source is dead: another host of its cell gets the server."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.labs.operations import Stage, Standing, Workers, stage
from support.labs.small_lab import until
from support.two_faults.copies import copy_database

from droveway.engines.operations import move_requests
from droveway.errors import DestinationFault, Parked
from droveway.flows.run import Context
from droveway.flows.steps.hosts import elsewhere as steps
from droveway.lab import operations, stopped
from droveway.lab.parts import Parts as LabParts
from droveway.persistence.journal import attempts, requests
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import Service

CLOUD = """
options: {cross_cell: true}
cells:
  cell1: {hosts: {host1: {}, host2: {az: az-host2}, host3: {az: az-host3}}}
  cell2: {hosts: {host4: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0, swap_mb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 0, swap_mb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  booted: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
"""
SURE = ("--i-made-sure", "power is off, ticket 1")


@contextlib.contextmanager
def quick(folder: Path, cloud: str) -> Iterator[Stage]:
    """A lab in which nobody waits long for a host."""
    with stage(folder / "lab", cloud) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\nretry_for = 0.5\n")
        yield made


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with quick(tmp_path, CLOUD) as made:
        yield made


def away(lab: Stage, name: str, *options: str) -> None:
    """The server is in the other cell, and its source is dead."""
    lab.cli("server", "resize", name, "--flavor", "large", "--to-cell", "cell2", *options)
    stopped.stop(lab.lab.layout, "host1")
    lab.cli("host", "down", "host1", *SURE)


def come_back(lab: Stage, host: str) -> None:
    """The host is back, and does what it owes."""
    stopped.start(lab.lab.layout, host)
    lab.cli("host", "enable", host)
    with lab.running():
        until(lambda: not lab.json("debt", "list"), "the end of what is owed")


def elsewhere(lab: Stage, before: Standing, name: str, host: str) -> Standing:
    """The server as it was, but on another host, while the source is not back."""
    moved = before.confirmed(host, before.flavor, before.held[before.host])
    return dataclasses.replace(
        moved,
        status=before.status,
        defined=sorted({before.host, host}),
        directories=sorted([f"{before.places[before.host]}/ID_resize", *moved.directories]),
    )


def root_disk(lab: Stage, host: str, name: str) -> str:
    return hashlib.sha256((lab.directory(host, name) / "disk").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["idle", "web"])
def test_another_host_of_its_cell_gets_the_server_from_the_kept_images(lab: Stage, name: str) -> None:
    """R1-17: as it was before the move but for its host; what the source holds is owed, and goes when that is back."""
    before, disk = lab.standing(name), root_disk(lab, "host1", name)
    away(lab, name, "--keep-image")
    lab.cli("server", "revert", name)
    move = lab.move(name)
    assert move.state == "reverted"
    assert {row.flow for row in lab.history(move.id)} == {"cross_cell_resize", "cross_cell_revert_elsewhere"}
    there = str(lab.server(name).host)
    assert there in {"host2", "host3"}
    assert lab.standing(name) == elsewhere(lab, before, name, there)
    # A guest that runs writes to it.
    assert name == "web" or root_disk(lab, there, name) == disk
    assert [(debt["host"], debt["step"]) for debt in lab.json("debt", "list")] == [("host1", "discard_destination")]
    lab.assert_balanced()
    said = lab.refused("move", "settle", move.id, "--cell", "placement", "--reason", "a copy")
    assert f"to {there} in the place of its source, and no command writes what it holds in Placement then" in said
    come_back(lab, "host1")
    assert lab.standing(name) == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


def test_without_kept_images_the_revert_is_refused_with_what_helps(lab: Stage) -> None:
    away(lab, "idle")
    standing = lab.standing("idle")
    said = lab.refused("server", "revert", "idle")
    assert "host host1, the source of move " in said
    assert "it was moved without --keep-image" in said
    assert f"droveway move confirm {lab.move('idle').id[:8]} keeps the server where it is" in said
    assert lab.standing("idle") == standing
    assert lab.move("idle").state == "verifying"


def test_hosts_that_have_said_that_they_reach_no_disks_are_not_asked_again(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only hosts know what they share, one revert finds out; then it is refused, by a policy too."""
    monkeypatch.setattr(LabParts, "shares_storage", lambda *_hosts: None)
    away(lab, "idle")
    standing = lab.standing("idle")
    lab.cli("server", "revert", "idle", code=3)
    assert lab.standing("idle") == standing
    before = len(lab.history(lab.move("idle").id))
    said = lab.refused("server", "revert", "idle")
    assert "nothing that the source has set aside is reached from host2, host3" in said
    assert isinstance(move_requests.filing(lab.lab, lab.move("idle").id, "revert", for_delete=False), str)
    assert len(lab.history(lab.move("idle").id)) == before


def test_a_source_that_is_back_takes_its_server_back_itself(lab: Stage) -> None:
    before = lab.standing("idle")
    away(lab, "idle", "--keep-image")
    come_back(lab, "host1")
    lab.cli("server", "revert", "idle")
    assert lab.standing("idle") == before
    lab.assert_balanced()


SHARED = CLOUD.replace("host1: {}, host2: {", "host1: {shared: nfs1}, host2: {shared: nfs1, ")


@pytest.fixture(name="sharing")
def fixture_sharing(tmp_path: Path) -> Iterator[Stage]:
    """The source shares its directory with one host of its cell."""
    with quick(tmp_path, SHARED) as made:
        yield made


@pytest.mark.parametrize("name", ["idle", "web"])
def test_a_host_that_shares_the_sources_directory_copies_from_there(sharing: Stage, name: str) -> None:
    """R1-17: only that host; the other one is tried in vain, and the guest runs until then."""
    before, disk = sharing.standing(name), root_disk(sharing, "host1", name)
    away(sharing, name)
    sharing.cli("server", "revert", name)
    copied = [row.result for row in sharing.history(sharing.move(name).id) if row.step == "copy_disks"][-1]
    assert copied is not None
    assert copied["variant"] == "local"
    assert sharing.standing(name) == elsewhere(sharing, before, name, "host2")
    assert name == "web" or root_disk(sharing, "host2", name) == disk
    sharing.assert_balanced()
    come_back(sharing, "host1")
    assert sharing.standing(name) == before.confirmed("host2", before.flavor, before.held["host1"])
    sharing.assert_balanced()


def test_a_server_on_a_volume_goes_to_any_host(lab: Stage) -> None:
    before = lab.standing("booted")
    away(lab, "booted")
    lab.cli("server", "revert", "booted")
    there = str(lab.server("booted").host)
    assert lab.standing("booted") == elsewhere(lab, before, "booted", there)
    come_back(lab, "host1")
    assert lab.standing("booted") == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


@contextlib.contextmanager
def meeting(lab: Stage, step: str, then: Callable[[Workers], object], way: str = "execute") -> Iterator[Workers]:
    """Run the lab without the source, and do that once before the step."""
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, "before") and todo:
            todo.pop()(workers)

    with lab.running(probe) as workers:
        workers.stop("host1")
        yield workers
    assert not todo


def revert(lab: Stage, name: str) -> Move:
    return move_requests.carry(lab.lab, move_requests.end(lab.lab, lab.move(name).id, "revert").id)


def tried(lab: Stage, name: str) -> list[tuple[int, str]]:
    """The hosts in the source's place that its reverts tried, in order, with the numbers of their rows."""
    with lab.lab.journal.read() as session:
        return [(row.attempt, row.host) for row in attempts.returns(session, lab.move(name).id)]


def burn(lab: Stage, workers: Workers, host: str) -> None:
    """The host is off, and a person says so."""
    workers.stop(host)
    stopped.stop(lab.lab.layout, host)
    service = sa.update(Service).where(Service.host == host, Service.binary == "nova-compute")
    for database in lab.lab.cell_databases.values():
        with database.write() as session:
            session.execute(service.values(disabled=True, forced_down=True))


@pytest.mark.parametrize(
    ("step", "declared"),
    # One that is away at the start may have started the guest: the move parks there, as any does.
    [("check_source", False), ("copy_disks", False), ("prepare_source_guest", True), ("start_guest", True)],
)
def test_the_next_host_takes_the_place_of_one_that_fails(lab: Stage, step: str, *, declared: bool) -> None:
    """What the first one was asked for is undone, or owed; the guest never ran twice."""
    before = lab.standing("web")
    away(lab, "web", "--keep-image")

    def fail(workers: Workers) -> None:
        host = tried(lab, "web")[-1][1]
        if declared:
            burn(lab, workers, host)
        else:
            workers.stop(host)
            stopped.stop(lab.lab.layout, host)

    with meeting(lab, step, fail):
        move = revert(lab, "web")
    assert move.state == "reverted", (move.error_code, move.error)
    (first, second), there = tried(lab, "web"), str(lab.server("web").host)
    assert ([first[0], second[0]], {first[1], second[1]}, second[1]) == ([-1, -2], {"host2", "host3"}, there)
    for host in ("host1", first[1]):
        come_back(lab, host)
    assert lab.standing("web") == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


def test_where_every_host_fails_the_server_waits_where_it_was(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone, and asked for again once there is a host: the numbers of what was tried go on."""
    before = lab.standing("web")
    away(lab, "web", "--keep-image")
    waits = lab.standing("web")

    def fail(_self: object, ctx: Context) -> None:
        raise DestinationFault("it cannot", code="disk-full", host=ctx.return_host)

    with monkeypatch.context() as patched:
        patched.setattr(steps.FitDisks, "perform", fail)
        lab.cli("server", "revert", "web", code=3)
    assert (lab.move("web").state, lab.move("web").error_code) == ("verifying", "disk-full")
    assert lab.standing("web") == waits
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    assert [number for number, _ in tried(lab, "web")] == [-1, -2, -3]
    there = str(lab.server("web").host)
    assert lab.standing("web") == elsewhere(lab, before, "web", there)
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["hand_over_target", "switch_mapping", "return_allocation"])
def test_the_audit_knows_the_host_that_a_revert_under_way_brings_its_server_to(lab: Stage, step: str) -> None:
    away(lab, "web", "--keep-image")
    move = lab.move("web").id
    with meeting(lab, step, lambda _workers: move_requests.file_request(lab.lab, move, requests.pause)):
        assert revert(lab, "web").state == "reverting"
    lab.assert_balanced()
    lab.cli("move", "resume", move)
    assert lab.move("web").state == "reverted"
    lab.assert_balanced()


def test_what_a_user_wrote_meanwhile_goes_along(lab: Stage) -> None:
    away(lab, "idle", "--keep-image")
    server = lab.id_of("idle")
    with lab.lab.cell_databases["cell2"].write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(display_description="new"))
    lab.cli("server", "revert", "idle")
    with lab.lab.cell_databases["cell1"].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.uuid == server)).one()
        assert (row.display_description, row.availability_zone, bool(row.hidden)) == ("new", f"az-{row.host}", False)
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["copy_disks", "return_allocation"])
def test_a_server_that_is_deleted_meanwhile_is_gone_everywhere(lab: Stage, step: str) -> None:
    away(lab, "web", "--keep-image")
    server = lab.id_of("web")
    with meeting(lab, step, lambda _workers: operations.request_delete(lab.lab, "web")):
        move = revert(lab, "web")
        until(lambda: move_requests.read_move(lab.lab, move.id).ended_at is not None, "the end of the move")
    come_back(lab, "host1")
    assert leftovers.of(lab.lab, server) == []
    lab.assert_balanced()


def test_a_source_that_comes_back_in_the_middle_does_what_it_owes(lab: Stage) -> None:
    before = lab.standing("web")
    away(lab, "web", "--keep-image")
    with meeting(lab, "copy_disks", lambda workers: workers.start("host1")):
        assert revert(lab, "web").state == "reverted"
        until(lambda: not lab.json("debt", "list"), "the end of what is owed")
    stopped.start(lab.lab.layout, "host1")
    lab.cli("host", "enable", "host1")
    there = str(lab.server("web").host)
    assert there != "host1"
    assert lab.standing("web") == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


def test_a_destination_that_is_dead_too_needs_the_images_alone(lab: Stage) -> None:
    """Both copies of the disks lie on dead hosts, and both owe what they have."""
    before, disk = lab.standing("idle"), root_disk(lab, "host1", "idle")
    away(lab, "idle", "--keep-image")
    stopped.stop(lab.lab.layout, "host4")
    lab.cli("host", "down", "host4", *SURE)
    lab.cli("server", "revert", "idle")
    there = str(lab.server("idle").host)
    assert (lab.move("idle").state, root_disk(lab, there, "idle")) == ("reverted", disk)
    for host in ("host1", "host4"):
        come_back(lab, host)
    assert lab.standing("idle") == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


def test_a_host_that_shares_the_destinations_directory_is_left_out(tmp_path: Path) -> None:
    """Its copy would lie where the one is that the server runs from."""
    cloud = CLOUD.replace("host2: {", "host2: {shared: nfs1, ").replace("host4: {}", "host4: {shared: nfs1}")
    with quick(tmp_path, cloud) as lab:
        before = lab.standing("idle")
        away(lab, "idle", "--keep-image")
        stopped.stop(lab.lab.layout, "host3")
        waits = lab.standing("idle")
        lab.cli("server", "revert", "idle", code=3)
        assert (lab.move("idle").state, lab.move("idle").error_code) == ("verifying", "in-the-way")
        assert lab.standing("idle") == waits
        stopped.start(lab.lab.layout, "host3")
        lab.cli("server", "revert", "idle")
        assert lab.standing("idle") == elsewhere(lab, before, "idle", "host3")
        lab.assert_balanced()


def test_the_copy_stays_where_the_destination_has_lost_its_own(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    away(lab, "idle", "--keep-image")

    def fail(_self: object, ctx: Context) -> None:
        (lab.directory("host4", "idle") / "disk").unlink(missing_ok=True)
        raise DestinationFault("it cannot", code="disk-full", host=ctx.return_host)

    with monkeypatch.context() as patched:
        patched.setattr(steps.FitDisks, "perform", fail)
        lab.cli("server", "revert", "idle", code=4)
    assert (lab.move("idle").state, lab.move("idle").error_code) == ("needs-operator", "last-copy")
    ((_, host),) = tried(lab, "idle")
    assert (lab.directory(host, "idle") / "disk").exists()
    said = lab.refused("move", "settle", lab.move("idle").id, "copy_disks", "--as", "done", "--reason", "I looked")
    assert "host host4 does not show its copy whole" in said


@pytest.mark.parametrize(
    ("kept_at", "left_at", "fails"),
    [
        ("mark_reverting", "hand_over_target", ""),
        ("copy_disks", "return_allocation", ""),
        ("mark_reverting", "hide_target", "fit_disks"),
        ("copy_disks", "hand_over_target", "fit_disks"),
    ],
)
def test_a_revert_whose_journal_was_put_back_goes_on_to_the_host_that_it_was_on(
    lab: Stage, kept_at: str, left_at: str, fails: str
) -> None:
    """By the copy it has chosen none yet, or is on its way to the first one, on which all was undone since."""
    before = lab.standing("web")
    away(lab, "web", "--keep-image")
    move, kept, left, failed = lab.move("web").id, lab.root / "copy.sqlite", threading.Event(), [""][: not fails]

    def meet(_move: str, step: str, direction: str, phase: str) -> None:
        if (direction, phase) != ("execute", "before"):
            return
        if step == kept_at and not kept.exists():
            copy_database(lab.lab.layout.journal, kept)
        if step == fails and not failed:
            failed.append(step)
            raise DestinationFault("the disk is full", code="full")
        if step == left_at and failed:
            left.set()
            raise Parked("the conductor's process is gone")

    with lab.running(meet) as workers:
        workers.stop("host1")
        move_requests.end(lab.lab, move, "revert")
        assert left.wait(180)
    there = tried(lab, "web")[-1]
    copy_database(kept, lab.lab.layout.journal)
    lab.lab.adopt()
    with lab.running() as workers:
        workers.stop("host1")
        move_requests.file_request(lab.lab, move, requests.retry)
        ended = move_requests.carry(lab.lab, lab.move("web").id)
    assert (ended.state, ended.error, tried(lab, "web")[-1]) == ("reverted", None, there)
    come_back(lab, "host1")
    assert lab.standing("web") == before.confirmed(there[1], before.flavor, before.held["host1"])
    lab.assert_balanced()
