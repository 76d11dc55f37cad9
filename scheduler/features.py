"""Finds the extra specs of a flavor and the properties of an image that bind a server to devices of its host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ACCELERATORS: Final = "accel:device_profile"

_PINNED: Final = ("dedicated", "mixed")

# Names as in a flavor's extra spec; an image's property of the same meaning has `_` where that has `:`.
_BOUND: Final = (
    (re.compile(r"hw:cpu_(realtime|realtime_mask|dedicated_mask)|hw:emulator_threads_policy"), "pinned CPUs"),
    (re.compile(r"hw:numa_.*"), "NUMA cells"),
    (re.compile(r"hw:mem_page_size"), "memory pages of a chosen size"),
    (re.compile(r"hw:pci_numa_affinity_policy|pci_passthrough:alias"), "PCI devices"),
    (re.compile(r"hw:tpm_(version|model|secret_security)"), "a vTPM"),
    (re.compile(r"hw:pmem"), "persistent memory"),
    (re.compile(r"resources[\w-]*:PCPU"), "pinned CPUs"),
    (re.compile(r"resources[\w-]*:(VGPU|PGPU)"), "vGPUs"),
    (re.compile(r"resources[\w-]*:(PCI_DEVICE|SRIOV_NET_VF)"), "PCI devices"),
    (re.compile(r"resources[\w-]*:CUSTOM_PMEM_NAMESPACE_\w+"), "persistent memory"),
)


def unhandled(whose: str, wanted: Mapping[str, str]) -> str | None:
    """Return a phrase for the first device that Droveway cannot move; None when no setting asks for such a device.

    Such a device is bound to its host.  The phrase names the device and the setting that asks for it.

    ``wanted`` has the settings of ``whose``: a flavor's extra specs or an image's properties.
    """
    for key, value in sorted(wanted.items()):
        name = key if ":" in key else key.replace("_", ":", 1)
        if name == "hw:cpu_policy" and value in _PINNED:
            return f"pinned CPUs ({key}={value} of {whose})"
        for pattern, what in _BOUND:
            if pattern.fullmatch(name):
                return f"{what} ({key}={value} of {whose})"
    return None
