"""Real QEMU guests behind real libvirt daemons, moved by the command line: what they say themselves is the proof."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypervisor_contract import wait_for
from proofs import guest_check
from support import checksums
from support.daemons.libvirt_daemons import kill_daemon
from support.labs.operations import Stage, faults_cleared, stage

from droveway.lab import daemons, faults
from droveway.lab.libvirt_hosts import LibvirtHost
from droveway.lab.session import Lab
from droveway.workers.hypervisors import qcow2

MIB = 1 << 20
CLOUD = """
hypervisor: libvirt
cells:
  cell1: {hosts: {host1: {}, host2: {}, host3: {}}}
  cell2: {hosts: {host4: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 32, root_gb: 1}
  large: {vcpus: 2, memory_mb: 48, root_gb: 2}
  scratch: {vcpus: 1, memory_mb: 32, root_gb: 1, ephemeral_gb: 1, swap_mb: 8}
  scratch.large: {vcpus: 2, memory_mb: 48, root_gb: 2, ephemeral_gb: 2, swap_mb: 16}
images: {base: {size_mb: 16}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  db: {flavor: small, host: host2, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
  cache: {flavor: scratch, host: host1, image: base, state: stopped}
  copied: {flavor: small, host: host1, image: base, ports: [{}]}
  started: {flavor: small, host: host2, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  undone: {flavor: small, host: host3, image: base, ports: [{}]}
  defined: {flavor: small, host: host3, image: base}
  far: {flavor: small, host: host4, image: base, ports: [{}]}
"""
TINY = """
hypervisor: libvirt
cells: {cell1: {hosts: {host1: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 32, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""
SECTORS_PER_GIB = 1 << 21


@pytest.fixture(scope="module", name="lab")
def fixture_lab(libvirt_folder: Path) -> Iterator[Stage]:
    with stage(libvirt_folder / "lab", CLOUD) as made:
        for server in ("web", "db", "copied", "started", "undone", "defined", "far"):
            guest_check.stamp(made.lab, server)
        yield made


@pytest.fixture
def working(lab: Stage) -> Iterator[Stage]:
    """The lab while its conductor and workers run in the test: its commands are quick."""
    with lab.running():
        yield lab


def assert_same(lab: Stage, name: str, flavor: str, *, boots: int) -> str:
    """The server's one guest is the one that was branded, with the flavor's sizes; where it runs."""
    told = guest_check.report(lab.lab, name)
    size = {"small": (1, 32, 1), "large": (2, 48, 2)}[flavor]
    assert told.server.flavor == flavor
    assert told.status.uuid == lab.id_of(name).replace("-", "")
    assert told.status.mark == name
    assert told.checksum == guest_check.expected_checksum(told.server.id)
    assert (told.status.vcpus, told.status.memory_mb) == size[:2]
    if not told.server.boots_from_volume:
        assert told.status.disk_sectors == size[2] * SECTORS_PER_GIB
    assert told.status.boots == boots
    return told.host


def command(lab: Stage, *words: str) -> list[str]:
    return [sys.executable, "-m", "droveway.cli.main", "--lab", str(lab.root), *words]


def test_libvirt_keeps_no_server_where_it_is(working: Stage) -> None:
    """R0-12: its driver declares that it cannot, as Nova's does: a cold migrate to the present host is refused."""
    host, known = str(working.server("far").host), working.json("move", "list", "--server", "far")
    said = working.refused("server", "migrate", "far", "--host", host)
    assert f"is on host {host} already, and its hypervisor cannot migrate a server to its own host" in said
    assert working.json("move", "list", "--server", "far") == known


def test_a_resized_server_is_the_same_guest_until_its_source_is_gone(working: Stage) -> None:
    """R0-02, R0-03, R0-05, R0-09, R0-23: a running server with a volume, grown and confirmed."""
    working.cli("server", "resize", "web", "--flavor", "large")
    destination = assert_same(working, "web", "large", boots=2)
    assert destination != "host1"
    verifying = working.standing("web")
    assert verifying.defined == sorted(["host1", destination])
    assert verifying.directories == sorted(["host1/ID_resize", f"{destination}/ID"])
    assert verifying.connected == verifying.plugged == [destination]
    (copied,) = [step.result for step in working.history(working.move("web").id) if step.step == "copy_disks"]
    assert copied is not None
    aside = working.directory("host1", "web", "_resize")
    assert [disk["name"] for disk in copied["disks"]] == ["disk"]
    assert copied["disks"][0]["checksum"] == checksums.recorded(aside / "disk")
    working.assert_balanced()

    working.cli("server", "confirm", "web")
    assert assert_same(working, "web", "large", boots=2) == destination
    confirmed = working.standing("web")
    assert confirmed.defined == confirmed.runs == [destination]
    assert confirmed.directories == [f"{destination}/ID"]
    working.assert_balanced()


def test_a_reverted_server_runs_on_the_disks_that_were_set_aside(working: Stage) -> None:
    """R0-02: what the moved guest wrote since is discarded with the copy."""
    before = working.standing("far")
    working.cli("lab", "server", "create", "near", "--flavor", "small", "--host", "host1", "--image", "base")
    guest_check.stamp(working.lab, "near")
    working.cli("server", "resize", "near", "--flavor", "large")
    moved = assert_same(working, "near", "large", boots=2)
    working.lab.hypervisor(moved).write_mark(working.id_of("near"), "elsewhere")
    working.cli("server", "revert", "near")
    assert assert_same(working, "near", "small", boots=2) == "host1"
    assert working.standing("near").defined == ["host1"]
    # A cell with one host has nowhere to go, and its guest never notices.
    assert "no host can take the server far" in working.refused("server", "migrate", "far")
    assert working.standing("far") == before
    assert assert_same(working, "far", "small", boots=1) == "host4"
    working.assert_balanced()


def test_a_server_on_a_volume_takes_it_along_and_back(working: Stage) -> None:
    """R0-03: no byte is copied, and the volume keeps what either guest wrote."""
    before = working.standing("db")
    working.cli("server", "migrate", "db")
    assert assert_same(working, "db", "small", boots=2) != "host2"
    assert working.move("db").storage == "volume"
    working.cli("server", "revert", "db")
    assert assert_same(working, "db", "small", boots=3) == "host2"
    assert working.standing("db") == before
    working.assert_balanced()


def test_a_stopped_server_is_moved_without_ever_running(working: Stage) -> None:
    """R0-05, R0-06, R1-22: it grows with ephemeral disk and a new swap, and boots for the first time when told to."""
    working.cli("server", "resize", "cache", "--flavor", "scratch.large")
    destination = str(working.move("cache").dest_host)
    assert working.standing("cache").runs == []
    working.assert_balanced()
    working.cli("server", "confirm", "cache")
    assert working.standing("cache").defined == [destination]
    folder = working.directory(destination, "cache")
    sizes = {disk: qcow2.info(folder / disk, "qcow2") for disk in ("disk", "disk.eph0", "disk.swap")}
    assert [info.virtual_size // MIB for info in sizes.values()] == [2048, 2048, 16]
    assert [info.backing for info in sizes.values()] == ["", "", ""]
    working.cli("lab", "server", "start", "cache")
    told = guest_check.report(working.lab, "cache")
    assert (told.host, told.status.boots, told.status.vcpus, told.status.memory_mb) == (destination, 1, 2, 48)
    working.assert_balanced()


def test_a_move_killed_while_it_copies_starts_its_guest_once(lab: Stage) -> None:
    with faults_cleared(lab) as arm:
        for host in ("host2", "host3"):
            arm("copy_disks", "kill", phase="during", host=host)
        lab.killed("server", "resize", "copied", "--flavor", "large")
    assert lab.standing("copied").runs == []
    lab.cli("move", "resume")
    assert_same(lab, "copied", "large", boots=2)
    lab.assert_balanced()
    lab.cli("server", "confirm", "copied")
    assert_same(lab, "copied", "large", boots=2)
    lab.assert_balanced()


def test_a_move_killed_once_its_guest_runs_does_not_start_it_again(lab: Stage) -> None:
    with faults_cleared(lab) as arm:
        arm("start_guest", "kill", phase="after")
        lab.killed("server", "resize", "started", "--flavor", "large")
    assert_same(lab, "started", "large", boots=2)
    lab.cli("move", "resume")
    assert_same(lab, "started", "large", boots=2)
    assert lab.move("started").state == "verifying"
    lab.assert_balanced()


def test_an_undo_that_is_killed_brings_the_guest_back_once(lab: Stage) -> None:
    before = lab.standing("undone")
    with faults_cleared(lab) as arm:
        arm("define_guest", "fail", phase="before")
        arm("stop_guest", "kill", direction="revert", phase="after")
        lab.killed("server", "resize", "undone", "--flavor", "large")
    lab.cli("move", "resume", code=3)
    assert lab.move("undone").state == "failed"
    assert lab.standing("undone") == before
    assert assert_same(lab, "undone", "small", boots=2) == "host3"
    lab.assert_balanced()


def test_a_libvirtd_that_dies_while_it_defines_a_guest_is_waited_for(lab: Stage) -> None:
    with faults_cleared(lab) as arm:
        stall = arm("define_guest", "stall", phase="during")
        moving = subprocess.Popen(
            command(lab, "server", "resize", "defined", "--flavor", "large"), stdout=subprocess.PIPE, text=True
        )
        try:
            wait_for(lambda: [each.count for each in faults.armed(lab.lab.layout)] == [0], "the stall")
            daemon = daemon_of(lab.lab, str(lab.move("defined").dest_host))
            kill_daemon(daemon)
            faults.clear(lab.lab.layout, stall.id)
            daemon.start()
            printed, _ = moving.communicate(timeout=180)
        finally:
            moving.kill()
    assert moving.returncode == 0, printed
    assert assert_same(lab, "defined", "large", boots=2) == daemon.name
    lab.assert_balanced()


def test_a_dead_daemon_is_started_again_by_the_next_command(lab: Stage) -> None:
    for host in lab.lab.identity.hosts:
        kill_daemon(daemon_of(lab.lab, host))
    done = subprocess.run(command(lab, "audit"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stderr.endswith("the books balance\n")
    assert_same(lab, "far", "small", boots=1)


def daemon_of(lab: Lab, host: str) -> LibvirtHost:
    return daemons.host(lab.layout, lab.identity, host)


class TestMaking:
    """A lab of one host, made and removed by commands."""

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(prefix="dw"))
        (path / "cloud.yaml").write_text(TINY)
        path.chmod(0o711)
        yield path
        shutil.rmtree(path)

    def run(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "droveway.cli.main", *words],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_removed_lab_leaves_no_daemon_and_no_guest(self, folder: Path) -> None:
        assert self.run("lab", "create", folder / "lab", "--cloud", folder / "cloud.yaml").returncode == 0
        lab = Lab.open(folder / "lab")
        daemon = daemon_of(lab, "host1")
        pids = [int(path.read_text()) for path in (daemon.dir / "pid", *daemon.dir.glob("run/libvirt/qemu/run/*.pid"))]
        assert len(pids) >= 2
        lab.close()
        kill_daemon(daemon)
        destroyed = self.run("lab", "destroy", folder / "lab")
        assert destroyed.stdout.endswith("1 guests stopped\n")
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        assert not Path(lab.identity.sockets).exists()
        assert list(folder.iterdir()) == [folder / "cloud.yaml"]

    def test_missing_packages_are_named_and_nothing_is_made(self, folder: Path) -> None:
        refused = self.run("lab", "create", folder / "lab", "--cloud", folder / "cloud.yaml", PATH="/nowhere")
        assert refused.returncode == 2
        assert refused.stderr == (
            "droveway: libvirt hosts need Debian packages that are missing; run: "
            "apt-get install qemu-system-x86 qemu-utils binutils\n"
        )
        assert list(folder.iterdir()) == [folder / "cloud.yaml"]

    def test_a_directory_that_the_daemons_user_cannot_enter_is_refused(self, folder: Path) -> None:
        folder.chmod(0o700)
        made = self.run("lab", "create", folder / "lab", "--cloud", folder / "cloud.yaml", TMPDIR=str(folder))
        if os.geteuid() == 0:
            assert made.returncode == 2
            assert f"who cannot enter {folder}: run chmod o+x {folder}" in made.stderr
        else:
            assert self.run("lab", "destroy", folder / "lab").returncode == 0
        assert list(folder.iterdir()) == [folder / "cloud.yaml"]
