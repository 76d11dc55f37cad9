"""Domain XML: written for a new guest, and edited so that another host can run the guest.

What makes the guest the same machine stays: uuid, name, machine type, CPU model, and the PCI addresses of what it
keeps.  What belongs to a host is made anew: paths, emulator, pinning, and the host's end of its lines
(`droveway.workers.hypervisors.libvirt.lines`).  Ports have no interface, because an unprivileged libvirt has no
network.  They are recorded in the metadata, beside the mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lxml import etree

from droveway.workers.hypervisors.attached import LocalVolume
from droveway.workers.hypervisors.base import CONFIG, Mark, Port
from droveway.workers.hypervisors.libvirt import allowed as libvirt_allowed
from droveway.workers.hypervisors.libvirt import lines as libvirt_lines

NAMESPACE = libvirt_allowed.NAMESPACE
PREFIX = "droveway"
GUEST = f"{{{NAMESPACE}}}guest"
PORT = f"{{{NAMESPACE}}}port"
UNITS = {"b": 1, "bytes": 1, "KB": 1000, "k": 1024, "KiB": 1024, "MB": 10**6, "M": 1 << 20, "MiB": 1 << 20,
         "GB": 10**9, "G": 1 << 30, "GiB": 1 << 30}  # fmt: skip

_NEW = """<domain type='{kind}'>
  <name/><uuid/><memory unit='KiB'/><vcpu/>
  <os><type arch='x86_64' machine='{machine}'>hvm</type></os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model></cpu>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <controller type='usb' model='none'/>
    <serial type='pty'/>
    <memballoon model='none'/>
  </devices>
</domain>"""


class Domain:
    """One domain's XML; raises ValueError when the text is no domain."""

    def __init__(self, text: str) -> None:
        parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_blank_text=True)
        try:
            self.root: Any = etree.fromstring(text, parser)
        except etree.XMLSyntaxError as error:
            raise ValueError(f"it is no XML: {error}") from None
        if self.root.tag != "domain" or self.root.find("devices") is None or self.root.find("os/type") is None:
            raise ValueError("it is no domain of libvirt")

    @classmethod
    def taken_over(cls, text: str) -> Domain:
        """Make a domain of a definition from another host, with what `libvirt_allowed` lists; raises ValueError."""
        domain = cls(text)
        domain.root = libvirt_allowed.clean(domain.root)
        return domain

    @classmethod
    def new(cls, *, kind: str, machine: str, server: str, name: str, vcpus: int, memory_mb: int) -> Domain:
        """Make a domain for a guest that no host ever ran, without its disks; ``memory_mb`` in MiB."""
        domain = cls(_NEW.format(kind=kind, machine=machine))
        domain.root.find("name").text = name
        domain.root.find("uuid").text = server
        domain.set_sizes(vcpus, memory_mb)
        return domain

    @property
    def kind(self) -> str:
        """``qemu`` (emulated) or ``kvm``."""
        return str(self.root.get("type"))

    @property
    def server(self) -> str:
        """The domain's uuid, which is the server's id."""
        return self._text("uuid")

    @property
    def name(self) -> str:
        """The domain's name."""
        return self._text("name")

    @property
    def architecture(self) -> str:
        """The guest's architecture."""
        return str(self.root.find("os/type").get("arch"))

    @property
    def machine(self) -> str:
        """The machine type, e.g. pc-i440fx-7.2."""
        return str(self.root.find("os/type").get("machine"))

    @property
    def vcpus(self) -> int:
        """How many vCPUs the guest has."""
        return int(self._text("vcpu"))

    @property
    def memory_mb(self) -> int:
        """The guest's memory in MiB."""
        memory = self.root.find("memory")
        return int(memory.text) * UNITS[memory.get("unit", "KiB")] >> 20

    @property
    def cpu(self) -> str | None:
        """The CPU as XML when it names a model; None for a host's own model, which cannot be compared."""
        cpu = self.root.find("cpu")
        return None if cpu is None or cpu.get("mode") != "custom" else etree.tostring(cpu, encoding="unicode")

    @property
    def mark(self) -> Mark | None:
        """The move that the domain belongs to; None without a mark."""
        guest = self.root.find(f"metadata/{GUEST}")
        if guest is None or guest.get("move") is None:
            return None
        return Mark(move=guest.get("move"), epoch=int(guest.get("epoch")))

    @property
    def ports(self) -> list[Port]:
        """The ports that the guest uses, as the metadata records them."""
        found = self.root.findall(f"metadata/{GUEST}/{PORT}")
        return [Port(port=port.get("id"), mac=port.get("mac")) for port in found]

    @property
    def formats(self) -> dict[str, str]:
        """The format that QEMU gets for every disk, by the disk's file."""
        disks = self.root.findall("devices/disk")
        return {_source(disk): str(disk.find("driver").get("type")) for disk in disks if _source(disk)}

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        """(target, file, serial) of every disk; the serial is the volume's id, and empty for a local disk."""
        return sorted(
            (disk.find("target").get("dev"), _source(disk), _serial(disk))
            for disk in self.root.findall("devices/disk")
            if _source(disk)
        )

    def facts(self) -> tuple[object, ...]:
        """Return everything that `define` decides: two definitions with the same facts are the same guest."""
        sizes = (self.vcpus, self.memory_mb)
        disks = (self.sources, self.formats)
        return (self.server, self.name, self.machine, self.kind, *sizes, *disks, self.mark, self.ports)

    def set_sizes(self, vcpus: int | None, memory_mb: int | None) -> None:
        """Set vCPUs and memory (MiB); None leaves a value as it is."""
        if vcpus is not None:
            element = self.root.find("vcpu")
            element.attrib.clear()
            element.text = str(vcpus)
            self._drop("vcpus")
        if memory_mb is not None:
            element = self.root.find("memory")
            element.set("unit", "KiB")
            element.text = str(memory_mb * 1024)
            self._drop("currentMemory")

    def adapt_to_host(self, directory: Path) -> None:
        """Drop what belongs to another host; ``directory`` is the server's own on this host."""
        for part in ("cputune", "numatune", "seclabel", "resource", "devices/emulator"):
            self._drop(part)
        libvirt_lines.adapt_to_host(self.root.find("devices"), directory)

    def set_disks(self, disks: Sequence[Path], formats: Mapping[str, str], volumes: Sequence[LocalVolume]) -> None:
        """Give the guest exactly these local disks (known by file name) and volumes (known by serial).

        ``formats`` holds the recorded format of each local disk, by file name; a volume is raw.
        """
        known_disks = [disk for disk in self.root.findall("devices/disk") if _source(disk)]
        by_name = {Path(_source(disk)).name: disk for disk in known_disks if not _serial(disk)}
        by_serial = {_serial(disk): disk for disk in known_disks if _serial(disk)}
        for disk in known_disks:
            self.root.find("devices").remove(disk)
            for part in ("boot", "backingStore"):
                for element in disk.findall(part):
                    disk.remove(element)
        boot = next((volume.volume for volume in volumes if volume.boot), None)
        taken: set[str] = set()
        for volume in volumes:
            target = Path(volume.device).name if volume.device else _free("vda", taken)
            self._add_disk(by_serial.get(volume.volume), "raw", volume.path, target, serial=volume.volume)
            taken.add(target)
        for path in disks:
            known = by_name.get(path.name)
            wished = None if known is None or known.find("target") is None else known.find("target").get("dev")
            target = _free(wished or "vda", taken)
            new = self._add_disk(known, formats[path.name], str(path), target)
            for shared in new.findall("shareable"):
                new.remove(shared)  # only volumes may have it: on a local disk it would switch off QEMU's lock
            taken.add(target)
        root = next((str(path) for path in disks if path.name != CONFIG), None)
        for disk in self._disks():
            if (_serial(disk) == boot) if boot else (_source(disk) == root):
                etree.SubElement(disk, "boot", order="1")

    def set_metadata(self, mark: Mark | None, ports: Sequence[Port]) -> None:
        """Write the mark and the ports in place of what was there."""
        metadata = self.root.find("metadata")
        if metadata is None:
            metadata = etree.Element("metadata")
            self.root.insert(list(self.root).index(self.root.find("uuid")) + 1, metadata)
        for old in metadata.findall(GUEST):
            metadata.remove(old)
        guest = etree.SubElement(metadata, GUEST, nsmap={PREFIX: NAMESPACE})
        if mark is not None:
            guest.set("move", mark.move)
            guest.set("epoch", str(mark.epoch))
        for port in ports:
            etree.SubElement(guest, PORT, id=port.port, mac=port.mac)

    def metadata_without_mark(self) -> str:
        """Return what `set_metadata` wrote, without the mark and the namespace, which libvirt adds by itself."""
        guest = etree.Element("guest")
        for port in self.ports:
            etree.SubElement(guest, "port", id=port.port, mac=port.mac)
        return str(etree.tostring(guest, encoding="unicode"))

    def text(self) -> str:
        """Return the XML as text."""
        return str(etree.tostring(self.root, encoding="unicode", pretty_print=True))

    def _add_disk(self, known: Any, disk_format: str, path: str, target: str, serial: str = "") -> Any:
        disk: Any = etree.Element("disk", device="disk") if known is None else known
        for part in ("driver", "source", "target"):
            if disk.find(part) is None:
                etree.SubElement(disk, part)
        disk.set("type", "file")
        disk.find("driver").set("name", "qemu")
        if disk.find("target").get("bus") is None:
            disk.find("target").set("bus", "virtio")
        disk.find("source").attrib.clear()
        disk.find("driver").set("type", disk_format)
        disk.find("source").set("file", path)
        disk.find("target").set("dev", target)
        if serial and disk.find("serial") is None:
            etree.SubElement(disk, "serial").text = serial
        self.root.find("devices").append(disk)
        return disk

    def _disks(self) -> list[Any]:
        return [disk for disk in self.root.findall("devices/disk") if disk.get("device", "disk") == "disk"]

    def _drop(self, path: str) -> None:
        for element in self.root.findall(path):
            element.getparent().remove(element)

    def _text(self, path: str) -> str:
        return str(self.root.findtext(path, ""))


def machine(capabilities: str) -> str:
    """Return the machine type with its version, from the domain capabilities.

    They may have been asked for an alias: for "pc" this returns for example "pc-i440fx-7.2".
    """
    return str(etree.fromstring(capabilities).findtext("machine"))


def most_vcpus(capabilities: str) -> int:
    """Return how many vCPUs a guest may have, from the domain capabilities."""
    limit: Any = etree.fromstring(capabilities).find("vcpu")
    return int(limit.get("max"))


def qemu_group(capabilities: str, kind: str) -> int | None:
    """Return the id of the group as which the daemon runs guests, from its capabilities; None when they name none."""
    for model in etree.fromstring(capabilities).findall("host/secmodel"):
        label = model.find(f"baselabel[@type='{kind}']")
        found = None if label is None else re.fullmatch(r"\+?[0-9]+:\+?([0-9]+)", (label.text or "").strip())
        if model.findtext("model") == "dac" and found is not None:
            return int(found[1])
    return None


def _source(disk: Any) -> str:
    source = disk.find("source")
    return "" if source is None else str(source.get("file", ""))


def _serial(disk: Any) -> str:
    return str(disk.findtext("serial", ""))


def _free(wanted: str, taken: set[str]) -> str:
    """Return the wanted device name if it is free, else the first free one."""
    names = [wanted, *(f"vd{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    return next(name for name in names if name not in taken)
