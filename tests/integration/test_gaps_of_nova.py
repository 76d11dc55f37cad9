"""What Nova's documents say that its cross-cell resize does not do, each as a test of what is done here.

Nova's page on cross-cell resize names them as limitations and as known differences to a resize within a cell.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, faults_cleared, stage

CLOUD = """
options: {cross_cell: true}
cells: {cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1, ephemeral_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1, ephemeral_gb: 1}
images: {base: {size_mb: 1}}
"""
WORDS = ("--flavor", "small", "--host", "host1", "--image", "base", "--volume", "1")
KEYPAIR = '{"nova_object.name": "KeyPairList", "nova_object.data": {"objects": []}}'
EPHEMERAL = 3 << 20
"""Where something is written on the ephemeral disk."""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("gaps") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with a server of the test's own; whatever was done, the books balance afterwards."""
    built.cli("lab", "server", "create", "web", *WORDS)
    yield built
    built.assert_balanced()
    built.cli("lab", "server", "delete", "web")


def select(lab: Stage, cell: str, query: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows:
        return rows.execute(query, (lab.id_of("web"),)).fetchall()


def write(lab: Stage, cell: str, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows, rows:
        rows.execute(statement, values)


def test_reschedule(lab: Stage) -> None:
    """R1-42: Nova puts the server into ERROR when the first host of the other cell fails."""
    with faults_cleared(lab) as arm:
        arm("define_guest", "fail", fault="destination")
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    move = lab.move("web")
    assert (move.state, move.attempt) == ("verifying", 2)
    lab.cli("server", "revert", "web")


def test_auto_confirm(lab: Stage) -> None:
    """R1-27: Nova's ``resize_confirm_window`` confirms no server that has left its cell."""
    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2", "--confirm", "auto")
    assert lab.move("web").state == "done"
    assert select(lab, "cell1", "SELECT id FROM instances WHERE uuid = ?") == []


def test_reserved_volumes_after_a_failure(lab: Stage) -> None:
    """Nova leaves them reserved, for a person to reset."""
    before = lab.standing("web")
    with faults_cleared(lab) as arm:
        arm("copy_disks", "fail", phase="after")
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2", code=3)
    assert lab.standing("web").attachments == before.attachments == [("host1", "attached")]
    with contextlib.closing(sqlite3.connect(lab.lab.layout.services)) as services:
        query = "SELECT v.status FROM volumes v JOIN attachments a ON a.volume = v.id WHERE a.server = ?"
        assert services.execute(query, (lab.id_of("web"),)).fetchall() == [("in-use",)]


def test_state_after_a_failure(lab: Stage) -> None:
    """R1-31: Nova leaves the server in ERROR; here it runs as before, and may be moved to that host at once."""
    before = lab.standing("web")
    with faults_cleared(lab) as arm:
        arm("start_guest", "fail", fault="destination", count=2)
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2", code=3)
    assert lab.standing("web") == before
    assert before.status == "ACTIVE"
    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    lab.cli("server", "revert", "web")


def test_status_while_reverting(lab: Stage) -> None:
    """Nova shows a server as RESIZE once the mapping leads to its own cell again."""
    seen: dict[str, str] = {}

    def look(_move: str, step: str, direction: str, phase: str) -> None:
        if (direction, phase) == ("execute", "after"):
            seen[step] = lab.json("server", "show", "web")["status"]

    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    with lab.running(probe=look):
        lab.cli("server", "revert", "web")
    # The last step ends it.
    assert {step for step, status in seen.items() if status != "REVERT_RESIZE"} == {"settle_records"}
    assert len(seen) > 10


def test_keypairs_and_tags(lab: Stage) -> None:
    """R1-11: both are in tables of their own, and in each copy."""
    write(lab, "cell1", "UPDATE instance_extra SET keypairs = ? WHERE instance_uuid = ?", KEYPAIR, lab.id_of("web"))
    write(lab, "cell1", "INSERT INTO tags (resource_id, tag) VALUES (?, 'blue')", lab.id_of("web"))
    for cell in ("cell2", "cell1"):
        lab.cli("server", "migrate", "web", "--to-cell", cell, "--confirm", "auto")
        assert select(lab, cell, "SELECT tag FROM tags WHERE resource_id = ?") == [("blue",)]
        assert select(lab, cell, "SELECT keypairs FROM instance_extra WHERE instance_uuid = ?") == [(KEYPAIR,)]


def test_ephemeral_content(lab: Stage) -> None:
    """Nova's snapshot has the root disk alone: what the guest wrote on an ephemeral disk is lost."""
    disk = next(lab.directory("host1", "web").glob("disk.eph*"))
    with disk.open("r+b") as file:
        file.seek(EPHEMERAL)
        file.write(b"the user's")
    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2", "--confirm", "auto")
    host = str(lab.server("web").host)
    with (lab.directory(host, "web") / disk.name).open("rb") as file:
        file.seek(EPHEMERAL)
        assert file.read(10) == b"the user's"
