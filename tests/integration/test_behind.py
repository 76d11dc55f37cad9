"""A journal that is put back and adopted has lost what a flow recorded of its move: that comes back, or it parks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.two_faults.copies import copy_database

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault, Parked
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def put_back(lab: Stage, *, kept_at: str, left_at: str, fails: str = "") -> str:
    """Leave a resize at one step, and adopt its journal as it was before an earlier one; the move.

    ``fails``: the step that fails first, by the fault of the destination, so that the next one is tried.
    """
    move = submit(lab.lab, MoveSpec(server="web", flavor="large", host=None)).id
    kept = lab.root / "copy.sqlite"
    failed: list[str] = []
    left = threading.Event()

    def meet(_move: str, step: str, direction: str, phase: str) -> None:
        if (direction, phase) != ("execute", "before"):
            return
        if step == kept_at and not kept.exists():
            copy_database(lab.lab.layout.journal, kept)
        if step == fails and not failed:
            failed.append(step)
            raise DestinationFault("the disk is full", code="full")
        if step == left_at and len(failed) == bool(fails):
            left.set()
            raise Parked("the conductor's process is gone")

    with lab.running(meet):
        assert left.wait(180)
    copy_database(kept, lab.lab.layout.journal)
    lab.lab.adopt()
    return move


def carried(lab: Stage, move: str, *, cancelled: bool = False) -> Move:
    """Ask for the move once more, and carry it on."""
    with lab.running():
        if cancelled:
            move_requests.file_request(lab.lab, move, move_requests.cancel)
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
    return move_requests.read_move(lab.lab, move)


def steps(lab: Stage, move: str, name: str, direction: str) -> list[int]:
    return [row.attempt for row in lab.history(move) if (row.step, row.direction) == (name, direction)]


@pytest.mark.parametrize("kept_at", ["record_before", "choose_destinations", "claim", "set_aside"])
@pytest.mark.parametrize("left_at", ["reserve_ports", "copy_disks", "define_guest"])
def test_a_move_goes_on_to_the_alternate_that_it_was_on(lab: Stage, kept_at: str, left_at: str) -> None:
    """By the copy it is on its way to the first one, on which all was undone since."""
    move = put_back(lab, kept_at=kept_at, left_at=left_at, fails="copy_disks")
    ended = carried(lab, move)
    assert (ended.state, ended.error, ended.attempt, ended.dest_host) == ("verifying", None, 2, "host3")
    assert lab.standing("web").runs == ["host3"]
    assert 1 not in [row.attempt for row in lab.history(move) if row.step == "claim" and row.seq > _adopted(lab, move)]
    lab.assert_balanced()


def _adopted(lab: Stage, move: str) -> int:
    return next(row.seq for row in lab.history(move) if row.step == "adopt")


@pytest.mark.parametrize(
    ("kept_at", "left_at"),
    [
        (kept_at, left_at)
        for kept_at in ("record_before", "accept", "choose_destinations", "reserve_ports")
        for left_at in ("claim", "mark_migrating", "set_aside", "move_volumes", "switch_records")
        if (kept_at, left_at) != ("reserve_ports", "claim")
    ],
)
def test_a_cancel_takes_back_what_came_after_the_copy(lab: Stage, kept_at: str, left_at: str) -> None:
    """The journal knows none of it; the server is what it was before."""
    before = lab.standing("web")
    move = put_back(lab, kept_at=kept_at, left_at=left_at)
    ended = carried(lab, move, cancelled=True)
    assert ended.state == "cancelled"
    assert lab.standing("web") == before
    lab.assert_balanced()


@pytest.mark.parametrize(("away", "step"), [("host1", "start_guest"), ("host2", "copy_disks")])
def test_a_start_that_the_copy_does_not_know_is_not_given_up(lab: Stage, away: str, step: str) -> None:
    """Neither host's silence proves that no guest was started; once it answers, the move goes on."""
    move = put_back(lab, kept_at="define_guest", left_at="save_request_spec")
    starts = lab.starts("web")
    lab.cli("lab", "worker", "stop", away)
    lab.cli("move", "retry", move, code=4)
    parks = move_requests.read_move(lab.lab, move)
    assert (parks.state, parks.step, parks.error_code) == ("needs-operator", step, "host-unreachable")
    assert (lab.standing("web").runs, lab.starts("web")) == (["host2"], starts)
    lab.cli("lab", "worker", "start", away)
    assert carried(lab, move).state == "verifying"
    assert (lab.standing("web").runs, lab.starts("web")) == (["host2"], starts)
    lab.assert_balanced()


@pytest.mark.parametrize("kept_at", ["record_before", "choose_destinations"])
def test_a_move_of_which_the_record_is_lost_too_parks_and_can_be_left(lab: Stage, kept_at: str) -> None:
    move = put_back(lab, kept_at=kept_at, left_at="set_aside")
    journal = lab.root / "copy.sqlite"
    copy_database(journal, lab.lab.layout.journal)
    for path in lab.lab.layout.recorded.iterdir():
        path.unlink()
    lab.lab.adopt()
    starts = lab.starts("web")
    ended = carried(lab, move)
    assert (ended.state, ended.error_code) == ("needs-operator", "record-lost")
    assert "put a newer copy of the journal back" in str(ended.error)
    assert lab.starts("web") == starts
    shown = lab.json("move", "show", move)
    assert f"droveway move settle {move[:8]} {kept_at} --as left" in shown["next"]
    lab.cli("move", "settle", move, kept_at, "--as", "left", "--reason", "the copy is all that there is")
    assert move_requests.read_move(lab.lab, move).state == "cancelled"


def test_a_purge_removes_what_is_mirrored_of_its_moves(lab: Stage) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor="large", host=None)).id
    lab.cli("move", "resume")
    lab.cli("move", "confirm", move)
    folder = lab.lab.layout.recorded
    assert [path.name for path in folder.iterdir()] == [f"{move}.json"]
    with lab.lab.journal.write() as session:
        session.execute(sa.update(Move).values(ended_at=sa.func.datetime("now", "-2 days")))
    lab.cli("db", "purge", "--older-than", "1d")
    assert list(folder.iterdir()) == []
