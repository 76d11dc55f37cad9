"""What moves really write of a server's states, commit by commit, replayed against the table of legal changes."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from support.labs.operations import Stage, faults_cleared, stage
from support.rows.server_states import TRANSITIONS, ServerState

CLOUD = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2}
images: {base: {size_mb: 1}}
servers:
  kept: {flavor: small, host: host1, image: base}
  back: {flavor: small, host: host1, image: base, state: stopped}
  tried: {flavor: small, host: host1, image: base, ports: [{}]}
  undone: {flavor: small, host: host1, image: base}
  waited: {flavor: small, host: host1, image: base}
  gone: {flavor: small, host: host1, image: base, state: stopped}
"""
STATES = """
SELECT instances.vm_state, instances.task_state,
       (SELECT status FROM migrations WHERE instance_uuid = instances.uuid ORDER BY id DESC LIMIT 1)
FROM instances WHERE uuid = ?
"""


class Recorder:
    """The states that stand in the cell after each commit, for each server without repeats."""

    def __init__(self, database: Path, servers: dict[str, str]) -> None:
        self._database = database
        self._servers = servers
        self._lock = threading.Lock()
        self.seen: dict[str, list[ServerState]] = {name: [] for name in servers}

    def __call__(self, _session: orm.Session) -> None:
        with self._lock, sqlite3.connect(self._database) as connection:
            for name, uuid in self._servers.items():
                row = connection.execute(STATES, (uuid,)).fetchone()
                if row and ServerState(*row) not in self.seen[name][-1:]:
                    self.seen[name].append(ServerState(*row))
        connection.close()


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="recorder")
def fixture_recorder(lab: Stage) -> Iterator[Recorder]:
    servers = {row["name"]: row["id"] for row in lab.json("server", "list")}
    recorder = Recorder(lab.root / "cells" / "cell1.sqlite", servers)
    sa.event.listen(orm.Session, "after_commit", recorder)
    yield recorder
    sa.event.remove(orm.Session, "after_commit", recorder)


def is_legal(old: ServerState, new: ServerState) -> bool:
    """Whether one step, which may make several changes in one transaction, leads from old to new."""
    for step, undo in {(row.step, row.undo) for row in TRANSITIONS}:
        rows = {(row.old, row.new) for row in TRANSITIONS if (row.step, row.undo) == (step, undo)}
        if (old, new) in rows or any((old, middle) in rows and (middle, new) in rows for _, middle in rows):
            return True
    return False


def test_every_change_that_a_move_commits_is_in_the_table(lab: Stage, recorder: Recorder) -> None:
    """R2-02: confirmed, reverted, tried on a second host, undone, deleted while waiting and after a failure."""
    lab.cli("server", "resize", "kept", "--flavor", "large")
    lab.cli("server", "confirm", "kept")
    lab.cli("server", "migrate", "back")
    lab.cli("server", "revert", "back")
    with faults_cleared(lab) as arm:
        arm("define_guest", "fail", fault="destination")
        lab.cli("server", "migrate", "tried")
    with faults_cleared(lab) as arm:
        arm("switch_records", "fail", phase="after")
        lab.cli("server", "resize", "undone", "--flavor", "large", code=3)
    lab.cli("server", "migrate", "waited")
    lab.cli("lab", "server", "delete", "waited")
    with faults_cleared(lab) as arm:
        arm("define_guest", "fail", fault="destination", count=9)
        lab.cli("server", "migrate", "gone", code=3)
    lab.cli("lab", "server", "delete", "gone")
    illegal = [
        f"{name}: {old} became {new}"
        for name, states in recorder.seen.items()
        for old, new in itertools.pairwise(states)
        if not is_legal(old, new)
    ]
    assert illegal == []
    ends = {name: (states[-1].vm_state, states[-1].migration) for name, states in recorder.seen.items()}
    assert ends == {
        "kept": ("active", "confirmed"),
        "back": ("stopped", "reverted"),
        "tried": ("resized", "finished"),
        "undone": ("active", "error"),
        "waited": ("deleted", "confirmed"),
        "gone": ("deleted", "error"),
    }
    # The undo of switch_records was seen too: there and back.
    assert ServerState("active", "resize_finish", "post-migrating") in recorder.seen["undone"]
