"""What the libvirt hypervisor promises beyond the contract: dead daemons, killed workers, libvirt's own traps."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypervisor_contract import GROWN, Server, kill, open_fence, wait_for
from libvirt_rig import LibvirtRig
from lxml import etree
from support.daemons.libvirt_daemons import kill_daemon

from droveway.errors import DestinationFault, StepError
from droveway.lab.libvirt_hosts import CAPABILITIES, LibvirtHost
from droveway.workers.hypervisors.libvirt import connection as libvirt_connection
from droveway.workers.hypervisors.libvirt import hypervisor as libvirt_hypervisor
from droveway.workers.hypervisors.libvirt.connection import Connection

STARTER = """
import sys
from pathlib import Path
from droveway.lab.boot_guests import BootGuests
root, uri, consoles, volumes, server = sys.argv[1:]
hypervisor = BootGuests("host1", Path(root), uri=uri, run_dir=Path(consoles), volumes=Path(volumes))
hypervisor.start(server, lambda: None)
"""


@pytest.fixture
def server(rig: LibvirtRig) -> Iterator[Server]:
    made = Server(rig)
    yield made
    for host in (rig.host, rig.peer):
        host.stop(made.id, grace=0, fence=open_fence)
        host.undefine(made.id)


def moments(rig: LibvirtRig, server: Server) -> dict[str, Callable[[], bool]]:
    """What can be seen of a start from outside, one after the other."""
    directory = rig.daemon.dir / "run/libvirt/qemu/run"
    return {
        "announced": (rig.host.root / "starts" / f"{server.id}.json").exists,
        "launched": (directory / f"{server.name}.pid").exists,
        "saved": (directory / f"{server.name}.xml").exists,
        "active": lambda: server.running,
    }


MOMENTS = ["announced", "launched", "saved", "active"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_starter_leaves_one_guest_to_be_found(rig: LibvirtRig, server: Server, moment: str) -> None:
    seen = moments(rig, server)[moment]
    arguments = [rig.host.root, rig.daemon.uri, rig.daemon.consoles, rig.volumes, server.id]
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *arguments])
    wait_for(lambda: seen() or starter.poll() is not None, moment)
    starter.kill()
    starter.wait()
    server.start()
    assert server.probe()["boots"] == 1
    assert server.starts >= 1
    before = server.starts
    server.start()
    assert server.starts == before


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_start_outlives_the_death_of_its_daemon(rig: LibvirtRig, server: Server, moment: str) -> None:
    seen = moments(rig, server)[moment]

    def replace_daemon() -> None:
        wait_for(seen, moment)
        kill_daemon(rig.daemon)
        rig.daemon.start()

    killer = threading.Thread(target=replace_daemon)
    killer.start()
    server.start()
    killer.join()
    server.start()
    assert server.probe()["boots"] == 1
    assert server.starts >= 1


def test_a_stop_outlives_the_death_of_its_daemon(rig: LibvirtRig, server: Server) -> None:
    server.start()
    assert server.probe()["boots"] == 1

    def killing_fence() -> None:
        kill_daemon(rig.daemon)
        threading.Thread(target=rig.daemon.start).start()

    rig.host.stop(server.id, grace=20, fence=killing_fence)
    assert not server.running
    assert server.starts == 1


def test_a_late_press_of_the_power_button_meets_no_guest_that_was_started_again(
    rig: LibvirtRig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host the press may wait for its connection for longer than the guest has to shut down."""
    server.start()
    assert server.probe()["boots"] == 1
    monkeypatch.setattr(libvirt_hypervisor, "DESTROY_SECONDS", 0.2)
    free, pressed = threading.Event(), threading.Event()
    connect = Connection.get

    def slowly(connection: Connection) -> Any:
        if threading.current_thread().name != libvirt_hypervisor.PRESS:
            return connect(connection)
        assert free.wait(180)
        try:
            return connect(connection)
        finally:
            pressed.set()

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "get", slowly)
        for _ in range(2):
            assert f"has not answered each call to stop the guest of server {server.id}" in refusal(rig, server)
            assert not server.running
        free.set()
        assert pressed.wait(180)
        monkeypatch.setattr(libvirt_hypervisor, "DESTROY_SECONDS", 30.0)
        rig.host.stop(server.id, grace=0.05, fence=open_fence)
    server.start()
    assert server.probe()["boots"] == 2
    assert server.running


def refusal(rig: LibvirtRig, server: Server) -> str:
    """Why the guest is not stopped, once QEMU has ended it: on a busy host that takes longer than one try."""
    while True:
        with pytest.raises(StepError) as told:
            rig.host.stop(server.id, grace=0.05, fence=open_fence)
        if "QEMU hangs" not in str(told.value):
            return str(told.value)


def test_definitions_and_undefinitions_find_the_new_daemon(rig: LibvirtRig, server: Server) -> None:
    with rig.crash():
        pass
    server.define(memory_mb=64)
    guest = rig.host.guest(server.id)
    assert guest is not None
    assert guest.memory_mb == 64
    with rig.crash():
        pass
    rig.host.undefine(server.id)
    assert rig.host.guest(server.id) is None


def test_a_frozen_daemon_ends_in_an_error_and_is_used_again(
    rig: LibvirtRig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libvirt_connection, "KEEPALIVE", (1, 2))
    monkeypatch.setattr(libvirt_connection, "OPEN_SECONDS", 1.0)
    rig.host.close()
    server.start()
    daemon = int((rig.daemon.dir / "pid").read_text())
    os.kill(daemon, signal.SIGSTOP)
    try:
        with pytest.raises(StepError, match="does not answer"):
            rig.host.guest(server.id)
        with pytest.raises(StepError, match="does not answer"):
            server.stop()
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert (server.running, server.starts) == (True, 1)


def test_a_missing_backing_file_is_a_proved_start_failure(rig: LibvirtRig, server: Server) -> None:
    hidden = rig.base.with_name("hidden")
    rig.base.rename(hidden)
    try:
        with pytest.raises(DestinationFault, match=rig.base.name):
            server.start()
    finally:
        hidden.rename(rig.base)
    assert (server.running, server.starts) == (False, 0)
    server.start()
    assert server.starts == 1


def test_a_disk_tells_its_backing_file_and_grows_above_it(rig: LibvirtRig, server: Server) -> None:
    rig.host.grow_disk(server.disk, "qcow2", GROWN)
    described = rig.host.disk_info(server.disk, "qcow2")
    assert (described.backing, described.virtual_size) == (str(rig.base), GROWN)
    assert described.allocated == server.disk.stat().st_blocks * 512


def test_a_disk_of_another_format_is_not_taken_for_qcow2(rig: LibvirtRig, server: Server) -> None:
    raw = server.directory / "disk.raw"
    raw.write_bytes(bytes(1 << 20))
    with pytest.raises(StepError, match="qemu-img"):
        rig.host.disk_info(raw, "qcow2")
    # A guest may write another format's header into its raw disk: its size stays what the file says.
    raw.write_bytes(server.disk.read_bytes().ljust(1 << 20, b"\0"))
    assert rig.host.disk_info(raw, "raw").virtual_size == raw.stat().st_size


def test_a_cpu_that_the_host_lacks_is_refused(rig: LibvirtRig, server: Server) -> None:
    with pytest.raises(DestinationFault, match="91"):
        rig.peer.check(server.definition.replace("qemu64", "EPYC"), vcpus=1, memory_mb=32)
    assert rig.peer.guest(server.id) is None


def test_snapshots_and_saved_state_do_not_keep_a_guest_defined(rig: LibvirtRig, server: Server) -> None:
    connection = Connection(rig.daemon.uri)
    domain = connection.get().lookupByUUIDString(server.id)
    server.start()
    domain.snapshotCreateXML("<domainsnapshot><name>s</name></domainsnapshot>")
    domain.managedSave(0)
    assert domain.hasManagedSaveImage()
    rig.host.undefine(server.id)
    assert rig.host.guest(server.id) is None
    server.define()
    domain = connection.get().lookupByUUIDString(server.id)
    assert not domain.hasManagedSaveImage()
    assert domain.snapshotNum() == 0
    connection.close()


def test_a_moved_guest_is_the_same_machine(rig: LibvirtRig, server: Server) -> None:
    guest = rig.host.guest(server.id)
    assert guest is not None
    there = rig.peer.instances / server.id
    there.mkdir(parents=True)
    shutil.copyfile(server.disk, there / "disk")
    server.define(rig.peer, definition=guest.definition, vcpus=2, memory_mb=64, disks=[there / "disk"])
    moved = rig.peer.guest(server.id)
    assert moved is not None
    assert str(rig.host.root) not in moved.definition
    assert str(rig.daemon.dir) not in moved.definition
    before, after = (etree.fromstring(text) for text in (guest.definition, moved.definition))
    for path in ("uuid", "name", "os/type", "cpu", "devices/disk/address", "devices/controller"):
        old, new = before.find(path), after.find(path)
        assert old is not None
        assert new is not None
        assert etree.tostring(old) == etree.tostring(new)


def test_a_host_gets_its_own_definition_back_and_takes_no_other_ones_words(rig: LibvirtRig, server: Server) -> None:
    """What others keep in the metadata is the host's own affair: after a revert it is there as it was."""
    word = "<nova:instance xmlns:nova='urn:nova'>web</nova:instance>"
    text = server.definition.replace("</uuid>", f"</uuid><metadata>{word}</metadata>", 1)
    for own in (True, False):
        server.define(definition=text, own=own)
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert ("urn:nova" in guest.definition) == own


def test_a_guest_that_still_boots_hears_the_power_button_all_the_same(rig: LibvirtRig, server: Server) -> None:
    for _ in range(2):
        server.start()
        server.stop()
    file = rig.host.root / "consoles" / f"{server.id}.log"
    log = file.read_text()
    assert [line.split()[2] for line in log.splitlines() if "SMV1 status" in line] == ["boots=1", "boots=2"]
    assert log.count("SMV1 off") == 2
    rig.host.undefine(server.id)
    assert not file.exists()


def test_a_host_is_started_once_and_stopped_by_anybody(rig: LibvirtRig, libvirt_hosts: list[LibvirtHost]) -> None:
    short = rig.daemon.dir.parent
    host = LibvirtHost("host3", rig.daemon.root.parent / "host3", short)
    host.start()
    pid = int((host.dir / "pid").read_text())
    try:
        LibvirtHost("host3", host.root, short).start()
        assert int((host.dir / "pid").read_text()) == pid
        assert any((host.state / CAPABILITIES).iterdir())
    finally:
        LibvirtHost("host3", host.root, short).stop()
    assert not Path(f"/proc/{pid}").exists()
    host.stop()
    assert not host.dir.exists()


def test_a_stopped_host_leaves_no_guest_behind(rig: LibvirtRig) -> None:
    daemon = LibvirtHost("host4", rig.daemon.root.parent / "host4", rig.daemon.dir.parent)
    daemon.start()
    try:
        host = rig._open(daemon)
        server, disk = str(uuid.uuid4()), daemon.root / "instances" / "x" / "disk"
        disk.parent.mkdir(parents=True)
        rig.make_disk(disk)
        text = host.create_definition(server=server, name="web", vcpus=1, memory_mb=32, disks=[disk], boot_volume=False)
        formats = {"disk": "qcow2"}
        host.define(
            server, text, vcpus=None, memory_mb=None, disks=[disk], formats=formats, volumes=[], ports=[], mark=None
        )
        host.start(server, open_fence)
        pid = int((daemon.dir / "run/libvirt/qemu/run/web.pid").read_text())
        kill_daemon(daemon)
    finally:
        daemon.stop()
    with pytest.raises(ProcessLookupError):
        kill(pid)
