"""Definitions that another host told: what gets into this host's own is written down here a second time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from lxml import etree

from droveway.errors import DestinationFault, StepError
from droveway.workers.hypervisors.attached import LocalVolume
from droveway.workers.hypervisors.base import Mark, Port
from droveway.workers.hypervisors.libvirt.hypervisor import Libvirt
from droveway.workers.hypervisors.libvirt.xml import Domain

SERVER = "11111111-1111-1111-1111-111111111111"
HERE = Path("/here")
OURS = "urn:droveway:move"
FORMATS = {"disk": "raw", "disk.eph0": "qcow2", "disk.config": "raw"}

# A guest as Nova defines it, with what a host has of its own.
NOVA = f"""<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>instance-00000001</name><uuid>{SERVER}</uuid>
  <metadata><nova:instance xmlns:nova='urn:nova'><nova:name>web</nova:name>
  </nova:instance></metadata>
  <memory unit='KiB'>524288</memory><currentMemory unit='KiB'>524288</currentMemory>
  <memoryBacking><hugepages/></memoryBacking>
  <vcpu placement='static' cpuset='1-3'>2</vcpu>
  <cputune><shares>1024</shares></cputune>
  <sysinfo type='smbios'><system><entry name='manufacturer'>OpenStack Foundation</entry>
    <entry name='uuid'>{SERVER}</entry></system></sysinfo>
  <os firmware='efi'><type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>
    <nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>/var/lib/libvirt/qemu/nvram/x.fd</nvram>
    <boot dev='hd'/><smbios mode='sysinfo'/></os>
  <features><acpi/><apic/><vmcoreinfo state='on'/><hyperv mode='custom'><spinlocks state='on' retries='8191'/></hyperv>
  </features>
  <cpu mode='custom' match='exact' check='none'><model fallback='forbid'>Haswell</model>
    <topology sockets='2' dies='1' cores='1' threads='1'/><feature policy='require' name='pcid'/></cpu>
  <clock offset='utc'><timer name='pit' tickpolicy='delay'/><timer name='hpet' present='no'/></clock>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source file='/nova/{SERVER}/disk'/>
      <backingStore type='file'><format type='raw'/><source file='/nova/_base/f'/></backingStore>
      <target dev='vda' bus='virtio'/><alias name='virtio-disk0'/><address type='pci' domain='0x0000' bus='0x03'
      slot='0x00' function='0x0'/></disk>
    <disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='/nova/{SERVER}/disk.config'/>
      <target dev='sda' bus='sata'/><readonly/><address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>
    <disk type='block' device='disk'><driver name='qemu' type='raw' io='native'/><source dev='/dev/sdc'/>
      <target dev='vdb' bus='virtio'/><serial>volume-1</serial><shareable/></disk>
    <controller type='usb' index='0' model='none'/><controller type='pci' index='0' model='pcie-root'/>
    <serial type='pty'><log file='/nova/console.log' append='off'/><target type='isa-serial' port='0'>
      <model name='isa-serial'/></target></serial>
    <console type='pty'><target type='serial' port='0'/></console>
    <channel type='unix'><source mode='bind' path='/run/agent.sock'/>
      <target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <input type='tablet' bus='usb'/><graphics type='vnc' port='-1' autoport='yes' listen='0.0.0.0'
      passwd='secret'><listen type='address' address='0.0.0.0'/></graphics>
    <video><model type='virtio' heads='1' primary='yes'/></video>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='virtio'><stats period='10'/></memballoon>
  </devices>
</domain>"""

_NAMES = """
domain name uuid genid metadata memory currentMemory vcpu vcpus os type firmware feature loader nvram boot
bootmenu smbios bios sysinfo system baseBoard chassis oemStrings entry features acpi apic pae hap viridian
privnet pvspinlock pmu vmport gic ioapic hpt vmcoreinfo htm nested-hv msrs ccf-assist cfpc sbbc ibs smm tseg
hyperv relaxed vapic spinlocks vpindex runtime synic stimer direct reset vendor_id frequencies reenlightenment
tlbflush ipi evmcs avic kvm hidden hint-dedicated poll-control pv-ipi tcg tb-cache cpu model vendor topology
cache maxphysaddr numa cell distances sibling clock timer catchup on_poweroff on_reboot on_crash pm
suspend-to-mem suspend-to-disk devices disk driver target blockio iotune serial wwn address shareable source
controller master protocol log channel input graphics video memballoon stats rng rate backend watchdog panic
iommu audio size_iops_sec console
"""
ELEMENTS = frozenset(_NAMES.split()) | {
    f"{kind}_{what}_sec{burst}"
    for kind in ("total", "read", "write")
    for what in ("bytes", "iops")
    for burst in ("", "_max", "_max_length")
}
"""No other name may be in what is defined."""

PATHS = re.compile(
    r"/here/[a-z0-9./]*|/v/1|/dev/u?random|"
    r"/usr/share/(?:OVMF|AAVMF|edk2|edk2-ovmf|ovmf|qemu|qemu-efi-aarch64|seabios)/[^.].*"
)
"""No other path may be: this host's own, and what only its packages write."""


def defined(text: str) -> Any:
    """What this host would define, parsed by another parser."""
    domain = Domain.taken_over(text)
    domain.set_sizes(2, 256)
    volumes = [LocalVolume(volume="volume-1", device="/dev/vdb", boot=False, path="/v/1")]
    domain.set_disks([HERE / name for name in FORMATS], FORMATS, volumes)
    domain.set_metadata(Mark(move="m", epoch=1), [Port(port="p", mac="fa:16:3e:00:00:01")])
    domain.adapt_to_host(HERE)
    return etree.fromstring(domain.text().encode())


def texts(root: Any) -> Iterator[tuple[str, str]]:
    for element in root.iter(etree.Element):
        if element.text and element.text.strip():
            yield str(element.tag), element.text.strip()
        for name, value in element.attrib.items():
            yield f"{element.tag}@{name}", value


def assert_harmless(root: Any) -> None:
    """Names, namespaces, paths and what QEMU would be told to open: all are this host's."""
    for element in root.iter():
        assert isinstance(element.tag, str), "a comment or an instruction"
        name = etree.QName(element)
        inside = element.getparent() is not None and str(element.getparent().tag).endswith(("metadata", "}guest"))
        assert name.namespace == (OURS if inside else None), element.tag
        assert inside or name.localname in ELEMENTS, element.tag
        assert set(element.nsmap.values()) <= {OURS}
    for where, text in texts(root):
        if "/" in text and not where.startswith("clock@"):
            assert PATHS.fullmatch(text), (where, text)
            assert ".." not in text, (where, text)
        assert text.isprintable() or where == "entry", (where, text)
    for disk in root.findall("devices/disk"):
        assert disk.get("device") in ("disk", "cdrom")
        source = disk.find("source")
        if source is None:
            continue
        assert set(source.attrib) == {"file"}
        assert source.get("file") in {str(HERE / name) for name in FORMATS} | {"/v/1"}
        assert disk.find("driver").get("type") == FORMATS.get(source.get("file").rpartition("/")[2], "raw")
    for line in [*root.findall("devices/serial"), *root.findall("devices/console")]:
        assert line.get("type") == "pty"
        assert line.find("source") is None
        assert all(log.get("file") == "/here/console.log" for log in line.findall("log"))
    for channel in root.findall("devices/channel"):
        assert channel.get("type") in ("unix", "spicevmc")
        assert channel.find("source") is None
    assert all(set(each.attrib) <= {"type", "keymap"} for each in root.findall("devices/graphics"))


def test_a_guest_of_novas_is_taken_over_without_what_is_its_hosts() -> None:
    root = defined(NOVA)
    assert_harmless(root)
    words = etree.tostring(root, encoding="unicode")
    for gone in (
        "hugepages",
        "cpuset",
        "cputune",
        "nova:",
        "/nova/",
        "/var/lib",
        "/run/",
        "secret",
        "0.0.0.0",
        "alias",
    ):
        assert gone not in words
    for kept in ("Haswell", "pcid", "hpet", "OpenStack Foundation", "OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd",
                 "org.qemu.guest_agent.0", "pcie-root", "/dev/urandom", 'retries="8191"', "console.log"):  # fmt: skip
        assert kept in words, kept
    config = root.find("devices/disk[@device='cdrom']")
    assert (config.find("source").get("file"), config.find("driver").get("type")) == ("/here/disk.config", "raw")
    assert config.find("target").get("bus") == "sata"
    assert root.find("devices/disk/address").get("bus") == "0x03"
    assert [disk.find("driver").get("type") for disk in root.findall("devices/disk[@device='disk']")] == [
        "raw", "raw", "qcow2",
    ]  # fmt: skip
    assert [disk.findtext("serial") for disk in root.findall("devices/disk/shareable/..")] == ["volume-1"]


PLANTS = {
    "devices/filesystem": "<filesystem type='mount'><source dir='/'/><target dir='x'/></filesystem>",
    "devices/hostdev": "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>",
    "devices/interface": "<interface type='bridge'><source bridge='br-mgmt'/></interface>",
    "devices/tpm": "<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>",
    "devices/shmem": "<shmem name='x'><model type='ivshmem-plain'/></shmem>",
    "devices/redirdev": "<redirdev bus='usb' type='tcp'><source mode='connect' host='h' service='1'/></redirdev>",
    "devices/parallel": "<parallel type='file'><source path='/etc/x'/></parallel>",
    "devices/vsock": "<vsock model='virtio'><cid auto='yes'/></vsock>",
    "devices/memory": "<memory model='nvdimm'><source><path>/dev/sda</path></source></memory>",
    "devices/nvram": "<nvram><address type='spapr-vio'/></nvram>",
    "devices/bogus": "<bogus/>",
    "cdrom": "<disk type='file' device='cdrom'><source file='/etc/shadow'/><target dev='hda' bus='ide'/></disk>",
    "devices/disk@device": "<disk type='file' device='floppy'><source file='/f'/><target dev='fda'/></disk>",
    "devices/disk/source": "<disk type='network'><source protocol='rbd'><auth username='u'/></source></disk>",
    "devices/disk/encryption": "<disk device='disk'><encryption format='luks'/></disk>",
    "devices/channel@type": "<channel type='file'><source path='/etc/x'/><target type='virtio' name='a'/></channel>",
    "devices/channel> has no type": "<channel><target type='virtio' name='org.qemu.guest_agent.0'/></channel>",
    "devices/disk> has no device": "<disk><target dev='vdz' bus='virtio'/></disk>",
    "devices/channel/target@name": "<channel type='unix'><target type='virtio' name='a'/></channel>",
    "devices/rng/backend": "<rng model='virtio'><backend model='random'>/etc/shadow</backend></rng>",
    "devices/audio@type": "<audio id='1' type='file' path='/etc/x'/>",
    "devices/watchdog@action": "<watchdog model='i6300esb' action='dump'/>",
    "devices/console/target@type": "<console type='pty'><target type='/x'/></console>",
}


@pytest.mark.parametrize("named", PLANTS)
def test_what_cannot_be_left_out_is_refused_by_its_name(named: str) -> None:
    """S2: without it the guest would be another machine, and with it the source would have power over this host."""
    with pytest.raises(ValueError, match=re.escape(named)):
        Domain.taken_over(NOVA.replace("</devices>", f"{PLANTS[named]}</devices>"))


@pytest.mark.parametrize(
    ("named", "old", "new"),
    [
        ("commandline", "<devices>", "<qemu:commandline><qemu:arg value='-x'/></qemu:commandline><devices>"),
        ("os/kernel", "<boot dev='hd'/>", "<kernel>/etc/shadow</kernel>"),
        ("os/initrd", "<boot dev='hd'/>", "<initrd>/etc/shadow</initrd>"),
        ("os/cmdline", "<boot dev='hd'/>", "<cmdline>x</cmdline>"),
        ("os/loader", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/etc/shadow"),
        ("os/loader", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/../../../etc/shadow"),
        ("os/nvram@template", "/usr/share/OVMF/OVMF_VARS_4M.fd", "/etc/shadow"),
        ("launchSecurity", "<devices>", "<launchSecurity type='sev'/><devices>"),
        ("sysinfo@type", "sysinfo type='smbios'", "sysinfo type='fwcfg'"),
        ("on_crash", "<on_crash>destroy", "<on_crash>coredump-destroy"),
        ("name", "instance-00000001", "../../x"),
    ],
)
def test_no_part_of_the_machine_may_name_what_is_the_hosts(named: str, old: str, new: str) -> None:
    with pytest.raises(ValueError, match=named):
        Domain.taken_over(NOVA.replace(old, new))


def test_a_line_into_a_file_of_the_hosts_goes_into_this_hosts_own() -> None:
    """S2: `serial type='file'` is opened by root where libvirt runs as root."""
    evil = "<serial type='file'><source path='/etc/cron.d/x'/><target port='1'/></serial>"
    root = defined(NOVA.replace("</devices>", f"{evil}</devices>"))
    assert_harmless(root)
    assert [line.find("log").get("file") for line in root.findall("devices/serial")] == ["/here/console.log"] * 2


def test_both_hosts_refuse_with_a_sentence(tmp_path: Path) -> None:
    """The source before it is touched; the destination, which believes no source, when it is asked."""
    host = Libvirt("host1", tmp_path, uri="qemu:///session")
    text = NOVA.replace("</devices>", f"{PLANTS['devices/hostdev']}</devices>")
    words = "its <devices/hostdev> is nothing that a move takes along: take it out of the guest first"
    with pytest.raises(StepError) as refused:
        host.require_movable(text)
    assert str(refused.value) == f"the guest's definition on host1 cannot be moved: {words}"
    assert (refused.value.error_code, refused.value.host) == ("definition", "host1")
    for call in (
        lambda: host.check(text, vcpus=1, memory_mb=64),
        lambda: host.define(
            SERVER, text, vcpus=1, memory_mb=64, disks=[], volumes=[], ports=[], mark=Mark(move="m", epoch=1)
        ),
    ):
        with pytest.raises(DestinationFault) as fault:
            call()
        assert str(fault.value) == f"host host1 does not take the definition: {words}"
        assert fault.value.error_code == "definition"
    host.require_movable(NOVA)


NAMES = st.sampled_from(
    [*sorted(ELEMENTS), "filesystem", "hostdev", "interface", "tpm", "shmem", "kernel", "initrd", "commandline", "text",
     "auth", "encryption", "backingStore", "mirror", "listen", "parameter", "bogus", "lease", "secret", "path", "alias",
     "{http://libvirt.org/schemas/domain/qemu/1.0}commandline", "{urn:x}guest", f"{{{OURS}}}guest", f"{{{OURS}}}x"]
)  # fmt: skip
ATTRIBUTES = st.sampled_from(
    ["type", "file", "dev", "path", "name", "device", "model", "mode", "bus", "value", "dir", "socket", "listen",
     "host", "port", "template", "action", "id", "state", "unit", "passwd", "format", "{urn:x}type", "timezone"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["/etc/shadow", "file", "disk", "unix", "virtio", "/usr/share/OVMF/../../etc/x", "yes", "1",
                     "../x", "/dev/urandom", "smbios", "vda", "json:{}", "a\nb", "qcow2"]),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12),
)  # fmt: skip


@st.composite
def planted(draw: Any) -> str:
    """Nova's guest with elements, attributes and texts put in anywhere."""
    root = etree.fromstring(NOVA)
    for _ in range(draw(st.integers(1, 5))):
        places = list(root.iter(etree.Element))
        where = places[draw(st.integers(0, len(places) - 1))]
        kind = draw(st.sampled_from(["element", "attribute", "text", "comment"]))
        try:
            if kind == "element":
                where = etree.SubElement(where, draw(NAMES))
                kind = draw(st.sampled_from(["attribute", "text", "element"]))
            if kind == "attribute":
                where.set(draw(ATTRIBUTES), draw(VALUES))
            elif kind == "text":
                where.text = draw(VALUES)
            elif kind == "comment":
                where.append(etree.Comment("x"))
            else:
                etree.SubElement(where, draw(NAMES)).set(draw(ATTRIBUTES), draw(VALUES))
        except ValueError:
            hypothesis.reject()  # such a text is no XML
    return etree.tostring(root, encoding="unicode")


@hypothesis.settings(max_examples=400, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(planted())
def test_nothing_that_is_not_in_the_list_gets_into_what_is_defined(text: str) -> None:
    """S2: whatever a source tells, it is refused in one sentence, or it is harmless."""
    refusal = ""
    try:
        assert_harmless(defined(text))
    except ValueError as error:
        refusal = str(error)
    hypothesis.event("refused" if refusal else "defined")
    assert refusal.isprintable()
