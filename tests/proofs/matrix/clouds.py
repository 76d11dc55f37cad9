"""The clouds of the crash matrix: what its server is made of, and which hosts it can go to."""

from __future__ import annotations

from typing import Final

from droveway.flows import registry
from droveway.lab import cloud
from droveway.persistence.journal import kinds

_APART: Final = "{host1: {}, host2: {}, host3: {}}"
_ONE: Final = "{host1: {same_host_cold_migrate: true}}"
_CELLS: Final = "{cell1: {hosts: {host1: {}, host4: {}}}, cell2: {hosts: {host2: {}, host3: {}}}}"
_LOST: Final = "{cell1: {hosts: {host1: {}, host4: {}, host5: {}}}, cell2: {hosts: {host2: {}, host3: {}}}}"
_THREE: Final = "{cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}, cell3: {hosts: {host3: {}}}}"
_ISOLATED: Final = _CELLS.replace("{hosts", "{isolated: true, hosts")
_SHARED: Final = "{host1: {shared: nfs1}, host2: {shared: nfs1}, host3: {shared: nfs1}}"
_IMAGE: Final = "image: base, ports: [{}], volumes: [{size_gb: 1}]"
_VOLUME: Final = "ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}]"
_MANY: Final = "flavor: wide, image: base, ports: [{}, {}], volumes: [{size_gb: 1}, {size_gb: 1}]"

_BRIDGES: Final = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000},"
    " br-b: {physical_network: net-b, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
)
_ASKING: Final = (
    "flavor: tiny, image: base, ports: [{network: a, qos: gold}, {network: b, qos: old, format: legacy}, {}],"
    " volumes: [{size_gb: 1}]"
)
_GUARANTEED: Final = {
    "guaranteed": "{host1: {BRIDGES}, host2: {BRIDGES}, host3: {BRIDGES}}",
    # Each bridge has room for one of the two claims alone, so that the ports change theirs.
    "guaranteed-one-host": (
        "{host1: {same_host_cold_migrate: true, kpps: 40, bandwidth: {"
        + ", ".join(
            f"br-{name}: {{physical_network: net-{name[0]}, egress_kbps: 1500, ingress_kbps: 1500}}"
            for name in ("a1", "a2", "b1", "b2", "b3")
        )
        + "}}}"
    ),
    "guaranteed-shelved": "{host1: {BRIDGES}, host2: {BRIDGES}, host3: {BRIDGES}}",
    "guaranteed-source-lost": (
        "{cell1: {hosts: {host1: {BRIDGES}, host4: {BRIDGES}, host5: {BRIDGES}}},"
        " cell2: {hosts: {host2: {BRIDGES}, host3: {BRIDGES}}}}"
    ),
    "guaranteed-two-cells": (
        "{cell1: {hosts: {host1: {BRIDGES}, host4: {BRIDGES}}}, cell2: {hosts: {host2: {BRIDGES}, host3: {BRIDGES}}}}"
    ),
}

_PARTS: Final = {
    "three-hosts": (_APART, _IMAGE),
    "volume-backed": (_APART, _VOLUME),
    "one-host": (_ONE, _IMAGE),
    "shared": (_SHARED, _IMAGE),
    "stopped": (_APART, f"state: stopped, {_IMAGE}"),
    "stopped-on-volume": (_APART, f"state: stopped, {_VOLUME}"),
    "many-disks": (_APART, _MANY),
    "shelved": (_APART, f"flavor: tiny, {_IMAGE}"),
    "shelved-on-volume": (_APART, f"flavor: tiny, state: stopped, {_VOLUME}"),
    "shelved-two-cells": (_CELLS, f"flavor: tiny, {_IMAGE}"),
    "shelved-on-volume-two-cells": (_CELLS, f"flavor: tiny, state: stopped, {_VOLUME}"),
    "two-cells": (_CELLS, _IMAGE),
    "two-cells-stopped": (_CELLS, f"state: stopped, {_MANY}"),
    "two-cells-on-volume": (_CELLS, _VOLUME),
    "three-cells": (_THREE, _IMAGE),
    "two-cells-by-image": (_ISOLATED, f"flavor: tiny, {_IMAGE}"),
    "two-cells-many-by-image": (_ISOLATED, _MANY),
    "two-cells-kept": (_CELLS, f"flavor: tiny, {_IMAGE}"),
    "source-lost": (_LOST, f"flavor: tiny, {_IMAGE}"),
    **{name: (hosts.replace("BRIDGES", _BRIDGES), _ASKING) for name, hosts in _GUARANTEED.items()},
}
"""The hosts, and the server; on the one host every move stays where its server is."""

BETWEEN: Final = (
    *("two-cells", "two-cells-stopped", "two-cells-on-volume"),
    *("two-cells-by-image", "two-cells-many-by-image", "two-cells-kept"),
    "source-lost",
)
"""The clouds in which moves lead into another cell: they run the kinds of flow that do, and no others.

In those by image no cell reaches the other's disks. The last two ask for the direct way, and their moves keep images.
"""

LOST: Final = ("source-lost", "guaranteed-source-lost")
"""Those in which the source has died, and a person has said so, when a flow begins that ends the move."""

SAMPLED: Final = ("three-cells",)
"""The clouds in which a move's alternates are in several other cells: they are sampled, and on no page."""

GUARANTEED: Final = tuple(_GUARANTEED)
"""The clouds whose server has ports that are guaranteed bandwidth and packet rates."""

SHELVING: Final = ("shelved", "shelved-on-volume", "shelved-two-cells", "shelved-on-volume-two-cells")
"""The clouds in which servers are shelved, unshelved, and deleted while they are shelved.

Those of two cells run the kinds of flow that lead a shelved server into another cell, and no others.
"""

CLOUDS: Final = tuple(name for name in _PARTS if name not in (*BETWEEN, *SAMPLED, *GUARANTEED, *SHELVING))
"""The clouds of one cell in which servers move from host to host."""

ALL: Final = (*CLOUDS, *SHELVING, *BETWEEN, *SAMPLED, *GUARANTEED)

SHELVED: Final = (*SHELVING, "guaranteed-shelved")
"""All clouds in which servers are shelved."""

KEPT: Final = ("two-cells-kept", *LOST)
"""The clouds whose moves keep images."""

_NETWORKS: Final = """
networks: {a: {physical_network: net-a}, b: {physical_network: net-b}}
qos: {gold: {egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}, old: {egress_kbps: 1000, ingress_kbps: 1000}}
"""

_TEXT: Final = """
hypervisor: sandbox
options: {allow_resize_to_same_host: SAME_HOST, cross_cell: CROSS, transfer: TRANSFER}
cells: CELLS
flavors:
  tiny: {vcpus: 1, memory_mb: 512, root_gb: 0, swap_mb: 1}
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  wide: {vcpus: 1, memory_mb: 512, root_gb: 1, ephemeral_gb: 1, swap_mb: 1}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 2, ephemeral_gb: 1, swap_mb: 2}
images: {base: {size_mb: 2}}
NETWORKS
servers:
  web: {FLAVORhost: host1, SERVER}
"""


def spec(name: str) -> cloud.Cloud:
    """The cloud of this name."""
    hosts, server = _PARTS[name]
    between = "cell2" in hosts
    cells = hosts if between else f"{{cell1: {{hosts: {hosts}}}}}"
    text = _TEXT.replace("CELLS", cells).replace("CROSS", str(between).lower()).replace("SERVER", server)
    text = text.replace("FLAVOR", "" if "flavor:" in server else "flavor: small, ")
    text = text.replace("TRANSFER", "direct" if name in KEPT else "auto")
    text = text.replace("NETWORKS", _NETWORKS if name in GUARANTEED else "")
    return cloud.parse_cloud(text.replace("SAME_HOST", str("one-host" in name).lower()), "the matrix's cloud")


def kinds_in(name: str) -> list[str]:
    """The kinds of flow that are run in this cloud, in the order of the registry."""
    records = list(map(kinds.of, registry.kinds()))
    if name in SHELVED:
        shelving = [kind for kind in records if kind.deletes or not kind.has_migration]
        return [kind.name for kind in shelving if kind.crosses_cells == (_PARTS[name][0] is _CELLS)]
    moving = [kind for kind in records if kind.has_migration and kind.elsewhere == (name in LOST)]
    return [kind.name for kind in moving if kind.crosses_cells == ("cell2" in _PARTS[name][0])]
