"""The cloud of a soak: two cells, hosts of every kind that a move treats apart, and what its servers are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from proofs.soak.model import Size

FLAVORS: Final[Mapping[str, Size]] = {
    "tiny": Size(vcpus=1, memory_mb=512, root_gb=1),
    "small": Size(vcpus=1, memory_mb=1024, root_gb=2),
    "medium": Size(vcpus=2, memory_mb=2048, root_gb=4),
    "scratch": Size(vcpus=1, memory_mb=1024, root_gb=2, ephemeral_gb=1, swap_mb=64),
    "scratch.large": Size(vcpus=2, memory_mb=2048, root_gb=4, ephemeral_gb=2, swap_mb=128),
}

HOSTS: Final[Mapping[str, str]] = {
    "host1": "cell1",
    "twice": "cell1",
    "nfs-a": "cell1",
    "nfs-b": "cell1",
    "host2": "cell2",
    "host3": "cell2",
    "narrow": "cell2",
}
"""Their cells; ``twice`` takes a move from itself, the two ``nfs`` share their disks, ``narrow`` is soon full."""

GROUP: Final = "apart"
POPULATION: Final = 12

_HOSTS: Final = """
cells:
  cell1:
    hosts:
      host1: {}
      twice: {same_host_cold_migrate: true}
      nfs-a: {shared: nfs}
      nfs-b: {shared: nfs}
  cell2:
    hosts:
      host2: {}
      host3: {}
      narrow: {memory_mb: 2048, disk_gb: 6}
"""


@dataclasses.dataclass(frozen=True)
class Make:
    """What a server is made of."""

    flavor: str
    host: str
    from_volume: bool = False
    volumes: int = 0
    ports: int = 1
    group: str | None = None
    active: bool = True

    def words(self, name: str) -> tuple[str, ...]:
        """The command that builds it."""
        root = ("--boot-volume", "1") if self.from_volume else ("--image", "base")
        return (
            *("lab", "server", "create", name, "--flavor", self.flavor, "--host", self.host, *root),
            *("--volume", "1") * self.volumes,
            *("--ports", str(self.ports)),
            *(("--group", self.group) if self.group else ()),
            *(() if self.active else ("--stopped",)),
        )


KINDS: Final = (
    Make("tiny", "", ports=2),
    Make("small", "", volumes=1),
    Make("small", "", from_volume=True, volumes=1),
    Make("tiny", "", from_volume=True, active=False),
    Make("small", "", active=False),
    Make("scratch", ""),
    Make("tiny", "", group=GROUP),
    Make("tiny", "", ports=0),
)
"""The servers of a soak, as far as their kind goes; the host is chosen."""


def text() -> str:
    """The cloud file; its servers are built by commands, so that the model hears of each."""
    flavors = "".join(f"  {name}: {_mapping(dataclasses.asdict(size))}\n" for name, size in FLAVORS.items())
    return (
        "hypervisor: sandbox\noptions: {allow_resize_to_same_host: true, max_attempts: 3, cross_cell: true}\n"
        f"{_HOSTS}flavors:\n{flavors}images: {{base: {{size_mb: 8}}}}\n"
        f"groups: {{{GROUP}: {{policy: anti-affinity, max_server_per_host: 1}}}}\n"
    )


def _mapping(fields: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"
