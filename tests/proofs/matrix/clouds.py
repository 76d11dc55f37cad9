"""The clouds of the crash matrix: what its server is made of, and which hosts it can go to."""

from __future__ import annotations

from typing import Final

from droveway.flows import registry
from droveway.lab import cloud
from droveway.persistence.journal import kinds

_APART: Final = "{host1: {}, host2: {}, host3: {}}"
_ONE: Final = "{host1: {same_host_cold_migrate: true}}"
_CELLS: Final = "{cell1: {hosts: {host1: {}, host4: {}}}, cell2: {hosts: {host2: {}, host3: {}}}}"
_SHARED: Final = "{host1: {shared: nfs1}, host2: {shared: nfs1}, host3: {shared: nfs1}}"
_IMAGE: Final = "image: base, ports: [{}], volumes: [{size_gb: 1}]"
_VOLUME: Final = "ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}]"
_MANY: Final = "flavor: wide, image: base, ports: [{}, {}], volumes: [{size_gb: 1}, {size_gb: 1}]"

_PARTS: Final = {
    "three-hosts": (_APART, _IMAGE),
    "volume-backed": (_APART, _VOLUME),
    "one-host": (_ONE, _IMAGE),
    "shared": (_SHARED, _IMAGE),
    "stopped": (_APART, f"state: stopped, {_IMAGE}"),
    "stopped-on-volume": (_APART, f"state: stopped, {_VOLUME}"),
    "many-disks": (_APART, _MANY),
    "two-cells": (_CELLS, _IMAGE),
    "two-cells-stopped": (_CELLS, f"state: stopped, {_MANY}"),
    "two-cells-on-volume": (_CELLS, _VOLUME),
}
"""The hosts, and the server; on the one host every move stays where its server is."""

BETWEEN: Final = ("two-cells", "two-cells-stopped", "two-cells-on-volume")
"""The clouds in which moves lead into another cell: they run the kinds of flow that do, and no others."""

CLOUDS: Final = tuple(name for name in _PARTS if name not in BETWEEN)
"""The clouds of one cell."""

ALL: Final = (*CLOUDS, *BETWEEN)

_TEXT: Final = """
hypervisor: sandbox
options: {allow_resize_to_same_host: SAME_HOST, cross_cell: CROSS}
cells: CELLS
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  wide: {vcpus: 1, memory_mb: 512, root_gb: 1, ephemeral_gb: 1, swap_mb: 1}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 2, ephemeral_gb: 1, swap_mb: 2}
images: {base: {size_mb: 2}}
servers:
  web: {FLAVORhost: host1, SERVER}
"""


def spec(name: str) -> cloud.Cloud:
    """The cloud of this name."""
    hosts, server = _PARTS[name]
    between = name in BETWEEN
    cells = hosts if between else f"{{cell1: {{hosts: {hosts}}}}}"
    text = _TEXT.replace("CELLS", cells).replace("CROSS", str(between).lower()).replace("SERVER", server)
    text = text.replace("FLAVOR", "" if "flavor:" in server else "flavor: small, ")
    return cloud.parse_cloud(text.replace("SAME_HOST", str(name == "one-host").lower()), "the matrix's cloud")


def kinds_in(name: str) -> list[str]:
    """The kinds of flow that are run in this cloud, in the order of the registry."""
    between = name in BETWEEN
    return [kind for kind in registry.kinds() if kinds.of(kind).crosses_cells == between]
