"""Lists what a definition from another host may contain, and rewrites such a definition so that it holds nothing else.

A source host is not trusted: its definition could name any file of this host, or any argument for QEMU.  So this host
writes a new definition with the listed elements and attributes.  Two rules apply to the rest:

- What belongs to a host is left out, and this host has its own: pinning, labels, sockets, paths, the display.
- What would make the guest another machine if it were left out is refused, and the error names its place.
"""

from __future__ import annotations

import re
from typing import Any, Final

from lxml import etree

from droveway.workers.hypervisors.base import CONFIG

Tree = dict[str, Any]
"""Maps an element to what it may have: ``@name`` to the pattern of an attribute, ``text`` to that of its text.

Any other key is a child element.
"""

NAMESPACE: Final = "urn:droveway:move"

_WORD: Final = r"[A-Za-z0-9_.:+,=() -]{0,128}"
_NUMBER: Final = r"(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,20})"
_NAME: Final = r"[A-Za-z0-9_.-]{1,64}"
_UUID: Final = r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"
_SWITCH: Final = r"(?:on|off|yes|no)"
_LINE: Final = r"[^\x00-\x1f\x7f/<>]{0,255}"
_FIRMWARE: Final = (
    r"/usr/share/(?:OVMF|AAVMF|edk2|edk2-ovmf|ovmf|qemu|qemu-efi-aarch64|seabios)(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,3}"
)
"""The directories in which distributions keep firmware for guests; only their packages write there."""
_AFTER: Final = r"(?:destroy|restart|preserve|rename-restart)"

_ADDRESS: Final[Tree] = {"@type": r"(?:pci|drive|virtio-serial|usb|ccw|spapr-vio|isa)"} | dict.fromkeys(
    ("@domain", "@bus", "@slot", "@controller", "@target", "@unit", "@cssid", "@ssid", "@devno", "@reg", "@iobase",
     "@irq"),
    _NUMBER,
) | {"@function": _NUMBER, "@multifunction": _SWITCH, "@port": r"[0-9.]{1,32}"}  # fmt: skip
_UNIT: Final[Tree] = {"text": _NUMBER, "@unit": _NAME}
_QUIRK: Final[Tree] = dict.fromkeys(
    ("@state", "@value", "@version", "@driver", "@retries", "@mode", "@eoi", "@unknown"), _WORD
)
_ENTRY: Final[Tree] = {"entry": {"@name": _NAME, "text": _LINE}}
_IOTUNE: Final = tuple(
    f"{kind}_{what}_sec{burst}"
    for kind in ("total", "read", "write")
    for what in ("bytes", "iops")
    for burst in ("", "_max", "_max_length")
)

_DISK: Final[Tree] = {
    "@device": r"(?:disk|cdrom)",
    "driver": dict.fromkeys(("@cache", "@io", "@discard", "@detect_zeroes", "@copy_on_read", "@queues"), _NAME),
    "target": {"@dev": r"[a-z]{2,3}[a-z0-9]{0,8}", "@bus": r"(?:virtio|ide|sata|scsi|usb|fdc)", "@tray": _NAME},
    "blockio": dict.fromkeys(("@logical_block_size", "@physical_block_size"), _NUMBER),
    "iotune": {name: {"text": _NUMBER} for name in (*_IOTUNE, "size_iops_sec")},
    "serial": {"text": _NAME},
    "wwn": {"text": r"[0-9a-fA-F]{16}"},
    "shareable": {},
    "address": _ADDRESS,
}

_DEVICES: Final[Tree] = {
    "disk": _DISK,
    "controller": {
        "@type": r"(?:pci|usb|ide|sata|scsi|virtio-serial|fdc|ccid)",
        "@index": _NUMBER,
        "@model": _NAME,
        "@ports": _NUMBER,
        "@vectors": _NUMBER,
        "driver": {"@queues": _NUMBER},
        "master": {"@startport": _NUMBER},
        "model": {"@name": _NAME},
        "target": dict.fromkeys(("@chassisNr", "@chassis", "@port", "@busNr", "@index"), _NUMBER)
        | {"@hotplug": _SWITCH},
        "address": _ADDRESS,
    },
    "serial": {
        "log": {},
        "target": {"@type": r"(?:isa|pci|usb|system|spapr-vio|sclp)-serial", "@port": _NUMBER,
                   "model": {"@name": _NAME}},
        "address": _ADDRESS,
    },
    "console": {
        "log": {},
        "target": {"@type": r"(?:serial|virtio|sclp|sclplm|xen)", "@port": _NUMBER},
        "address": _ADDRESS,
    },
    "channel": {
        "@type": r"(?:unix|spicevmc)",
        "target": {"@type": r"virtio", "@name": r"(?:org\.qemu\.guest_agent\.0|com\.redhat\.spice\.0)"},
        "address": _ADDRESS,
    },
    "input": {"@type": r"(?:tablet|mouse|keyboard)", "@bus": r"(?:usb|ps2|virtio)", "address": _ADDRESS},
    "graphics": {"@type": r"(?:vnc|spice)", "@keymap": r"[a-z-]{2,12}"},
    "video": {
        "model": {"@type": r"(?:vga|cirrus|qxl|virtio|bochs|none|ramfb)", "@primary": _SWITCH}
        | dict.fromkeys(("@heads", "@ram", "@vram", "@vram64", "@vgamem"), _NUMBER),
        "address": _ADDRESS,
    },
    "memballoon": {"@model": _NAME, "@autodeflate": _SWITCH, "@freePageReporting": _SWITCH,
                   "stats": {"@period": _NUMBER}, "address": _ADDRESS},
    "rng": {
        "@model": _NAME,
        "rate": {"@bytes": _NUMBER, "@period": _NUMBER},
        "backend": {"@model": r"(?:random|builtin)", "text": r"(?:/dev/u?random)?"},
        "address": _ADDRESS,
    },
    "watchdog": {"@model": _NAME, "@action": r"(?:reset|shutdown|poweroff|pause|none|inject-nmi)", "address": _ADDRESS},
    "panic": {"@model": _NAME, "address": _ADDRESS},
    "iommu": {"@model": _NAME,
              "driver": dict.fromkeys(("@intremap", "@caching_mode", "@eim", "@iotlb", "@aw_bits"), _NAME)},
    "audio": {"@id": _NUMBER, "@type": r"none"},
}  # fmt: skip

ALLOWED: Final[Tree] = {
    "@type": r"(?:kvm|qemu)",
    "name": {"text": r"[A-Za-z0-9_.:@+-]{1,255}"},
    "uuid": {"text": _UUID},
    "genid": {"text": _UUID},
    "metadata": {
        f"{{{NAMESPACE}}}guest": {
            "@move": _WORD,
            "@epoch": _NUMBER,
            f"{{{NAMESPACE}}}port": {"@id": _WORD, "@mac": r"[0-9a-fA-F:]{17}"},
        }
    },
    "memory": _UNIT,
    "currentMemory": _UNIT,
    "vcpu": {"@placement": r"(?:static|auto)", "@current": _NUMBER, "text": _NUMBER},
    "vcpus": {"vcpu": {"@id": _NUMBER, "@enabled": _SWITCH, "@hotpluggable": _SWITCH, "@order": _NUMBER}},
    "os": {
        "@firmware": r"(?:efi|bios)",
        "type": {"@arch": _NAME, "@machine": _NAME, "text": r"hvm"},
        "firmware": {"feature": {"@enabled": _SWITCH, "@name": _NAME}},
        "loader": {"@readonly": _SWITCH, "@type": r"(?:pflash|rom)", "@secure": _SWITCH, "text": _FIRMWARE},
        "nvram": {"@template": _FIRMWARE},
        "boot": {"@dev": r"(?:hd|cdrom|network|fd)"},
        "bootmenu": {"@enable": _SWITCH, "@timeout": _NUMBER},
        "smbios": {"@mode": r"(?:emulate|sysinfo)"},
        "bios": {"@useserial": _SWITCH, "@rebootTimeout": r"-?[0-9]{1,6}"},
    },
    "sysinfo": {"@type": r"smbios", "bios": _ENTRY, "system": _ENTRY, "baseBoard": _ENTRY, "chassis": _ENTRY,
                "oemStrings": {"entry": {"text": _LINE}}},
    "features": dict.fromkeys(
        ("acpi", "apic", "pae", "hap", "viridian", "privnet", "pvspinlock", "pmu", "vmport", "gic", "ioapic", "hpt",
         "vmcoreinfo", "htm", "nested-hv", "msrs", "ccf-assist", "cfpc", "sbbc", "ibs"),
        _QUIRK,
    )
    | {
        "smm": {"@state": _SWITCH, "tseg": _UNIT},
        "hyperv": {"@mode": _NAME}
        | dict.fromkeys(
            ("relaxed", "vapic", "spinlocks", "vpindex", "runtime", "synic", "reset", "vendor_id", "frequencies",
             "reenlightenment", "tlbflush", "ipi", "evmcs", "avic"),
            _QUIRK,
        )
        | {"stimer": _QUIRK | {"direct": _QUIRK}},
        "kvm": dict.fromkeys(("hidden", "hint-dedicated", "poll-control", "pv-ipi"), _QUIRK),
        "tcg": {"tb-cache": _UNIT},
    },
    "cpu": {
        "@mode": r"(?:custom|host-model|host-passthrough|maximum)",
        "@match": r"(?:exact|minimum|strict)",
        "@check": r"(?:none|partial|full)",
        "@migratable": _SWITCH,
        "model": {"@fallback": r"(?:allow|forbid)", "@vendor_id": _NAME, "text": _NAME},
        "vendor": {"text": _NAME},
        "topology": dict.fromkeys(("@sockets", "@dies", "@clusters", "@cores", "@threads"), _NUMBER),
        "feature": {"@policy": r"(?:force|require|optional|disable|forbid)", "@name": _NAME},
        "cache": {"@level": _NUMBER, "@mode": _NAME},
        "maxphysaddr": {"@mode": _NAME, "@bits": _NUMBER, "@limit": _NUMBER},
        "numa": {
            "cell": {"@id": _NUMBER, "@cpus": r"[0-9,^-]{1,255}", "@memory": _NUMBER, "@unit": _NAME,
                     "distances": {"sibling": {"@id": _NUMBER, "@value": _NUMBER}}}
        },
    },
    "clock": {
        "@offset": r"(?:utc|localtime|timezone|variable|absolute)",
        "@adjustment": r"(?:reset|-?[0-9]{1,12})",
        "@basis": _NAME,
        "@start": _NUMBER,
        "@timezone": r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z][A-Za-z0-9_+-]{0,31}){0,2}",
        "timer": {"@name": _NAME, "@tickpolicy": _NAME, "@track": _NAME, "@present": _SWITCH, "@frequency": _NUMBER,
                  "@mode": _NAME, "catchup": dict.fromkeys(("@threshold", "@slew", "@limit"), _NUMBER)},
    },
    "on_poweroff": {"text": _AFTER},
    "on_reboot": {"text": _AFTER},
    "on_crash": {"text": _AFTER},
    "pm": {"suspend-to-mem": {"@enabled": _SWITCH}, "suspend-to-disk": {"@enabled": _SWITCH}},
    "devices": _DEVICES,
}  # fmt: skip
"""Everything that is taken over, by its place in the XML; nothing else gets into a definition."""

HOSTS_OWN: Final = frozenset(
    {
        "title", "description", "cputune", "numatune", "blkiotune", "memtune", "memoryBacking", "maxMemory", "resource",
        "iothreads", "iothreadids", "defaultiothread", "seclabel", "perf", "on_lockfailure", "throttlegroups", "id",
        "devices/emulator",
    }
)  # fmt: skip
"""What is left out without an error: it belongs to the host, and the guest is the same machine without it."""

LEFT_OUT: Final = frozenset(
    {
        "os/nvram/text", "devices/rng/driver", "devices/video/driver", "devices/video/acceleration",
        "devices/graphics/listen", "devices/input/source", "devices/memballoon/driver", "devices/channel/source",
        "devices/serial/source", "devices/serial/protocol", "devices/disk/source",
        "devices/console/source", "devices/console/protocol",
        "devices/disk/backingStore", "devices/disk/boot", "devices/disk/mirror", "devices/disk/geometry",
        "devices/disk/readonly",
    }
)  # fmt: skip
"""Parts that are left out in the same way, of elements that are otherwise taken over."""

STATED: Final = {"devices/disk": "device", "devices/channel": "type"}
"""Attributes that must be given, because the libvirt that reads the definition would choose them otherwise."""


def clean(root: Any) -> Any:
    """Return a new tree with what the list allows; raises ValueError, which names what cannot be left out."""
    if root.tag != "domain":
        raise ValueError("it is no domain of libvirt")
    _refuse_what_needs_the_host(root)
    return _copied(root, ALLOWED, "")


def _copied(element: Any, allowed: Tree, place: str) -> Any:
    new = etree.Element(element.tag, nsmap={"droveway": NAMESPACE} if NAMESPACE in str(element.tag) else None)
    for name, value in element.attrib.items():
        pattern = allowed.get(f"@{name}")
        if pattern is not None:
            new.set(name, _matching(pattern, value, f"{place}@{name}"))
    if "text" in allowed and element.text is not None and element.text.strip():
        new.text = _matching(allowed["text"], element.text.strip(), place)
    for child in element.iterchildren(tag=etree.Element):
        known = allowed.get(child.tag) if not str(child.tag).startswith(("@", "text")) else None
        where = f"{place}/{child.tag}" if place else str(child.tag)
        if known is not None:
            new.append(_copied(child, known, where))
        elif not _may_go(child, where):
            raise ValueError(
                f"its <{_shown(where)}> is nothing that a move takes along: take it out of the guest first"
            )
    if place == "devices/disk" and (name := _file_name(element)):
        # A disk of the server's own is known by its file name; its path is this host's.
        etree.SubElement(new, "source", file=name)
    if place in ("devices/serial", "devices/console"):
        # Type ``file`` says that the line is logged; `lines.adapt_to_host` turns that into a log file of this host.
        new.set("type", "file" if element.get("type") == "file" else "pty")
    return new


def _file_name(disk: Any) -> str:
    source = disk.find("source")
    name = "" if source is None else str(source.get("file", source.get("dev", ""))).rpartition("/")[2]
    return name if re.fullmatch(_NAME, name) else ""


def _may_go(element: Any, where: str) -> bool:
    """Return whether the element may be left out: the guest is the same machine without it."""
    if where in HOSTS_OWN or where in LEFT_OUT or where.endswith("/alias"):
        return True
    # Foreign elements in the metadata have no effect.  Elsewhere they have one: <qemu:commandline> is an argument.
    return where.startswith("metadata/") and element.tag.startswith("{")


def _refuse_what_needs_the_host(root: Any) -> None:
    """Raise ValueError for elements that the list allows, but that another host would read in its own way.

    They name a medium or a secret of the host that the definition comes from, or leave a choice to the libvirt that
    reads the definition.
    """
    for disk in root.findall("devices/disk"):
        source, kind = disk.find("source"), disk.get("device", "disk")
        empty = source is None or not (source.attrib or len(source))
        if kind == "cdrom" and not empty and not is_config_drive(disk):
            raise ValueError("its <devices/disk> is a cdrom of the host's: take the medium out of the guest first")
        if source is not None and len(source.findall("encryption")) + len(source.findall("auth")):
            raise ValueError("its <devices/disk/source> needs a secret of the host's: no move takes that along")
    for place, name in STATED.items():
        if any(name not in element.attrib for element in root.findall(place)):
            raise ValueError(f"its <{place}> has no {name}, which libvirt always writes: define the guest anew first")


def is_config_drive(disk: Any) -> bool:
    """Return whether the disk is the server's own config drive, by the name of its file."""
    source = disk.find("source")
    path = "" if source is None else str(source.get("file", ""))
    return path.rpartition("/")[2] == CONFIG and disk.findtext("serial") is None


def _matching(pattern: str, value: str, where: str) -> str:
    if not re.fullmatch(pattern, value):
        raise ValueError(
            f"its <{_shown(where)}> is {_shown(value)}, which no move takes along: take it out of the guest first"
        )
    return value


def _shown(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_.:/{}@-]{1,120}", text) else ascii(text[:120])
