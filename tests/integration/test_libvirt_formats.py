"""Real guests on raw disks and with config drives, and what a source may not say of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import etree
from proofs import guest_check
from support.labs.disked import qemu
from support.labs.operations import Stage, faults_cleared, stage

from droveway.lab import daemons, servers
from droveway.workers.directories import Directories

CLOUD = """
hypervisor: libvirt
options: {max_attempts: 1}
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 32, root_gb: 1}
  large: {vcpus: 2, memory_mb: 48, root_gb: 2, swap_mb: 8}
images: {base: {size_mb: 16}}
servers:
  web: {flavor: small, host: host1, image: base, state: stopped}
  trap: {flavor: small, host: host1, image: base, state: stopped}
  odd: {flavor: small, host: host1, image: base}
"""
DRIVE = b"\0" * 32768 + b"\1CD001\1\0" + bytes(32768)
CDROM = """<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='{0}'/>
  <target dev='hdc' bus='ide'/><readonly/></disk>"""


@pytest.fixture(scope="module", name="built")
def fixture_built(libvirt_folder: Path) -> Iterator[Stage]:
    with stage(libvirt_folder / "formats", CLOUD) as made:
        for name in ("web", "trap"):
            make_raw(made, name)
        made.cli("lab", "server", "start", "web")
        guest_check.stamp(made.lab, "web")
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    with faults_cleared(built), built.running():
        yield built


def make_raw(lab: Stage, name: str) -> None:
    """Give the server a raw root disk and a config drive, as Nova has them with images_type=raw."""
    server, host = lab.id_of(name), lab.lab.hypervisor("host1")
    folder = lab.directory("host1", name)
    disk, drive = folder / "disk", folder / "disk.config"
    qemu("convert", "-f", "qcow2", "-O", "raw", disk, folder / "raw")
    (folder / "raw").rename(disk)
    drive.write_bytes(DRIVE)
    Directories(host.instances).write_formats(server, server, {"disk": "raw"})
    guest = host.guest(server)
    assert guest is not None
    text = guest.definition.replace("</devices>", CDROM.format(drive) + "</devices>")
    formats = {"disk": "raw", "disk.config": "raw"}
    host.define(
        server,
        text,
        vcpus=None,
        memory_mb=None,
        disks=[disk, drive],
        formats=formats,
        volumes=[],
        ports=[],
        mark=None,
    )


def disks(lab: Stage, host: str, name: str) -> dict[str, tuple[str, str]]:
    """Kind and format of each disk in the server's definition, by its file."""
    guest = lab.lab.hypervisor(host).guest(lab.id_of(name))
    assert guest is not None
    found = etree.fromstring(guest.definition).findall("devices/disk")
    return {disk.find("source").get("file"): (disk.get("device"), disk.find("driver").get("type")) for disk in found}  # type: ignore[union-attr, misc]


def opened(lab: Stage, host: str, name: str) -> set[Path]:
    """The files that the server's QEMU has open."""
    folder = daemons.host(lab.lab.layout, lab.lab.identity, host).dir / "run/libvirt/qemu/run"
    guest = lab.lab.hypervisor(host).guest(lab.id_of(name))
    assert guest is not None
    pid = int((folder / f"{guest.name}.pid").read_text())
    return {link.resolve() for link in Path(f"/proc/{pid}/fd").iterdir()}


def test_a_raw_server_with_a_config_drive_is_moved_and_grown(lab: Stage) -> None:
    """S1, S18: the guest that was branded, on a raw disk of the new size, with its own drive on this host."""
    before = lab.directory("host1", "web")
    assert disks(lab, "host1", "web") == {
        str(before / "disk"): ("disk", "raw"),
        str(before / "disk.config"): ("cdrom", "raw"),
    }
    lab.cli("server", "resize", "web", "--flavor", "large")
    told = guest_check.report(lab.lab, "web")
    assert (told.host, told.status.mark, told.status.disk_sectors) == ("host2", "web", 2 << 21)
    assert told.checksum == guest_check.expected_checksum(told.server.id)
    there = lab.directory("host2", "web")
    assert disks(lab, "host2", "web") == {
        str(there / "disk"): ("disk", "raw"),
        str(there / "disk.config"): ("cdrom", "raw"),
        str(there / "disk.swap"): ("disk", "qcow2"),
    }
    assert (there / "disk.config").read_bytes() == DRIVE
    assert {there / "disk", there / "disk.config", there / "disk.swap"} <= opened(lab, "host2", "web")
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    told = guest_check.report(lab.lab, "web")
    assert (told.host, told.status.mark, told.status.disk_sectors) == ("host1", "web", 1 << 21)
    assert disks(lab, "host1", "web") == {
        str(before / "disk"): ("disk", "raw"),
        str(before / "disk.config"): ("cdrom", "raw"),
    }
    lab.assert_balanced()


def test_qemu_opens_a_raw_disk_as_raw_whatever_its_guest_wrote_into_it(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: a header that names a file of the destination's; nobody opens that, and nobody gets a right to it."""
    secret = lab.root.parent / "secret"
    secret.write_bytes(b"s" * 4096)
    secret.chmod(0o600)
    trap = lab.root.parent / "trap"
    qemu("create", "-f", "qcow2", "-F", "raw", "-b", secret, trap, 1 << 30)
    header = trap.read_bytes()
    with (lab.directory("host1", "trap") / "disk").open("r+b") as file:
        file.write(header)
    lab.cli("server", "migrate", "trap", "--confirm", "auto")
    there = lab.directory("host2", "trap") / "disk"
    assert there.stat().st_size == 1 << 30
    lab.cli("lab", "server", "start", "trap")
    assert disks(lab, "host2", "trap")[str(there)] == ("disk", "raw")
    found = opened(lab, "host2", "trap")
    assert there in found
    assert secret not in found
    assert secret.stat().st_mode & 0o777 == 0o600
    with there.open("rb") as file:
        assert file.read(len(header)) == header
    # Its disk boots nothing, so that nothing in it would heed a shutdown.
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.0)
    lab.cli("lab", "server", "stop", "trap")
    lab.assert_balanced()


def test_a_guest_with_a_medium_of_its_hosts_is_refused_and_runs_on(lab: Stage) -> None:
    """S2: one sentence names the host and the element; the guest was never touched."""
    server, host = lab.id_of("odd"), lab.lab.hypervisor("host1")
    guest = host.guest(server)
    assert guest is not None
    image = lab.root.parent / "host.iso"
    image.write_bytes(DRIVE)
    lab.cli("lab", "server", "stop", "odd")
    uri = daemons.host(lab.lab.layout, lab.lab.identity, "host1").uri
    define = "import libvirt, sys; libvirt.open(sys.argv[1]).defineXML(sys.stdin.read())"
    for text in (guest.definition.replace("</devices>", CDROM.format(image) + "</devices>"), guest.definition):
        subprocess.run([sys.executable, "-c", define, uri], input=text, text=True, check=True)
        if text != guest.definition:
            lab.cli("lab", "server", "start", "odd")
            starts = lab.starts("odd")
            said = lab.cli("server", "migrate", "odd", code=3)
            assert (
                "the guest's definition on host1 cannot be moved: its <devices/disk> is a cdrom of the host's" in said
            )
            assert (lab.move("odd").state, lab.move("odd").error_code) == ("failed", "definition")
            assert "stop_guest" not in {row.step for row in lab.history(lab.move("odd").id)}
            assert lab.starts("odd") == starts
            lab.cli("lab", "server", "stop", "odd")
    lab.cli("lab", "server", "start", "odd")
    lab.assert_balanced()
