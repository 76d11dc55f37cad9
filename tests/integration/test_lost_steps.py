"""A journal that is put back by single steps within one claim: nothing acts on it, whichever step was lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, Workers, stage

from droveway.clients.zookeeper import step_path
from droveway.engines.conductor.step_marks import Seen
from droveway.engines.operations import adoption, move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import Parked
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}]}}
"""
REFUSES = "the journal was restored from an older copy: ZooKeeper has seen that move"
FORWARD = [
    ("stop_guest", "release_source"),
    ("set_aside", "copy_disks"),
    ("copy_disks", "move_ports"),
    ("define_guest", "switch_records"),
    ("switch_records", "start_guest"),
    ("switch_records", "save_request_spec"),
    ("start_guest", "finish_records"),
    ("set_aside", "finish_records"),
]
"""Before which step the journal is copied, and before which one that copy is put back."""
REVERT = [("stop_guest", "release_destination"), ("switch_records", "discard_destination")]


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


class PutBack:
    """A journal's server that loses what came between two steps, as one that fails over to a copy that lags does.

    The other host than the one that the flow brings the guest to dies in the same moment, and the move is cancelled:
    what is believed of this journal would start a second guest.
    """

    def __init__(self, lab: Stage, kept_at: str, lost_at: str, away: str, *, dies: bool) -> None:
        self._lab, self._kept_at, self._lost_at, self._away = lab, kept_at, lost_at, away
        self._dies = dies
        self._copy = lab.root / "copy.sqlite"
        self.workers: Workers
        self.done = False
        self.starts: list[str] = []

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        if (direction, phase) != ("execute", "before") or self.done:
            return
        journal = self._lab.lab.layout.journal
        if step == self._kept_at:
            _copy(journal, self._copy)
        if step == self._lost_at:
            self.done = True
            self.workers.stop(self._away)
            _copy(self._copy, journal)
            with self._lab.lab.journal.write() as session:
                session.execute(sa.update(Move).values(cancel_requested=True))
            self.starts = self._lab.starts("web")
            if self._dies:
                raise Parked("the conductor's process is gone")


def _copy(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as reading, sqlite3.connect(target) as writing:
        reading.backup(writing)
    reading.close()
    writing.close()


def carry(lab: Stage, move: str, put_back: PutBack) -> Move:
    """Carry the move on over what happens to its journal, and once more after the journal was adopted."""
    with lab.running(put_back) as workers:
        put_back.workers = workers
        session = workers.session()
        move_requests.carry(lab.lab, move)
        assert put_back.done
        rests = move_requests.read_move(lab.lab, move)
        assert (rests.state, rests.error_code) == ("needs-operator", "restored")
        assert str(rests.error).startswith(REFUSES)
        assert str(rests.error).endswith("droveway db adopt")
        # Asking for it again changes nothing: the same journal is as old as it was.
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
        again = move_requests.read_move(lab.lab, move)
        assert (again.state, again.error_code, again.error) == (rests.state, rests.error_code, rests.error)
        assert lab.starts("web") == put_back.starts
        undone = [(row.error or {}).get("code") for row in lab.history(move) if row.direction == "revert"]
        assert set(undone) <= {"restored"}, "no undo did anything"
        adoption.adopt(adoption.OfInstallation(session, lab.lab.journal))
        assert session.get(step_path(move)) is None
        with lab.lab.journal.write() as writing:
            writing.execute(sa.update(Move).values(cancel_requested=False))
        workers.start(put_back._away)
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
        node = session.get(step_path(move))
        assert node is not None, "the mark is taken anew"
        assert msgspec.json.decode(node[0], type=Seen).seq == lab.history(move)[-1].seq
    return move_requests.read_move(lab.lab, move)


@pytest.mark.parametrize(("kept_at", "lost_at"), FORWARD)
def test_a_forward_move_that_lost_steps_is_not_carried_on(lab: Stage, kept_at: str, lost_at: str) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    carry(lab, move, PutBack(lab, kept_at, lost_at, "host2", dies=True))
    assert lab.standing("web").runs in (["host1"], ["host2"])


@pytest.mark.parametrize(("kept_at", "lost_at"), [("stop_guest", "release_source"), ("set_aside", "copy_disks")])
def test_who_runs_the_move_all_the_time_stops_too(lab: Stage, kept_at: str, lost_at: str) -> None:
    """The journal gives numbers out anew that commands have in their keys already."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    carry(lab, move, PutBack(lab, kept_at, lost_at, "host2", dies=False))


@pytest.mark.parametrize(("kept_at", "lost_at"), REVERT)
def test_a_revert_that_lost_steps_is_not_carried_on(lab: Stage, kept_at: str, lost_at: str) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    move_requests.file_request(lab.lab, move, move_requests.revert)
    carry(lab, move, PutBack(lab, kept_at, lost_at, "host1", dies=True))
    assert lab.standing("web").runs in (["host1"], ["host2"])
