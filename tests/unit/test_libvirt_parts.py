"""The parts of the libvirt hypervisor that need no libvirt: domain XML, the start count, error codes, packages."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from lxml import etree

from droveway.errors import Refused, StepError
from droveway.lab import libvirt_hosts
from droveway.lab.boot_guests import BootGuests
from droveway.workers.hypervisors.attached import LocalVolume
from droveway.workers.hypervisors.base import Mark, Port
from droveway.workers.hypervisors.libvirt import errors as libvirt_errors
from droveway.workers.hypervisors.libvirt import xml as libvirt_xml
from droveway.workers.hypervisors.libvirt.connection import within
from droveway.workers.hypervisors.libvirt.starts import Power, Starts
from droveway.workers.hypervisors.libvirt.xml import Domain

SERVER = "11111111-1111-1111-1111-111111111111"
# As a source host tells of its guest: sizes in other units, PCI addresses, and things of that host.
SOURCE = f"""<domain type='qemu'>
  <name>instance-1</name><uuid>{SERVER}</uuid>
  <metadata><other xmlns='urn:other'/><d:guest xmlns:d='urn:droveway:move' move='old' epoch='3'/></metadata>
  <memory unit='MiB'>512</memory><currentMemory unit='MiB'>256</currentMemory>
  <vcpu placement='static' current='1'>4</vcpu>
  <vcpus><vcpu id='0' enabled='yes'/></vcpus>
  <cputune><vcpupin vcpu='0' cpuset='3'/></cputune>
  <numatune><memory mode='strict' nodeset='1'/></numatune>
  <os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os>
  <cpu mode='custom' match='exact' check='none'><model>qemu64</model></cpu>
  <devices>
    <emulator>/opt/source/qemu</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='none'/><source file='/source/disk'/><backingStore/>
      <target dev='vda' bus='virtio'/><boot order='1'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x05' function='0x0'/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='/source/vol'/><target dev='vdb' bus='virtio'/>
      <serial>volume-1</serial>
    </disk>
    <disk type='file' device='cdrom'><target dev='hda' bus='ide'/></disk>
    <serial type='unix'>
      <source mode='bind' path='/source/con'/><log file='/source/log' append='on'/><target port='0'/>
    </serial>
    <console type='unix'><source mode='bind' path='/source/con'/></console>
  </devices>
</domain>"""


FORMATS = {"disk": "qcow2", "disk.eph0": "qcow2", "disk.swap": "qcow2"}


@pytest.fixture
def domain() -> Domain:
    return Domain(SOURCE)


def attribute(domain: Domain, path: str, name: str) -> str:
    return str(etree.fromstring(domain.text()).find(path).get(name))  # type: ignore[union-attr]


def test_a_domain_is_read(domain: Domain) -> None:
    assert (domain.server, domain.name, domain.machine) == (SERVER, "instance-1", "pc-i440fx-7.2")
    assert (domain.vcpus, domain.memory_mb, domain.mark) == (4, 512, Mark(move="old", epoch=3))
    assert domain.sources == [("vda", "/source/disk", ""), ("vdb", "/source/vol", "volume-1")]


@pytest.mark.parametrize(
    ("unit", "number", "mib"), [("KiB", 65536, 64), ("b", 64 << 20, 64), ("GiB", 2, 2048), ("M", 64, 64)]
)
def test_memory_is_read_in_every_unit(unit: str, number: int, mib: int) -> None:
    text = SOURCE.replace("<memory unit='MiB'>512", f"<memory unit='{unit}'>{number}")
    assert Domain(text).memory_mb == mib


def test_new_sizes_take_the_place_of_all_that_told_the_old(domain: Domain) -> None:
    domain.set_sizes(2, 1024)
    text = domain.text()
    assert (domain.vcpus, domain.memory_mb) == (2, 1024)
    assert "currentMemory" not in text
    assert "current=" not in text
    assert "<vcpus>" not in text


def test_sizes_that_are_not_given_stay(domain: Domain) -> None:
    domain.set_sizes(None, None)
    assert (domain.vcpus, domain.memory_mb) == (4, 512)
    assert "currentMemory" in domain.text()


def test_nothing_of_the_source_host_is_left(domain: Domain) -> None:
    domain.set_disks([Path("/here/disk")], FORMATS, [])
    domain.adapt_to_host(Path("/here"))
    text = domain.text()
    assert "/source" not in text
    for gone in ("cputune", "numatune", "emulator"):
        assert gone not in text


def test_a_disk_that_stays_keeps_its_place_and_options(domain: Domain) -> None:
    domain.set_disks([Path("/here/disk")], FORMATS, [])
    assert domain.sources == [("vda", "/here/disk", "")]
    assert attribute(domain, "devices/disk[@device='disk']/address", "slot") == "0x05"
    assert attribute(domain, "devices/disk[@device='disk']/driver", "cache") == "none"
    assert "backingStore" not in domain.text()
    assert "cdrom" in domain.text()


def test_new_disks_and_volumes_get_free_names(domain: Domain) -> None:
    volumes = [LocalVolume(volume="volume-2", device="/dev/vdb", boot=False, path="/v/2")]
    domain.set_disks([Path("/here/disk"), Path("/here/disk.eph0"), Path("/here/disk.swap")], FORMATS, volumes)
    assert domain.sources == [
        ("vda", "/here/disk", ""),
        ("vdb", "/v/2", "volume-2"),
        ("vdc", "/here/disk.eph0", ""),
        ("vdd", "/here/disk.swap", ""),
    ]


def test_the_guest_boots_from_its_boot_volume_else_from_its_first_disk(domain: Domain) -> None:
    volume = LocalVolume(volume="volume-1", device="/dev/vda", boot=True, path="/v/1")
    domain.set_disks([Path("/here/disk")], FORMATS, [volume])
    boots = "devices/disk/boot/.."
    assert [disk.findtext("serial") for disk in etree.fromstring(domain.text()).findall(boots)] == ["volume-1"]
    domain.set_disks([Path("/here/disk"), Path("/here/disk.eph0")], FORMATS, [])
    (disk,) = etree.fromstring(domain.text()).findall(boots)
    assert disk.find("source").get("file") == "/here/disk"  # type: ignore[union-attr]


def test_mark_and_ports_are_replaced_and_other_metadata_is_kept(domain: Domain) -> None:
    ports = [Port(port="p1", mac="fa:16:3e:00:00:01")]
    domain.set_metadata(Mark(move="new", epoch=9), ports)
    again = Domain(domain.text())
    assert (again.mark, again.ports) == (Mark(move="new", epoch=9), ports)
    assert "urn:other" in domain.text()
    domain.set_metadata(None, [])
    assert (domain.mark, domain.ports) == (None, [])


def test_two_texts_of_one_guest_have_the_same_facts(domain: Domain) -> None:
    other = Domain(SOURCE.replace("<memory unit='MiB'>512", "<memory unit='KiB'>524288"))
    assert domain.facts() == other.facts()
    other.set_sizes(None, 513)
    assert domain.facts() != other.facts()


@pytest.mark.parametrize(
    "text", ["", "text", "<network/>", "<domain/>", "<!DOCTYPE d [<!ENTITY x 'y'>]><domain>&x;</domain>"]
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it is no"):
        Domain(text)


def test_capabilities_tell_the_fixed_machine_type_and_the_most_vcpus() -> None:
    text = "<domainCapabilities><machine>pc-i440fx-7.2</machine><vcpu max='255'/></domainCapabilities>"
    assert libvirt_xml.machine(text) == "pc-i440fx-7.2"
    assert libvirt_xml.most_vcpus(text) == 255


RUNS, OFF, FAILED = (
    Power(running=True, failed=False),
    Power(running=False, failed=False),
    Power(running=False, failed=True),
)


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [(OFF, RUNS, 1), (OFF, OFF, 1), (OFF, FAILED, 0), (OFF, None, 1), (FAILED, FAILED, 1), (FAILED, RUNS, 1)],
)
def test_an_unanswered_start_counts_unless_it_is_proved_to_have_failed(
    tmp_path: Path, before: Power, after: Power | None, counted: int
) -> None:
    starts = Starts(tmp_path, SERVER)
    starts.announce(before)
    assert Starts(tmp_path, SERVER).counted(after) == counted
    assert Starts(tmp_path, SERVER).count_start(after) == counted
    assert Starts(tmp_path, SERVER).counted(FAILED) == counted


def test_a_start_that_libvirt_refused_does_not_count(tmp_path: Path) -> None:
    starts = Starts(tmp_path, SERVER)
    starts.announce(FAILED)
    assert starts.count_start(FAILED, failed=True) == 0
    starts.announce(FAILED)
    assert starts.count_start(RUNS) == 1
    starts.announce(OFF)
    assert starts.count_start(RUNS) == 2
    starts.forget()
    starts.forget()
    assert starts.counted(RUNS) == 0


def test_one_starter_at_a_time(tmp_path: Path) -> None:
    with (
        Starts(tmp_path, SERVER).held(1),
        pytest.raises(StepError, match=SERVER),
        Starts(tmp_path, SERVER).held(0.05),
    ):
        pass
    with Starts(tmp_path, SERVER).held(0):
        assert Starts(tmp_path, SERVER).counted(None) == 0


class FakeError:
    def __init__(self, code: int, domain: int) -> None:
        self.code, self.domain = code, domain

    def get_error_code(self) -> int:
        return self.code

    def get_error_domain(self) -> int:
        return self.domain


@pytest.mark.parametrize(
    ("code", "domain", "lost"),
    [(1, 7, True), (38, 13, True), (39, 7, True), (1, 10, False), (38, 18, False), (42, 10, False), (55, 20, False)],
)
def test_a_lost_call_is_told_from_an_answer(code: int, domain: int, lost: bool) -> None:
    assert libvirt_errors.is_lost(FakeError(code, domain)) is lost


def test_a_call_without_a_limit_of_its_own_is_given_up() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        within(0.05, threading.Event().wait)


def test_a_console_directory_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="107"):
        BootGuests("host1", tmp_path, uri="qemu:///system", run_dir=tmp_path / ("x" * 80))


def test_every_missing_package_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    monkeypatch.setattr(libvirt_hosts.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(libvirt_hosts, "INCLUDE", tmp_path)
    with pytest.raises(Refused, match="apt-get install") as caught:
        libvirt_hosts.require_packages()
    needed = {"libvirt-daemon", "qemu-system-x86", "qemu-utils", "binutils", "gcc", "libvirt-dev", "pkg-config"}
    assert {*needed, "python3-dev"} == set(str(caught.value).partition("install ")[2].split())


def test_only_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: "/usr/bin/there")
    monkeypatch.setattr(libvirt_hosts.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(libvirt_hosts, "INCLUDE", tmp_path)
    (tmp_path / "libvirt").mkdir()
    (tmp_path / "libvirt" / "libvirt.h").touch()
    assert libvirt_hosts.missing_packages() == ["python3-dev"]
    (tmp_path / "python3.11").mkdir()
    (tmp_path / "python3.11" / "Python.h").touch()
    assert libvirt_hosts.missing_packages() == []
    with pytest.raises(Refused, match=r"pip install 'droveway\[libvirt\]'"):
        libvirt_hosts.require_packages()
