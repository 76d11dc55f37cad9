"""The labs in which conductors and workers sleep: where hosts keep disks, and which hosts are in one cell."""

from __future__ import annotations

import itertools
from typing import Final

from support.labs import operations
from support.two_faults.recording import BETWEEN, CELLS, ELSEWHERE, SHELF, SOURCE

from droveway.lab import cloud
from droveway.persistence.journal import kinds

APART: Final = ("apart", "shared")
"""Two hosts of one cell, with disks of their own or with shared ones."""
BY_IMAGE: Final = f"{CELLS}-by-image"
BETWEEN_CELLS: Final = (CELLS, BY_IMAGE)
"""A host in each of two cells: the disks go from host to host and images of them are kept, or go as images."""
SHELVES: Final = (SHELF, f"{SHELF}-{CELLS}")
"""Where the server is shelved and unshelved: in its own cell, and in another one."""
STORAGES: Final = (*APART, *BETWEEN_CELLS, *SHELVES, ELSEWHERE)

KINDS: Final = ("resize", "migrate", "confirm", "revert")
_ONLY: Final = {
    SHELVES[0]: ("shelve", "unshelve"),
    SHELVES[1]: ("cross_cell_unshelve",),
    ELSEWHERE: ("cross_cell_revert_elsewhere",),
}
DIRECTIONS: Final = ("execute", "revert")
Way = tuple[str, str]


def ways(storage: str) -> list[Way]:
    """What is asked for in the lab, and whether it goes on to its end or is undone."""
    kinds = [f"{BETWEEN}{kind}" for kind in KINDS] if storage in BETWEEN_CELLS else KINDS
    return list(itertools.product(_ONLY.get(storage, kinds), DIRECTIONS))


WAYS: Final = [(storage, kind, direction) for storage in STORAGES for kind, direction in ways(storage)]
"""The lab, what is asked for, and whether it goes on to its end or is undone."""

_CLOUD: Final = """
options: {OPTIONS}
cells: {HOSTS}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: ROOT}
  large: {vcpus: 2, memory_mb: 512, root_gb: ROOT, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  near: {flavor: small, host: host1, image: base, ports: [{}]}
"""
_HOSTS: Final = {
    "apart": "cell1: {hosts: {host1: {}, host2: {}}}",
    "shared": "cell1: {hosts: {host1: {shared: nfs1}, host2: {shared: nfs1}}}",
    SHELVES[0]: "cell1: {hosts: {host1: {}, host2: {}}}",
    ELSEWHERE: "cell1: {hosts: {host1: {}, host3: {}}}, cell2: {hosts: {host2: {}}}",
}
_TWO_CELLS: Final = "cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}"
_OPTIONS: Final = {
    CELLS: "cross_cell: true",
    BY_IMAGE: "cross_cell: true, transfer: image",
    SHELVES[1]: "cross_cell: true",
    ELSEWHERE: "cross_cell: true",
}


def cloud_of(storage: str) -> cloud.Cloud:
    """Two hosts, or one more in the source's cell, and a neighbour beside the server."""
    hosts = _HOSTS.get(storage, _TWO_CELLS)
    # All of a root disk is uploaded when its server is shelved, goes by image, or leaves images.
    text = _CLOUD.replace("ROOT", "0" if storage in (*SHELVES, BY_IMAGE, ELSEWHERE) else "1")
    text = text.replace("OPTIONS", _OPTIONS.get(storage, "")).replace("HOSTS", hosts)
    for rewrite in operations.REWRITES:
        text = rewrite(text)
    return cloud.parse_cloud(text, "small")


def keeps_images(storage: str) -> bool:
    """Whether the moves of the lab keep the images of their disks: else steps of a confirm have nothing to do."""
    return storage in (CELLS, ELSEWHERE)


def dead_before(kind: str) -> tuple[str, ...]:
    """Name the hosts that are dead before a flow of the kind begins: a revert elsewhere has lost its source."""
    return (SOURCE,) if kinds.of(kind).elsewhere else ()


def cell_of_destination(kind: str) -> str | None:
    """Name the cell to which the server goes in the move before a flow of the kind; None where there is no choice."""
    return "cell2" if kinds.of(kind).elsewhere else None


def alike(kind: str, wanted: str) -> str:
    """Another kind of flow, between cells where this one is."""
    return f"{BETWEEN}{wanted}" if kind.startswith(BETWEEN) else wanted
