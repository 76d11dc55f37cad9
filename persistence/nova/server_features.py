"""Reads what a server has besides CPUs, memory, disks and ports, and what its image requires."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova import objects, servers
from droveway.persistence.nova.cell import Instance, InstanceExtra, InstanceSystemMetadata, PciDevice, ShareMapping

_IMAGE: Final = "image_"
_MANDATORY: Final = "image_img_config_drive", "mandatory"

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_EXTRA: Final = sa.select(
    InstanceExtra.numa_topology, InstanceExtra.pci_requests, InstanceExtra.resources, InstanceExtra.vpmems
).where(InstanceExtra.instance_uuid == _SERVER, InstanceExtra.deleted == 0)
_DEVICES: Final = (
    sa.select(sa.func.count()).select_from(PciDevice).where(PciDevice.instance_uuid == _SERVER, PciDevice.deleted == 0)
)
_SHARES: Final = sa.select(sa.func.count()).select_from(ShareMapping).where(ShareMapping.instance_uuid == _SERVER)
_CONFIG_DRIVE: Final = sa.select(Instance.config_drive).where(Instance.uuid == _SERVER, Instance.deleted == 0)
_METADATA: Final = sa.select(InstanceSystemMetadata.key, InstanceSystemMetadata.value).where(
    InstanceSystemMetadata.instance_uuid == _SERVER, InstanceSystemMetadata.deleted == 0
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """Holds special properties of a server, read from its rows.

    The fields about the image are as they were when the server was built, since Nova keeps them with the server.
    """

    shares: int = 0
    """How many shares of Manila the server has attached (`share_mapping`)."""
    numa: bool = False
    """Whether the server has a NUMA topology: NUMA cells, pinned CPUs or large pages."""
    pci: bool = False
    """Whether the server has, or asks for, PCI devices."""
    resources: bool = False
    """Whether Nova assigned parts of the host to this server alone, such as a namespace of persistent memory."""
    config_drive: bool = False
    """Whether the server has a config drive: a disk with the metadata and user data that it was built with."""
    shelved_image: str | None = None
    """The id of the image with a shelved server's root disk; None when no image is named."""
    min_ram_mb: int = 0
    min_disk_gb: int = 0
    image_bytes: int = 0
    image_properties: Mapping[str, str] = dataclasses.field(default_factory=dict)


def features(api: orm.Session, cell: orm.Session, server: str) -> Features:
    """Read the server's features in the API database and in its cell."""
    mine = {"server": server}
    extra = cell.execute(_EXTRA, mine).first()
    metadata = {key: value or "" for key, value in cell.execute(_METADATA, mine)}
    return Features(
        shares=cell.scalar(_SHARES, mine) or 0,
        numa=extra is not None and _says_something(extra.numa_topology),
        pci=bool(cell.scalar(_DEVICES, mine)) or (extra is not None and _says_something(extra.pci_requests)),
        resources=extra is not None and any(map(_says_something, (extra.resources, extra.vpmems))),
        config_drive=bool(cell.scalar(_CONFIG_DRIVE, mine)) or _MANDATORY in metadata.items(),
        shelved_image=metadata.get(servers.SHELVED_IMAGE) or None,
        min_ram_mb=_number(metadata.get("image_min_ram")),
        min_disk_gb=_number(metadata.get("image_min_disk")),
        image_bytes=_image_bytes(api, server),
        image_properties={key.removeprefix(_IMAGE): value for key, value in metadata.items() if key[:6] == _IMAGE},
    )


def _says_something(text: str | None) -> bool:
    """Tell whether a JSON column holds something: not NULL, null, an empty list or a list object without entries."""
    found = objects.decode(text) if text else None
    if isinstance(found, dict) and "objects" in found.get("nova_object.data", {}):
        return bool(found["nova_object.data"]["objects"])
    return bool(found)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _image_bytes(api: orm.Session, server: str) -> int:
    """Return the image's size in bytes, which only the request spec has; 0 when it has none."""
    spec = objects.decode(servers.request_spec(api, server).spec)
    image = spec.get("nova_object.data", {}).get("image") or {}
    return int(image.get("nova_object.data", {}).get("size") or 0)
