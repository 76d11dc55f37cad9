"""A hostile disk, whose guest wrote its first bytes, and a hostile definition that a source told of a guest.

Judged by a second reading of the same bytes, and by what a definition that this host makes may name at all.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from lxml import etree
from support.two_faults.stranger_lies import Lies

from droveway.errors import StepError
from droveway.workers.hypervisors import qcow2
from droveway.workers.hypervisors.attached import LocalVolume
from droveway.workers.hypervisors.base import Mark, Port
from droveway.workers.hypervisors.libvirt.xml import Domain

MIB: Final = 1 << 20
SECRET: Final = "shadow"
_DATA_FILE: Final = 0x44415441
_BACKING_FORMAT: Final = 0xE2792ACA

_IMAGES: Final = {
    "plain": ["-f", "qcow2"],
    "old": ["-f", "qcow2", "-o", "compat=0.10"],
    "overlay": ["-f", "qcow2", "-u", "-b", SECRET, "-F", "raw"],
    "apart": ["-f", "qcow2", "-o", f"data_file={SECRET}"],
    "apart-raw": ["-f", "qcow2", "-o", f"data_file={SECRET},data_file_raw=on"],
    "vmdk": ["-f", "vmdk"],
    "vdi": ["-f", "vdi"],
}
"""What a disk may hold, as `qemu-img create` has it."""


@functools.cache
def _image(kind: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="droveway-image-") as folder:
        Path(folder, SECRET).write_bytes(bytes(MIB))
        subprocess.run(["qemu-img", "create", "-q", *_IMAGES[kind], "disk", str(MIB)], check=True, cwd=folder)
        return Path(folder, "disk").read_bytes()[: 1 << 20]


def header(folder: Path, lies: Lies) -> str:
    """A disk's first bytes, or what else has its name: what is believed of it is what is there, and leads nowhere."""
    (folder / SECRET).write_bytes(b"root:*:" * 1000)
    path, known = folder / "disk", lies.choice(("raw", "qcow2", "qcow2", "qcow2"))
    turn = lies.random()
    if turn < 0.15:
        return _refused(folder, _in_its_place(folder, path, lies), lies.choice(("raw", "qcow2")))
    if turn < 0.25:
        other = lies.choice(("vmdk", "vdi"))
        path.write_bytes(_image(other))
        return _refused(folder, path, lies.choice((other, other, "luks", "json:{}", "", "QCOW2", lies.word())))
    path.write_bytes(_bent(_image(lies.choice(sorted(_IMAGES))), lies))
    data = path.read_bytes()
    try:
        told = qcow2.info(path, known)
    except StepError:
        return _untouched(folder)
    if known == "raw":
        # QEMU counts in sectors.
        wrong = told.virtual_size != -(-len(data) // 512) * 512 or told.backing or told.backing_format
        return f"a raw disk of {len(data)} bytes is told as {told}" if wrong else _untouched(folder)
    size, backing, apart = _read(data)
    if apart:
        return "its data lies in another file, and that is taken"
    if told.virtual_size != size // 512 * 512 or Path(told.backing).name != Path(backing).name:
        return f"it has {size} bytes and rests on {backing[:80]!r}, and is told as {told}"
    return _untouched(folder)


def _in_its_place(folder: Path, path: Path, lies: Lies) -> Path:
    """What is no plain file, under the disk's name."""
    kind = lies.choice(("link", "link", "fifo", "directory", "dangling", "socket"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    else:
        path.symlink_to(folder / (SECRET if kind == "link" else "nowhere"))
    return path


def _refused(folder: Path, path: Path, known: str) -> str:
    try:
        told = qcow2.info(path, known)
    except StepError:
        return _untouched(folder)
    return f"{path.name}, recorded as {known[:20]!r}, is told as {told}"


def _untouched(folder: Path) -> str:
    return "" if (folder / SECRET).read_bytes() == b"root:*:" * 1000 else f"{SECRET} was written"


def _bent(data: bytes, lies: Lies) -> bytes:
    """The image with other fields, extensions or bytes in its header; perhaps none, perhaps cut."""
    bent = bytearray(data)
    for _ in range(lies.randrange(4)):
        turn = lies.random()
        if turn < 0.4:
            width, at = lies.choice(((4, 4), (8, 8), (4, 16), (4, 20), (8, 24), (4, 32), (8, 72), (8, 80), (4, 100)))
            value = lies.choice((0, 1, 2, 3, 4, 9, 21, 22, 104, 112, 1023, 1024, 65536, 2**31, lies.getrandbits(63)))
            bent[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
        elif turn < 0.7:
            kind = lies.choice((_DATA_FILE, _BACKING_FORMAT, 0x6803F857, lies.getrandbits(32)))
            text = lies.choice((SECRET, "raw", "json:{}", "nbd://h/x", "/etc/shadow", "x" * 900)).encode()
            added = struct.pack(">II", kind, lies.choice((len(text), len(text), 2**31))) + text
            at = lies.choice((72, 104, 112))
            bent[at : at + len(added)] = added
        elif turn < 0.9:
            at = lies.randrange(256)
            bent[at : at + 1] = lies.randbytes(1)
        else:
            del bent[lies.choice((0, 3, 50, 72, 104, 4096)) :]
    return bytes(bent)


def _read(data: bytes) -> tuple[int, str, bool]:
    """Size, backing file and whether the data lies elsewhere, by the words of the format's own specification."""
    version, backing_at, backing_size = struct.unpack_from(">IQI", data, 4)
    (size,) = struct.unpack_from(">Q", data, 24)
    features, length = (0, 72) if version == 2 else (*struct.unpack_from(">Q", data, 72), 0)
    length = length or struct.unpack_from(">I", data, 100)[0]
    apart, end = bool(features & 4), backing_at or len(data)
    while length + 8 <= end:
        kind, size_of = struct.unpack_from(">II", data, length)
        if kind == 0:
            break
        apart = apart or kind == _DATA_FILE
        length += 8 + (size_of + 7) // 8 * 8
    return size, data[backing_at : backing_at + backing_size].decode(errors="replace") if backing_at else "", apart


_SERVER: Final = "11111111-1111-1111-1111-111111111111"
_HERE: Final = Path("/here")
_OURS: Final = "urn:droveway:move"
_FORMATS: Final = {"disk": "raw", "disk.eph0": "qcow2"}
_GUEST: Final = f"""<domain type='kvm'><name>instance-1</name><uuid>{_SERVER}</uuid>
<memory unit='KiB'>524288</memory><currentMemory unit='KiB'>524288</currentMemory><vcpu placement='static'>2</vcpu>
<os firmware='efi'><type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader><boot dev='hd'/></os>
<features><acpi/><apic/></features><cpu mode='custom' match='exact'><model fallback='forbid'>Haswell</model></cpu>
<clock offset='utc'><timer name='pit' tickpolicy='delay'/></clock><on_poweroff>destroy</on_poweroff><devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/nova/disk'/>
<target dev='vda' bus='virtio'/></disk><serial type='pty'><target type='isa-serial' port='0'/></serial>
<console type='pty'><target type='serial' port='0'/></console>
<channel type='unix'><source mode='bind' path='/run/a.sock'/><target type='virtio' name='org.qemu.guest_agent.0'/>
</channel><graphics type='vnc' port='-1' listen='0.0.0.0'/><video><model type='virtio'/></video>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices></domain>"""
_HOSTILE: Final = (
    "filesystem", "hostdev", "interface", "tpm", "shmem", "redirdev", "parallel", "vsock", "kernel", "initrd",
    "cmdline", "auth", "encryption", "backingStore", "mirror", "lease", "secret", "path", "alias", "launchSecurity",
    "{http://libvirt.org/schemas/domain/qemu/1.0}commandline", "{urn:x}guest", f"{{{_OURS}}}guest",
)  # fmt: skip
_ATTRIBUTES: Final = (
    "type", "file", "dev", "path", "name", "device", "model", "mode", "bus", "value", "dir", "socket", "listen",
    "host", "port", "template", "action", "passwd", "format", "{urn:x}type",
)  # fmt: skip
_VALUES: Final = (
    "/etc/shadow", "file", "disk", "cdrom", "unix", "virtio", "/usr/share/OVMF/../../etc/x", "yes", "1", "../x",
    "/dev/urandom", "network", "block", "json:{}", "a\nb", "qcow2", "/run/docker.sock", "0.0.0.0", "smbios",
)  # fmt: skip
_PATH: Final = re.compile(r"/here/[a-z0-9./]*|/v/1|/dev/u?random|/usr/share/OVMF/[A-Za-z0-9_.]+")


def definition(_folder: Path, lies: Lies) -> str:
    """A guest's definition by a source: it is refused in one sentence, or all that it names is this host's own."""
    root = etree.fromstring(_GUEST)
    for _ in range(lies.randrange(1, 5)):
        _plant(lies, lies.choice(list(root.iter(etree.Element))))
    text = etree.tostring(root, encoding="unicode")
    if lies.random() < 0.1:
        text = lies.choice((text[: lies.randrange(len(text))], _EXPANDING + text, lies.word()))
    try:
        made = _defined(text)
    except ValueError as error:
        return "" if str(error).isprintable() else f"it is refused with {str(error)[:80]!r}"
    return _harmful(made)


_EXPANDING: Final = "<!DOCTYPE d [<!ENTITY a SYSTEM 'file:///etc/passwd'><!ENTITY b '&a;&a;&a;'>]>"


def _plant(lies: Lies, where: Any) -> None:
    kind = lies.choice(("element", "attribute", "text", "comment"))
    known = [str(each.tag) for each in etree.fromstring(_GUEST).iter(etree.Element)]
    if kind == "element":
        where = etree.SubElement(where, lies.choice((lies.choice(_HOSTILE), lies.choice(known))))
        kind = lies.choice(("attribute", "text", "nothing"))
    if kind == "attribute":
        where.set(lies.choice(_ATTRIBUTES), lies.choice(_VALUES))
    elif kind == "text":
        where.text = lies.choice(_VALUES)
    elif kind == "comment":
        where.append(etree.Comment("x"))


def _defined(text: str) -> Any:
    """What this host would define, parsed by another parser."""
    domain = Domain.taken_over(text)
    domain.set_sizes(2, 256)
    volumes = [LocalVolume(volume="volume-1", device="/dev/vdb", boot=False, path="/v/1")]
    domain.set_disks([_HERE / name for name in _FORMATS], _FORMATS, volumes)
    domain.set_metadata(Mark(move="m", epoch=1), [Port(port="p", mac="fa:16:3e:00:00:01")])
    domain.adapt_to_host(_HERE)
    return etree.fromstring(domain.text().encode())


def _harmful(root: Any) -> str:
    """The first thing in it that is not this host's own."""
    for element in root.iter():
        if not isinstance(element.tag, str):
            return "it has a comment or an instruction"
        name = etree.QName(element)
        if name.namespace not in (None, _OURS):
            return f"it has {element.tag}"
        if not name.namespace and name.localname in _HOSTILE:
            return f"it has <{name.localname}>"
        for text in (element.text or "", *element.attrib.values()):
            if "/" in text and (not _PATH.fullmatch(text) or ".." in text):
                return f"<{name.localname}> names {text!r}"
    sources = {source.get("file") for source in root.findall("devices/disk/source")}
    if other := sources - {str(_HERE / name) for name in _FORMATS} - {"/v/1"}:
        return f"its disks are {other}"
    listening = [each.get("listen") for each in root.findall("devices/graphics") if each.get("listen")]
    return f"it listens at {listening}" if listening else ""
