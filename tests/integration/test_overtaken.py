"""A journal that is put back and adopted: its move goes on from where the world is, and undoes nothing from behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.engines.operations import adoption, move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import operations
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move, MoveFlow, MoveStep

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {shared: nfs1}, host4: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  mail: {flavor: small, host: host3, image: base, ports: [{}]}
"""
HOSTS = {"web": ("host1", "host2"), "mail": ("host3", "host4")}
STEPS = ["stop_guest", "set_aside", "copy_disks", "fit_disks", "define_guest", "switch_records", "start_guest"]


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def copy(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as reading, sqlite3.connect(target) as writing:
        reading.backup(writing)
    reading.close()
    writing.close()


def put_back(lab: Stage, name: str, step: str, *, off: bool, cancelled: bool) -> Move:
    """The server's move verifies, loses all from before that step on, is adopted, and then cancelled or retried."""
    destination, kept = HOSTS[name][1], lab.root / "copy.sqlite"
    move = submit(lab.lab, MoveSpec(server=name, flavor=None, host=destination)).id

    def keep(_move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == (step, "execute", "before") and not kept.exists():
            copy(lab.lab.layout.journal, kept)

    with lab.running(keep) as workers:
        move_requests.carry(lab.lab, move)
        assert move_requests.read_move(lab.lab, move).state == "verifying"
        if off:
            # As after a power cut of the destination.
            lab.lab.hypervisor(destination).stop(lab.id_of(name), grace=0.0, fence=lambda: None)
        copy(kept, lab.lab.layout.journal)
        adoption.adopt(adoption.OfInstallation(workers.session(), lab.lab.journal))
        if cancelled:
            move_requests.file_request(lab.lab, move, move_requests.cancel)
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
    return move_requests.read_move(lab.lab, move)


@pytest.mark.parametrize(
    ("step", "cancelled"),
    [(step, False) for step in STEPS] + [(step, True) for step in STEPS[:-1]],
)
@pytest.mark.parametrize("name", HOSTS)
def test_a_move_whose_rows_were_switched_goes_on_to_its_end(
    lab: Stage, name: str, step: str, *, cancelled: bool
) -> None:
    source, destination = HOSTS[name]
    ended = put_back(lab, name, step, off=False, cancelled=cancelled)
    assert (ended.state, ended.error) == ("verifying", None)
    standing = lab.standing(name)
    assert standing.runs == [destination]
    assert lab.starts(name).count(source) == 1
    lab.assert_balanced()


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("step", ["set_aside", "copy_disks", "switch_records"])
def test_what_a_guest_that_is_off_has_written_is_kept(lab: Stage, name: str, step: str) -> None:
    source, destination = HOSTS[name]
    put_back(lab, name, step, off=True, cancelled=True)
    assert (lab.directory(destination, name) / "disk").exists()
    assert lab.starts(name).count(source) == 1


def lose_end(lab: Stage, kind: str | None, pause: str, *policy: str) -> str:
    """Move `web`, confirm or revert it until that step, and put the journal back to the forward flow; the move's id.

    With no ``kind`` its policy does.  A step that is none lets it end.
    """
    journal, kept = lab.lab.layout.journal, lab.root / "copy.sqlite"

    def meet(move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("copy_disks", "before"):
            copy(journal, kept)
        if (step, phase) == (pause, "before"):
            move_requests.file_request(lab.lab, move, requests.pause)

    with lab.running(meet):
        lab.cli("server", "migrate", "web", "--host", "host2", *policy)
        if kind is not None:
            lab.cli("server", kind, "web")
    move = lab.move("web").id
    copy(kept, journal)
    lab.cli("db", "adopt")
    return move


def goes_on(lab: Stage, move: str) -> list[str]:
    """Return which flows, by the journal's notes, had begun before it was put back."""
    with lab.lab.journal.read() as session:
        noted = sa.select(MoveStep.result).where(MoveStep.move_id == move, MoveStep.step == "adopt")
        return [result["begun"] for result in session.scalars(noted.order_by(MoveStep.seq)) if result]


def flows(lab: Stage, move: str) -> list[str]:
    """Return the kinds of the move's flows, in their order."""
    with lab.lab.journal.read() as session:
        kinds = sa.select(MoveFlow.kind).where(MoveFlow.move_id == move).order_by(MoveFlow.created_at)
        return [*session.scalars(kinds)]


def test_a_revert_that_had_begun_goes_on_though_the_journal_has_the_forward_flow(lab: Stage) -> None:
    """It had stopped the guest: with the source away it parks, where it would have left the server waiting, and off."""
    move = lose_end(lab, "revert", "release_destination")
    assert lab.standing("web").runs == []
    lab.cli("move", "retry", move)
    assert lab.move("web").state == "verifying"
    lab.cli("lab", "worker", "stop", "host1")
    lab.cli("move", "revert", move, code=4)
    assert lab.move("web").state == "needs-operator"
    lab.cli("lab", "worker", "start", "host1")
    lab.cli("move", "retry", move)
    assert (lab.move("web").state, lab.standing("web").runs) == ("reverted", ["host1"])
    lab.assert_balanced()


@pytest.mark.parametrize(
    ("kind", "pause", "noted"),
    [
        ("revert", "release_destination", ["reverting"]),
        ("revert", "discard_destination", ["reverting"]),
        ("revert", "none", []),
        ("confirm", "keep_copy", ["confirming"]),
        ("confirm", "none", []),
    ],
)
def test_a_delete_takes_the_end_that_had_begun(lab: Stage, kind: str, pause: str, noted: list[str]) -> None:
    """A delete confirms what waits.  Nobody can confirm a server that is half reverted, or wholly."""
    move = lose_end(lab, kind, pause)
    lab.cli("move", "retry", move)
    assert lab.move("web").state == "verifying"
    lab.cli("lab", "server", "delete", "web")
    assert flows(lab, move) == ["migrate", kind, "delete"]
    assert goes_on(lab, move) == noted
    lab.assert_balanced()


def test_a_person_who_confirms_for_a_delete_takes_the_end_that_had_begun(lab: Stage) -> None:
    move = lose_end(lab, "revert", "release_destination")
    lab.cli("move", "retry", move)
    operations.request_delete(lab.lab, "web")
    lab.cli("move", "confirm", move, code=3)
    assert flows(lab, move) == ["migrate", "revert", "delete"]
    lab.assert_balanced()


@pytest.mark.parametrize(("pause", "noted"), [("keep_copy", ["confirming"]), ("none", [])])
def test_a_policy_takes_the_end_that_had_begun(lab: Stage, pause: str, noted: list[str]) -> None:
    move = lose_end(lab, None, pause, "--confirm", "auto")
    lab.cli("move", "retry", move)
    assert (lab.move("web").state, lab.standing("web").runs) == ("done", ["host2"])
    assert goes_on(lab, move) == noted
    lab.assert_balanced()
