"""The clouds of the crash matrix: what its server is made of, and which hosts it can go to."""

from __future__ import annotations

from typing import Final

from droveway.lab import cloud

_APART: Final = "{host1: {}, host2: {}, host3: {}}"
_ONE: Final = "{host1: {same_host_cold_migrate: true}}"
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
}
"""The hosts, and the server; on the one host every move stays where its server is."""

CLOUDS: Final = tuple(_PARTS)

_TEXT: Final = """
hypervisor: sandbox
options: {allow_resize_to_same_host: SAME_HOST}
cells: {cell1: {hosts: HOSTS}}
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
    text = _TEXT.replace("HOSTS", hosts).replace("SERVER", server)
    text = text.replace("FLAVOR", "" if "flavor:" in server else "flavor: small, ")
    return cloud.parse_cloud(text.replace("SAME_HOST", str(name == "one-host").lower()), "the matrix's cloud")
