"""Real guests on overlays: what lies in their base moves with them, or is there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from libvirt_rig import make_overlay
from proofs import guest_check
from support.labs.operations import Stage, faults_cleared, stage

from droveway.workers.directories import BASES, Directories
from droveway.workers.hypervisors import qcow2
from droveway.workers.transfer import extents

CLOUD = """
hypervisor: libvirt
options: {max_attempts: 1}
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 32, root_gb: 1}
  large: {vcpus: 2, memory_mb: 48, root_gb: 2}
images: {base: {size_mb: 16}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(libvirt_folder: Path) -> Iterator[Stage]:
    with stage(libvirt_folder / "overlay", CLOUD) as made:
        made.cli("lab", "server", "stop", "web")
        rest_on_a_base(made)
        made.cli("lab", "server", "start", "web")
        guest_check.stamp(made.lab, "web")
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    with faults_cleared(built), built.running():
        yield built


def rest_on_a_base(lab: Stage) -> None:
    """Make the server's root disk an overlay on what it was, as Nova builds servers."""
    directories = Directories(lab.lab.hypervisor("host1").instances)
    disk, base = lab.directory("host1", "web") / "disk", directories.path(BASES, "a1" * 20)
    directories.create(BASES)
    disk.rename(base)
    make_overlay(disk, base, 1 << 30)


def digest(path: Path) -> str:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        return extents.digest(directory, path.name, lambda: None)
    finally:
        os.close(directory)


def bases(lab: Stage) -> list[str]:
    """The bases that the server's last move took along."""
    (row,) = [
        row
        for row in lab.history(lab.move("web").id)
        if (row.step, row.direction, row.error) == ("copy_disks", "execute", None)
    ]
    return [base["checksum"] for base in (row.result or {})["bases"]]


def assert_same(lab: Stage, host: str) -> None:
    told = guest_check.report(lab.lab, "web")
    assert told.host == host
    assert told.status.mark == "web"
    assert told.checksum == guest_check.expected_checksum(told.server.id)


def test_a_guest_on_an_overlay_moves_with_its_base_and_back(lab: Stage) -> None:
    """R0-04, R0-05: the first move takes the base along, the next one finds it; a revert rests on the old one."""
    base = lab.lab.hypervisor("host1").instances / BASES / ("a1" * 20)
    lab.cli("server", "resize", "web", "--flavor", "large")
    assert_same(lab, "host2")
    there = lab.lab.hypervisor("host2").instances / BASES / digest(base)
    assert qcow2.info(lab.directory("host2", "web") / "disk", "qcow2").backing == str(there)
    assert bases(lab) == [there.name]
    lab.cli("server", "revert", "web")
    assert_same(lab, "host1")
    assert qcow2.info(lab.directory("host1", "web") / "disk", "qcow2").backing == str(base)
    lab.cli("server", "migrate", "web", "--confirm", "auto")
    assert_same(lab, "host2")
    assert bases(lab) == []
    lab.cli("server", "migrate", "web", "--confirm", "auto")
    assert_same(lab, "host1")
    lab.assert_balanced()


def test_a_guest_whose_base_is_lost_is_never_stopped(lab: Stage) -> None:
    """One sentence, undone before the shutdown: it could not be started again."""
    host = lab.server("web").host
    disk = lab.directory(str(host), "web") / "disk"
    base = Path(qcow2.info(disk, "qcow2").backing)
    away = base.rename(base.with_name("away"))
    said = lab.cli("server", "migrate", "web", code=3)
    assert f"rests on {base}, which is not there on {host}: restore it" in said
    assert "stop_guest" not in {row.step for row in lab.history(lab.move("web").id)}
    assert_same(lab, str(host))
    away.rename(base)
    lab.assert_balanced()
