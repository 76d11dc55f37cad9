"""What every hypervisor promises, tried on each with real guests: a case for whatever an action can meet.

A test module subclasses `HypervisorContract` and has a fixture ``rig``.
"""

from __future__ import annotations

import abc
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.rigs.told_guests import told

from droveway.errors import DestinationFault, Fenced, StepError
from droveway.lab.boot_guests import BootGuests
from droveway.workers.hypervisors.base import Hypervisor, Mark, Port, Volume
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

MARK = Mark(move="6c1f0d5e-0000-4000-8000-000000000001", epoch=7)
MEMORY_MB = 32
GROWN = 96 << 20
SECONDS = 60.0


def open_fence() -> None:
    """The claim stands."""


def closed_fence() -> None:
    raise Fenced("the epoch has moved on")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        threading.Event().wait(0.002)


Guests = Sandbox | BootGuests


class Rig(abc.ABC):
    """Two hosts of one kind of hypervisor, and what a test does to them from outside."""

    host: Guests
    peer: Guests
    volumes: Path
    least_memory_of_a_giant_mb: int

    @abc.abstractmethod
    def make_disk(self, path: Path) -> None:
        """A disk from which a guest boots."""

    @abc.abstractmethod
    def make_volume(self, path: Path) -> None:
        """A volume from which a guest boots."""

    @abc.abstractmethod
    def reopen(self) -> Guests:
        """The first host as another worker's process sees it."""

    @abc.abstractmethod
    def guest_pid(self, server: str) -> int:
        """The process of a running guest on the first host."""

    @abc.abstractmethod
    def foreign_machine(self, definition: str) -> str:
        """The same with a machine type that no host has."""

    @abc.abstractmethod
    def unknown_part(self, definition: str) -> str:
        """The same with something in it that nobody knows."""

    @abc.abstractmethod
    def renamed(self, definition: str, server: str, name: str) -> str:
        """The same for another server or name."""

    @contextmanager
    def crash(self) -> Iterator[None]:
        """What keeps the books of this kind of hypervisor dies before the body and is back after it."""
        yield


class Server:
    """A server in a test: its id, its directory on the first host, its definition there."""

    def __init__(self, rig: Rig, **define: Any) -> None:
        self.rig = rig
        self.id = str(uuid.uuid4())
        self.name = f"instance-{self.id[:8]}"
        self.directory = rig.host.instances / self.id
        self.directory.mkdir(parents=True)
        self.disk = self.directory / "disk"
        rig.make_disk(self.disk)
        self.definition = rig.host.create_definition(
            server=self.id, name=self.name, vcpus=1, memory_mb=MEMORY_MB, disks=[self.disk], boot_volume=False
        )
        self.define(**define)

    def define(self, host: Hypervisor | None = None, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "vcpus": None,
            "memory_mb": None,
            "disks": [self.disk],
            "formats": dict.fromkeys(("disk", "disk.eph0", "disk.swap"), self.rig.host.disk_format),
            "volumes": [],
            "ports": [],
            "mark": MARK,
        }
        (host or self.rig.host).define(self.id, **{"definition": self.definition, **arguments, **changes})

    @property
    def running(self) -> bool:
        guest = self.rig.host.guest(self.id)
        return guest is not None and guest.running

    @property
    def starts(self) -> int:
        guest = self.rig.host.guest(self.id)
        assert guest is not None
        return guest.starts

    def start(self) -> None:
        self.rig.host.start(self.id, open_fence)

    def stop(self, grace: float = 20.0) -> None:
        self.rig.host.stop(self.id, grace=grace, fence=open_fence)

    def probe(self) -> dict[str, Any]:
        return self.rig.host.probe_guest(self.id)

    def volume(self, *, boot: bool = False) -> Volume:
        name = str(uuid.uuid4())
        path = self.rig.volumes / f"volume-{name}"
        self.rig.make_volume(path)
        connection = {"driver_volume_type": "local", "data": {"path": str(path)}, "serial": name}
        return Volume(volume=name, device="/dev/vda" if boot else "/dev/vdb", boot=boot, connection=connection)


class HypervisorContract:
    """The promises."""

    @pytest.fixture
    def server(self, rig: Rig) -> Iterator[Server]:
        made = Server(rig)
        yield made
        for host in (rig.host, rig.peer):
            host.stop(made.id, grace=0, fence=open_fence)
            host.undefine(made.id)

    def test_a_guest_is_described_as_defined(self, rig: Rig, server: Server) -> None:
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert (guest.server, guest.name, guest.running, guest.starts) == (server.id, server.name, False, 0)
        assert (guest.vcpus, guest.memory_mb, guest.mark) == (1, MEMORY_MB, MARK)
        assert [found for found in rig.host.guests() if found.server == server.id] == [guest]

    def test_a_guest_that_is_not_there_is_nothing(self, rig: Rig) -> None:
        absent = str(uuid.uuid4())
        assert rig.host.guest(absent) is None
        rig.host.undefine(absent)
        rig.host.stop(absent, grace=1, fence=closed_fence)
        with pytest.raises(DestinationFault):
            rig.host.start(absent, open_fence)

    def test_what_a_host_says_of_a_guest_defines_it_again(self, rig: Rig, server: Server) -> None:
        before = rig.host.guest(server.id)
        assert before is not None
        server.define(definition=before.definition)
        server.define(definition=before.definition)
        assert rig.host.guest(server.id) == before

    def test_the_mark_is_changed_and_removed_with_the_definition(self, rig: Rig, server: Server) -> None:
        server.define(mark=Mark(move="other", epoch=8))
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert guest.mark == Mark(move="other", epoch=8)
        server.define(mark=None)
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert guest.mark is None

    def test_two_names_for_one_server_are_refused(self, rig: Rig, server: Server) -> None:
        with pytest.raises(DestinationFault, match=server.name):
            server.define(definition=rig.renamed(server.definition, server.id, "another"))

    def test_one_name_for_two_servers_is_refused(self, rig: Rig, server: Server) -> None:
        other = str(uuid.uuid4())
        text = rig.renamed(server.definition, other, server.name)
        with pytest.raises(DestinationFault, match=server.id):
            rig.host.define(other, text, vcpus=1, memory_mb=MEMORY_MB, disks=[], volumes=[], ports=[], mark=None)
        assert rig.host.guest(other) is None

    def test_another_servers_definition_is_refused(self, rig: Rig, server: Server) -> None:
        other = str(uuid.uuid4())
        with pytest.raises(DestinationFault, match=server.id):
            rig.host.define(other, server.definition, vcpus=1, memory_mb=32, disks=[], volumes=[], ports=[], mark=None)

    def test_an_unknown_part_is_refused_not_dropped(self, rig: Rig, server: Server) -> None:
        with pytest.raises(DestinationFault):
            server.define(definition=rig.unknown_part(server.definition), memory_mb=64)
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert guest.memory_mb == MEMORY_MB

    @pytest.mark.parametrize("text", ["", "no definition", "<domain/>", "{}", '<?xml version="1.0"?><pool/>'])
    def test_a_text_that_is_no_definition_is_refused(self, rig: Rig, server: Server, text: str) -> None:
        with pytest.raises(DestinationFault):
            rig.host.check(text, vcpus=1, memory_mb=MEMORY_MB)
        with pytest.raises(DestinationFault):
            server.define(definition=text)

    def test_a_machine_type_that_the_host_lacks_is_refused(self, rig: Rig, server: Server) -> None:
        text = rig.foreign_machine(server.definition)
        with pytest.raises(DestinationFault):
            rig.peer.check(text, vcpus=1, memory_mb=MEMORY_MB)
        with pytest.raises(DestinationFault):
            server.define(rig.peer, definition=text)
        assert rig.peer.guest(server.id) is None

    def test_a_guest_that_fits_passes_the_check(self, rig: Rig, server: Server) -> None:
        assert rig.peer.check(server.definition, vcpus=2, memory_mb=64) is None
        assert rig.peer.guest(server.id) is None

    def test_too_many_sizes_fail_the_check(self, rig: Rig, server: Server) -> None:
        with pytest.raises(DestinationFault, match="memory"):
            rig.peer.check(server.definition, vcpus=1, memory_mb=rig.least_memory_of_a_giant_mb)
        with pytest.raises(DestinationFault, match="vCPUs"):
            rig.peer.check(server.definition, vcpus=0, memory_mb=MEMORY_MB)

    def test_more_memory_than_the_host_has_is_a_proved_start_failure(self, rig: Rig, server: Server) -> None:
        server.define(memory_mb=rig.least_memory_of_a_giant_mb)
        with pytest.raises(DestinationFault):
            server.start()
        assert (server.running, server.starts) == (False, 0)
        server.define(memory_mb=MEMORY_MB)
        server.start()
        assert (server.running, server.starts) == (True, 1)

    def test_a_started_guest_runs_once_and_says_who_it_is(self, rig: Rig, server: Server) -> None:
        server.start()
        server.start()
        assert (server.running, server.starts) == (True, 1)
        assert server.probe() == {"boots": 1, "mark": "-", "vcpus": 1, "memory_mb": MEMORY_MB}
        rig.reopen().start(server.id, closed_fence)
        assert server.probe()["boots"] == 1

    def test_the_guests_own_mark_outlives_it(self, rig: Rig, server: Server) -> None:
        server.start()
        rig.host.write_mark(server.id, "hello")
        assert server.probe()["mark"] == "hello"
        server.stop()
        server.start()
        assert server.probe() == {"boots": 2, "mark": "hello", "vcpus": 1, "memory_mb": MEMORY_MB}
        assert server.starts == 2

    @pytest.mark.parametrize("mark", ["", "sixteen-letters!"])
    def test_a_mark_that_does_not_fit_is_refused(self, rig: Rig, server: Server, mark: str) -> None:
        server.start()
        with pytest.raises(StepError):
            rig.host.write_mark(server.id, mark)
        assert server.probe()["mark"] == "-"

    def test_a_guest_that_is_off_is_mute(self, rig: Rig, server: Server) -> None:
        with pytest.raises(StepError):
            server.probe()
        with pytest.raises(StepError):
            rig.host.write_mark(server.id, "hello")

    def test_a_closed_fence_keeps_a_guest_off_and_running(self, rig: Rig, server: Server) -> None:
        with pytest.raises(Fenced):
            rig.host.start(server.id, closed_fence)
        assert (server.running, server.starts) == (False, 0)
        server.start()
        with pytest.raises(Fenced):
            rig.host.stop(server.id, grace=5, fence=closed_fence)
        assert (server.running, server.starts) == (True, 1)
        assert server.probe()["boots"] == 1

    def test_a_stopped_guest_is_off_and_may_be_stopped_again(self, rig: Rig, server: Server) -> None:
        server.start()
        server.stop()
        assert not server.running
        rig.host.stop(server.id, grace=5, fence=closed_fence)
        assert (server.running, server.starts) == (False, 1)

    def test_a_guest_is_cut_off_without_grace(self, rig: Rig, server: Server) -> None:
        server.start()
        server.stop(grace=0)
        assert not server.running

    def test_a_frozen_guest_is_cut_off_after_its_grace(self, rig: Rig, server: Server) -> None:
        server.start()
        freeze(rig.guest_pid(server.id))
        server.stop(grace=0.3)
        assert not server.running
        server.start()
        assert server.starts == 2

    def test_a_killed_guest_is_off_and_may_start_again(self, rig: Rig, server: Server) -> None:
        server.start()
        assert server.probe()["boots"] == 1
        kill(rig.guest_pid(server.id))
        wait_for(lambda: not server.running, "the guest is off")
        assert (server.starts, told(rig.host, server.id)) == (1, "went-off")
        server.start()
        assert (told(rig.host, server.id), server.starts, server.probe()["boots"]) == ("running", 2, 2)

    def test_it_is_known_for_how_long_a_guest_has_run(self, rig: Rig, server: Server) -> None:
        def age() -> float:
            told = rig.reopen().running_for(server.id)
            assert told is not None
            return told

        assert rig.host.running_for(server.id) is None
        before = time.monotonic()
        server.start()
        wait_for(lambda: age() > 1, "the guest has run for a second")
        assert age() <= time.monotonic() - before + 0.1
        server.stop(grace=0)
        assert rig.host.running_for(server.id) is None
        before = time.monotonic()
        server.start()
        assert age() <= time.monotonic() - before + 0.1

    def test_a_mute_guest_is_asked_no_longer_than_wanted(self, rig: Rig, server: Server) -> None:
        server.start()
        freeze(rig.guest_pid(server.id))
        before = time.monotonic()
        with pytest.raises(StepError, match="does not answer"):
            rig.host.probe_guest(server.id, seconds=0.5)
        assert 0.5 <= time.monotonic() - before < 5

    def test_many_starters_at_once_start_one_guest(self, rig: Rig, server: Server) -> None:
        hosts = [rig.host, *(rig.reopen() for _ in range(3))]
        with ThreadPoolExecutor(len(hosts)) as pool:
            for done in [pool.submit(host.start, server.id, open_fence) for host in hosts]:
                done.result()
        assert (server.running, server.starts) == (True, 1)
        assert server.probe()["boots"] == 1

    def test_a_missing_disk_is_a_proved_start_failure(self, rig: Rig, server: Server) -> None:
        server.disk.rename(server.directory / "elsewhere")
        with pytest.raises(DestinationFault):
            server.start()
        assert (server.running, server.starts) == (False, 0)

    def test_a_disk_that_was_set_aside_cannot_start(self, rig: Rig, server: Server) -> None:
        server.start()
        server.stop()
        aside = server.directory.with_name(f"{server.id}_resize")
        server.directory.rename(aside)
        with pytest.raises(DestinationFault):
            server.start()
        assert (server.running, server.starts) == (False, 1)
        aside.rename(server.directory)
        server.start()
        assert server.probe()["boots"] == 2

    def test_a_disk_that_a_guest_elsewhere_uses_cannot_start(self, rig: Rig, server: Server) -> None:
        server.start()
        there = rig.peer.instances / server.id
        there.mkdir(parents=True)
        (there / "disk").hardlink_to(server.disk)
        server.define(rig.peer, disks=[there / "disk"])
        with pytest.raises(DestinationFault):
            rig.peer.start(server.id, open_fence)
        found = rig.peer.guest(server.id)
        assert found is not None
        assert (found.running, found.starts) == (False, 0)
        assert server.probe()["boots"] == 1

    def test_a_running_guest_is_not_undefined(self, rig: Rig, server: Server) -> None:
        server.start()
        with pytest.raises(StepError, match="runs"):
            rig.host.undefine(server.id)
        server.stop()
        assert rig.host.guest(server.id) is not None

    def test_an_undefined_guest_leaves_nothing(self, rig: Rig, server: Server) -> None:
        server.start()
        server.stop()
        rig.host.undefine(server.id)
        rig.host.undefine(server.id)
        assert rig.host.guest(server.id) is None
        assert server.id not in {guest.server for guest in rig.host.guests()}
        server.define()
        assert server.starts == 0

    def test_a_running_guest_is_not_redefined(self, rig: Rig, server: Server) -> None:
        server.start()
        server.define()
        with pytest.raises(DestinationFault, match="runs"):
            server.define(memory_mb=64)
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert (guest.running, guest.memory_mb) == (True, MEMORY_MB)

    def test_redefinition_keeps_the_start_count(self, rig: Rig, server: Server) -> None:
        server.start()
        server.stop()
        server.define(vcpus=2, memory_mb=64, mark=None)
        assert server.starts == 1
        server.start()
        assert server.probe() == {"boots": 2, "mark": "-", "vcpus": 2, "memory_mb": 64}
        assert server.starts == 2

    def test_a_guest_moves_with_its_disk_and_new_sizes(self, rig: Rig, server: Server) -> None:
        server.start()
        rig.host.write_mark(server.id, "moved")
        server.stop()
        guest = rig.host.guest(server.id)
        assert guest is not None
        there = rig.peer.instances / server.id
        there.mkdir(parents=True)
        shutil.copyfile(server.disk, there / "disk")
        rig.peer.create_disk(there / "disk.swap", size=8 << 20, kind="swap")
        rig.peer.grow_disk(there / "disk", rig.peer.disk_format, GROWN)
        disks = [there / "disk", there / "disk.swap"]
        server.define(rig.peer, definition=guest.definition, vcpus=2, memory_mb=64, disks=disks)
        rig.peer.start(server.id, open_fence)
        assert rig.peer.probe_guest(server.id) == {"boots": 2, "mark": "moved", "vcpus": 2, "memory_mb": 64}
        assert not server.running
        found = rig.peer.guest(server.id)
        assert found is not None
        assert (found.starts, found.name, found.mark) == (1, server.name, MARK)

    def test_a_crash_beside_a_running_guest_changes_nothing(self, rig: Rig, server: Server) -> None:
        server.start()
        with rig.crash():
            pass
        assert (server.running, server.starts) == (True, 1)
        assert server.probe()["boots"] == 1
        guest = rig.reopen().guest(server.id)
        assert guest is not None
        assert (guest.running, guest.mark) == (True, MARK)
        rig.host.unmark(server.id)
        assert (getattr(rig.host.guest(server.id), "mark", MARK), server.running, server.starts) == (None, True, 1)
        server.stop()
        assert not server.running

    def test_a_guest_that_ends_while_its_keeper_is_dead_is_off(self, rig: Rig, server: Server) -> None:
        server.start()
        pid = rig.guest_pid(server.id)
        with rig.crash():
            kill(pid)
        wait_for(lambda: not server.running, "the guest is off")
        server.start()
        assert (server.running, server.starts) == (True, 2)

    def test_a_guest_does_not_start_without_its_volumes_and_ports(self, rig: Rig, server: Server) -> None:
        volume, port = server.volume(), Port(port=str(uuid.uuid4()), mac="fa:16:3e:00:00:01")
        server.define(volumes=[volume], ports=[port])
        with pytest.raises(DestinationFault, match=volume.volume):
            server.start()
        rig.host.connect_volume(server.id, volume)
        with pytest.raises(DestinationFault, match=port.port):
            server.start()
        rig.host.plug(server.id, port)
        assert server.starts == 0
        server.start()
        assert server.starts == 1

    def test_a_guest_boots_from_its_volume(self, rig: Rig, server: Server) -> None:
        volume = server.volume(boot=True)
        server.disk.unlink()
        text = rig.host.create_definition(
            server=server.id, name=server.name, vcpus=1, memory_mb=MEMORY_MB, disks=[], boot_volume=True
        )
        server.define(definition=text, disks=[], volumes=[volume])
        rig.host.connect_volume(server.id, volume)
        server.start()
        rig.host.write_mark(server.id, "volume")
        server.stop()
        guest = rig.host.guest(server.id)
        assert guest is not None
        server.define(rig.peer, definition=guest.definition, disks=[], volumes=[volume])
        rig.peer.connect_volume(server.id, volume)
        rig.peer.start(server.id, open_fence)
        assert rig.peer.probe_guest(server.id)["mark"] == "volume"

    def test_volumes_come_and_go_with_the_definition(self, rig: Rig, server: Server) -> None:
        volume = server.volume()
        server.define(volumes=[volume])
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert volume.volume in guest.definition
        server.define(definition=guest.definition)
        guest = rig.host.guest(server.id)
        assert guest is not None
        assert volume.volume not in guest.definition
        server.start()
        assert server.probe()["boots"] == 1

    def test_volumes_are_connected_and_disconnected_any_number_of_times(self, rig: Rig, server: Server) -> None:
        volume = server.volume()
        for _ in range(2):
            rig.host.connect_volume(server.id, volume)
            assert (server.id, volume.volume) in set(rig.reopen().connections())
        assert (server.id, volume.volume) not in set(rig.peer.connections())
        for _ in range(2):
            rig.host.disconnect_volume(server.id, volume.volume)
            assert (server.id, volume.volume) not in set(rig.host.connections())

    def test_a_volume_that_cannot_be_reached_is_the_hosts_fault(self, rig: Rig, server: Server) -> None:
        volume = server.volume()
        Path(volume.connection["data"]["path"]).unlink()
        with pytest.raises(DestinationFault, match=volume.volume):
            rig.host.connect_volume(server.id, volume)
        strange = Volume(
            volume=volume.volume, device="", boot=False, connection={"driver_volume_type": "iscsi", "data": {}}
        )
        with pytest.raises(DestinationFault, match="iscsi"):
            rig.host.connect_volume(server.id, strange)
        assert (server.id, volume.volume) not in set(rig.host.connections())

    def test_a_volume_outside_the_volumes_directory_is_refused(self, rig: Rig, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "outside"
        rig.make_volume(path)
        link = rig.volumes / f"volume-{uuid.uuid4()}"
        link.symlink_to(path)
        connection = {"driver_volume_type": "local", "data": {"path": str(link)}}
        with pytest.raises(DestinationFault, match="beneath"):
            rig.host.connect_volume(server.id, Volume(volume="v", device="", boot=False, connection=connection))
        assert (server.id, "v") not in set(rig.host.connections())

    def test_ports_are_plugged_and_unplugged_any_number_of_times(self, rig: Rig, server: Server) -> None:
        port = Port(port=str(uuid.uuid4()), mac="fa:16:3e:00:00:02")
        for _ in range(2):
            rig.host.plug(server.id, port)
            assert (server.id, port.port) in set(rig.host.plugged())
        for _ in range(2):
            rig.host.unplug(server.id, port.port)
            assert (server.id, port.port) not in set(rig.host.plugged())

    def test_no_secret_of_a_connection_is_kept(self, rig: Rig, server: Server) -> None:
        volume = server.volume()
        volume.connection["data"]["auth_password"] = "canary-4711"
        rig.host.connect_volume(server.id, volume)
        server.define(volumes=[volume])
        kept = [path for path in rig.host.root.rglob("*") if path.is_file() and path != server.disk]
        assert [path for path in kept if b"canary-4711" in path.read_bytes()] == []

    def test_the_connector_names_the_host(self, rig: Rig) -> None:
        assert rig.host.connector()["host"] == rig.host.host
        assert rig.host.connector() != rig.peer.connector()
        assert set(rig.host.connector()) == {"host", "ip", "initiator"}

    def test_a_disk_grows_any_number_of_times_and_never_shrinks(self, rig: Rig, server: Server) -> None:
        disk_format = rig.host.disk_format
        before = rig.host.disk_info(server.disk, disk_format)
        assert before.virtual_size < GROWN
        for _ in range(2):
            rig.host.grow_disk(server.disk, disk_format, GROWN)
            grown = rig.host.disk_info(server.disk, disk_format)
            assert (grown.name, grown.format, grown.virtual_size) == ("disk", disk_format, GROWN)
        with pytest.raises(StepError, match="shrink"):
            rig.host.grow_disk(server.disk, disk_format, before.virtual_size)
        assert rig.host.disk_info(server.disk, disk_format) == grown
        server.start()
        assert server.probe()["boots"] == 1

    def test_a_running_guests_disk_does_not_grow(self, rig: Rig, server: Server) -> None:
        server.start()
        with pytest.raises(StepError):
            rig.host.grow_disk(server.disk, rig.host.disk_format, GROWN)
        assert rig.host.disk_info(server.disk, rig.host.disk_format).virtual_size < GROWN

    def test_a_new_disk_is_blank_and_takes_the_place_of_the_old(self, rig: Rig, server: Server) -> None:
        path = server.directory / "disk.swap"
        for size in (16 << 20, 8 << 20):
            rig.host.create_disk(path, size=size, kind="swap")
            made = rig.host.disk_info(path, rig.host.disk_format)
            assert (made.name, made.virtual_size, made.backing) == ("disk.swap", size, "")
            assert made.allocated < 1 << 20
        assert sorted(file.name for file in server.directory.iterdir()) == ["disk", "disk.swap"]

    def test_a_host_can_be_closed_and_used_again(self, rig: Rig, server: Server) -> None:
        server.start()
        rig.host.close()
        assert server.probe()["boots"] == 1
