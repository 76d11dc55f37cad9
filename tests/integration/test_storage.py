"""What becomes of a server's disks where hosts share storage and where they do not, and as its flavor changes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import checksums
from support.labs.operations import Stage, faults_cleared, stage

from droveway.engines.conductor import step_commands
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows.steps.hosts.host import FindStorage
from droveway.persistence.nova.cell import BlockDeviceMapping
from droveway.workers.directories import Directories
from droveway.workers.stores import STORE
from droveway.workers.transfer import extents

CLOUD = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}, host4: {shared: nfs1}, host5: {shared: nfs1}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  swapping: {vcpus: 1, memory_mb: 256, root_gb: 1, swap_mb: 2}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2, ephemeral_gb: 1, swap_mb: 3}
  huge: {vcpus: 3, memory_mb: 768, root_gb: 3, ephemeral_gb: 2}
images: {base: {size_mb: 9}}
servers:
  plain: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  swapping: {flavor: swapping, host: host1, image: base}
  large: {flavor: large, host: host1, image: base}
  mail: {flavor: large, host: host4, image: base, ports: [{}]}
  db: {flavor: small, host: host4, volumes: [{size_gb: 1, boot: true}]}
"""
GIB, MIB = 1024**3, 1024**2
FLAVORS = {"small": (1, 0, 0), "swapping": (1, 0, 2), "large": (2, 1, 3), "huge": (3, 2, 0)}
"""Root and ephemeral in GiB, swap in MiB."""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("storage") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nretry_for = 0.6\n")
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers where they were."""
    with faults_cleared(built):
        yield built
    for row in built.json("move", "list", "--state", "verifying"):
        built.cli("server", "revert", row["server_name"])
    hosts = {row["name"]: row["host"] for row in built.json("server", "list")}
    assert hosts == {"plain": "host1", "swapping": "host1", "large": "host1", "mail": "host4", "db": "host4"}
    built.assert_balanced()


def looks(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Inode, size, time of change and content of every disk in a server's directory."""
    return {
        path.name: (
            path.stat().st_ino,
            path.stat().st_size,
            path.stat().st_mtime_ns,
            hashlib.sha256(b"".join(data for _, data in pieces(path))).hexdigest(),
        )
        for path in sorted(folder.iterdir())
        if path.name.startswith("disk") and path.name != "disk.info"
    }


def pieces(path: Path) -> list[tuple[int, bytes]]:
    """Where a disk has bytes allocated, and which."""
    with path.open("rb") as file:
        where = extents.data_extents(file.fileno(), path.stat().st_size)
        return [(offset, os.pread(file.fileno(), length, offset)) for offset, length in where]


def data_of(path: Path) -> int:
    """The bytes of a disk that are allocated."""
    return sum(len(data) for _, data in pieces(path))


def sizes(lab: Stage, name: str, host: str) -> dict[str, int]:
    """The bytes that each disk seems to have."""
    return {disk: facts[1] for disk, facts in looks(lab.directory(host, name)).items()}


def wanted(flavor: str) -> dict[str, int]:
    """The disks of a flavor."""
    root, ephemeral, swap = FLAVORS[flavor]
    found = {"disk": root * GIB, "disk.eph0": ephemeral * GIB, "disk.swap": swap * MIB}
    return {disk: size for disk, size in found.items() if size}


def rows(lab: Stage, name: str) -> list[dict[str, Any]]:
    """The live block device mappings of the server's local disks, but for the time of their last change."""
    with lab.lab.cell_databases["cell1"].read() as session:
        found = session.scalars(
            sa.select(BlockDeviceMapping)
            .where(
                BlockDeviceMapping.instance_uuid == lab.id_of(name),
                BlockDeviceMapping.destination_type == "local",
                BlockDeviceMapping.deleted == 0,
            )
            .order_by(BlockDeviceMapping.id)
        )
        names = [column.key for column in sa.inspect(BlockDeviceMapping).columns if column.key != "updated_at"]
        return [{column: getattr(row, column) for column in names} for row in found]


def swap_rows(lab: Stage, name: str) -> list[tuple[Any, ...]]:
    """What Nova's rows say of swap: size, and that it is blank and goes with the server."""
    return [
        (row["volume_size"], row["source_type"], row["destination_type"], row["boot_index"], row["deleted_at"])
        for row in rows(lab, name)
        if row["guest_format"] == "swap"
    ]


def copied(lab: Stage, name: str) -> dict[str, Any]:
    """The result of the move's copy."""
    (row,) = [row for row in lab.history(lab.move(name).id) if (row.step, row.direction) == ("copy_disks", "execute")]
    return dict(row.result or {})


def assert_checksums(result: dict[str, Any], aside: Path) -> None:
    """Both that the history tells of each disk are those of the bytes that were set aside."""
    assert [disk["name"] for disk in result["disks"]] == ["disk", "disk.eph0"]
    for disk in result["disks"]:
        assert disk["checksum"] == disk["source_checksum"] == checksums.recorded(aside / disk["name"])


def test_on_shared_storage_no_byte_crosses_the_wire_and_the_source_is_untouched(lab: Stage) -> None:
    """R0-04, R0-05, R2-06: found by the probe, said by the plan with its reason; `_resize` stays what it was."""
    plan = lab.json("move", "plan", "mail", "--to-host", "host5")
    assert (plan["storage"], plan["bytes"]) == ("shared", 0)
    assert plan["storage_reason"] == "host4 and host5 keep their servers in one directory, nfs1"
    before, standing = looks(lab.directory("host4", "mail")), lab.standing("mail")
    lab.cli("server", "migrate", "mail", "--host", "host5")
    assert lab.json("move", "show", lab.move("mail").id)["storage"] == "shared"
    assert copied(lab, "mail")["bytes"] == 0
    assert_checksums(copied(lab, "mail"), lab.directory("host4", "mail", "_resize"))
    aside = looks(lab.directory("host4", "mail", "_resize"))
    assert {disk: facts for disk, facts in aside.items() if disk != "disk"} == {
        disk: facts for disk, facts in before.items() if disk != "disk"
    }
    # The guest has written to its root disk until it was stopped; since then nobody has.
    lab.cli("lab", "server", "stop", "mail", code=2)
    assert looks(lab.directory("host4", "mail", "_resize")) == aside
    lab.cli("server", "revert", "mail")
    assert lab.standing("mail") == standing
    assert {disk: facts[0] for disk, facts in looks(lab.directory("host4", "mail")).items()} == {
        disk: facts[0] for disk, facts in before.items()
    }


def test_between_separate_hosts_exactly_the_allocated_extents_cross_the_wire(lab: Stage) -> None:
    """R0-04, R0-05: swap stays behind; both checksums of every disk stand in the history."""
    plan = lab.json("move", "plan", "large", "--to-host", "host2")
    assert (plan["storage"], plan["bytes"] > 0) == ("copy", True)
    assert plan["storage_reason"] == "host1 and host2 share no directory: host2 pulls the disks"
    lab.cli("server", "migrate", "large", "--host", "host2")
    assert lab.json("move", "show", lab.move("large").id)["storage"] == "copy"
    result = copied(lab, "large")
    aside = lab.directory("host1", "large", "_resize")
    assert result["bytes"] == sum(data_of(aside / disk) for disk in ("disk", "disk.eph0"))
    assert_checksums(result, aside)


def test_a_server_on_a_volume_moves_on_shared_storage_and_back(lab: Stage) -> None:
    """Both hosts keep the server's directory in one place, though no disk lies in it."""
    before = lab.standing("db")
    lab.cli("server", "migrate", "db", "--host", "host5")
    assert lab.move("db").storage == "shared"
    lab.cli("server", "revert", "db")
    assert lab.standing("db") == before
    lab.cli("server", "migrate", "db", "--host", "host5", "--confirm", "auto")
    assert lab.standing("db").directories == ["nfs1/ID"]
    lab.cli("server", "migrate", "db", "--host", "host4", "--confirm", "auto")
    assert lab.standing("db") == before


@pytest.mark.parametrize(
    ("name", "flavor", "host"),
    [
        ("plain", "large", "host2"),
        ("swapping", "large", "host2"),
        ("large", "huge", "host2"),
        ("mail", "huge", "host5"),
    ],
)
def test_disks_follow_the_flavor_and_come_back(lab: Stage, name: str, flavor: str, host: str) -> None:
    """R0-05, R0-06: root and ephemeral grow or appear; swap appears, changes or vanishes; all of it back on revert."""
    before, standing, old = rows(lab, name), lab.standing(name), lab.standing(name).flavor
    swap = lab.directory(standing.host, name) / "disk.swap"
    if swap.exists():
        with swap.open("r+b") as file:
            file.seek(MIB)
            file.write(b"paged out")
    others = [each for each in ("host1", "host2", "host4", "host5") if each != host]
    for each in others:
        lab.cli("host", "disable", each)
    lab.cli("server", "resize", name, "--flavor", flavor)
    for each in others:
        lab.cli("host", "enable", each)
    assert sizes(lab, name, host) == wanted(flavor)
    new_swap = lab.directory(host, name) / "disk.swap"
    assert not new_swap.exists() or not data_of(new_swap)
    megabytes = FLAVORS[flavor][2]
    assert swap_rows(lab, name) == ([(megabytes, "blank", "local", -1, None)] if megabytes else [])
    # Nova has rows of root and ephemeral disks as the server was built with them, and leaves them so.
    other_disks = [row for row in rows(lab, name) if row["guest_format"] != "swap"]
    assert other_disks == [row for row in before if row["guest_format"] != "swap"]
    lab.cli("server", "revert", name)
    assert rows(lab, name) == before
    assert sizes(lab, name, standing.host) == wanted(old)
    assert lab.standing(name) == standing


@pytest.mark.parametrize(("name", "flavor"), [("plain", "swapping"), ("large", "huge")])
def test_an_undone_move_leaves_the_rows_of_swap_as_they_were(lab: Stage, name: str, flavor: str) -> None:
    """R3-09: also when every alternate was switched to and back."""
    before = rows(lab, name)
    lab.arm("start_guest", "fail", fault="destination", count=9)
    lab.cli("server", "resize", name, "--flavor", flavor, code=3)
    assert lab.move(name).attempt == 2
    assert rows(lab, name) == before


def test_a_probe_that_cannot_be_looked_for_is_not_no(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step fails with the error, and all is undone: a copy is never guessed to be needed."""
    before = lab.standing("mail")

    def broken(_self: Directories, _probe: str) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Directories, "has_probe", broken)
    assert "Input/output error" in lab.cli("server", "migrate", "mail", "--host", "host5", code=3)
    move = lab.move("mail")
    assert (move.state, move.error_code, move.storage, move.attempt) == ("failed", "io", None, 1)
    assert lab.standing("mail") == before


def test_a_probe_that_hangs_ends_the_move_undone(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names the host, the action and its time; the guest was never touched."""
    monkeypatch.setattr(FindStorage, "deadline", 0.3)
    monkeypatch.setattr(step_commands, "GRACE", 0.2)
    before, starts, answered = lab.standing("mail"), lab.starts("mail"), threading.Event()

    def hang(step: str, _direction: str, _phase: str, _effect: str) -> None:
        if step == "find_storage":
            answered.wait()

    move = submit(lab.lab, MoveSpec(server="mail", host="host5")).id
    with lab.running(workers={"host4": hang}):
        ended = move_requests.carry(lab.lab, move)
        answered.set()
    assert (ended.state, ended.error_code) == ("failed", "overdue")
    assert str(ended.error) == "host host4 did not finish find_storage of step find_storage within 0.3 s"
    assert (lab.standing("mail"), lab.starts("mail")) == (before, starts)


@pytest.mark.parametrize("mounted", ["nothing", "another"])
def test_a_shared_directory_that_vanishes_in_mid_copy_is_waited_for(lab: Stage, mounted: str) -> None:
    """The undo never takes an empty mount point for a tidy one: the move rests until the directory is back."""
    before, nfs = lab.standing("mail"), lab.lab.layout.shared / "nfs1"
    away = nfs.with_name("away")

    def vanish(step: str, direction: str, _phase: str, effect: str) -> None:
        if (step, direction, effect) == ("copy_disks", "execute", "verify") and not away.exists():
            nfs.rename(away)
            if mounted == "another":
                nfs.mkdir()

    move = submit(lab.lab, MoveSpec(server="mail", host="host5")).id
    with lab.running(workers={"host5": vanish}):
        rests = move_requests.carry(lab.lab, move)
        assert (rests.state, rests.error_code) == ("needs-operator", "storage-away")
        assert str(rests.error).endswith(": mount it again")
        assert str(rests.error).count("the servers' directory") == 1
        assert not list(nfs.glob("*"))
        shutil.rmtree(nfs, ignore_errors=True)
        away.rename(nfs)
        lab.cli("move", "retry", move, code=3)
    assert lab.move("mail").state == "failed"
    assert lab.standing("mail") == before


def test_a_confirm_deletes_and_forgets_nothing_while_its_source_is_unmounted(lab: Stage) -> None:
    """What was set aside is not gone for good: the confirm is undone, and says what to mount."""
    before, instances = lab.standing("plain"), lab.lab.layout.host("host1") / "instances"
    lab.cli("server", "migrate", "plain", "--host", "host2")
    away = instances.with_name("away")
    instances.rename(away)
    instances.mkdir()
    lab.cli("server", "confirm", "plain", code=3)
    move = lab.move("plain")
    assert (move.state, move.error_code) == ("verifying", "storage-away")
    assert str(move.error).endswith(": mount it again")
    assert [path.name for path in instances.iterdir()] == [STORE]
    shutil.rmtree(instances)
    away.rename(instances)
    lab.cli("server", "revert", "plain")
    assert lab.standing("plain") == before
