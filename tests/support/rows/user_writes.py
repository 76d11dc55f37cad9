"""What a user may write at a server that waits between two cells, done to its rows as Nova does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm
from support.rows.whole_server import Filler

from droveway.persistence.nova.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceInfoCache,
    InstanceMetadata,
    Tag,
    VirtualInterface,
)
from droveway.persistence.nova.copies import Copy


def _set(**columns: Any) -> Callable[[orm.Session, str], None]:
    def act(session: orm.Session, server: str) -> None:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(columns))

    return act


def _add_key(session: orm.Session, server: str) -> None:
    mine = (InstanceMetadata.instance_uuid == server, InstanceMetadata.key == "key-2", InstanceMetadata.deleted == 0)
    if session.scalar(sa.select(InstanceMetadata.id).where(*mine)) is None:
        session.add(InstanceMetadata(instance_uuid=server, key="key-2", value="secret", deleted=0))


def _change_key(session: orm.Session, server: str) -> None:
    mine = (InstanceMetadata.instance_uuid == server, InstanceMetadata.key == "key-0", InstanceMetadata.deleted == 0)
    session.execute(sa.update(InstanceMetadata).where(*mine).values(value="secret"))


def _remove_key(session: orm.Session, server: str) -> None:
    mine = (InstanceMetadata.instance_uuid == server, InstanceMetadata.key == "key-1")
    session.execute(sa.update(InstanceMetadata).where(*mine).values(deleted=InstanceMetadata.id))


def _add_tag(session: orm.Session, server: str) -> None:
    session.merge(Tag(resource_id=server, tag="red"))


def _remove_tag(session: orm.Session, server: str) -> None:
    session.execute(sa.delete(Tag).where(Tag.resource_id == server, Tag.tag == "blue"))


def _attach(session: orm.Session, server: str) -> None:
    volume = f"{server[:-3]}b02"
    if session.scalar(sa.select(BlockDeviceMapping.id).where(BlockDeviceMapping.uuid == volume)) is None:
        names = {"uuid": volume, "volume_id": "attached", "destination_type": "volume", "deleted_at": None}
        Filler(session).add("block_device_mapping", instance_uuid=server, deleted=0, **names)


def _on_volume(server: str, name: str, **columns: Any) -> sa.Update:
    of_server = (BlockDeviceMapping.instance_uuid == server, BlockDeviceMapping.uuid == f"{server[:-3]}{name}")
    return sa.update(BlockDeviceMapping).where(*of_server).values(columns)


def _detach(session: orm.Session, server: str) -> None:
    session.execute(_on_volume(server, "b01", deleted=BlockDeviceMapping.id))


def _swap(session: orm.Session, server: str) -> None:
    session.execute(_on_volume(server, "b00", volume_id="swapped", volume_size=77, attachment_id="new"))


def _keep(session: orm.Session, server: str) -> None:
    session.execute(_on_volume(server, "b00", delete_on_termination=False))


def _lose_port(session: orm.Session, server: str) -> None:
    """A port that was deleted in Neutron, or detached."""
    port = f"{server[:-3]}c01"
    mine = (VirtualInterface.instance_uuid == server, VirtualInterface.uuid == port)
    session.execute(sa.update(VirtualInterface).where(*mine).values(deleted=VirtualInterface.id))
    cache = session.scalars(sa.select(InstanceInfoCache).where(InstanceInfoCache.instance_uuid == server)).one()
    cache.network_info = json.dumps([each for each in json.loads(cache.network_info or "[]") if each["id"] != port])


def _bring_port(session: orm.Session, server: str) -> None:
    port = f"{server[:-3]}c02"
    if session.scalar(sa.select(VirtualInterface.id).where(VirtualInterface.uuid == port)) is not None:
        return
    Filler(session).add("virtual_interfaces", instance_uuid=server, uuid=port, deleted=0, deleted_at=None)
    cache = session.scalars(sa.select(InstanceInfoCache).where(InstanceInfoCache.instance_uuid == server)).one()
    cache.network_info = json.dumps([*json.loads(cache.network_info or "[]"), {"id": port, "address": "fa:16:3e:02"}])


_OF: Final = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6a"
WRITES: Final[dict[str, tuple[Sequence[str], Callable[[orm.Session, str], None]]]] = {
    "rename": (["server:name"], _set(display_name="other")),
    "describe": (["server:description"], _set(display_description=None)),
    "change the host name": (["server:hostname"], _set(hostname="other")),
    "set an address of IPv4": (["server:access_ip_v4"], _set(access_ip_v4="192.0.2.9")),
    "set an address of IPv6": (["server:access_ip_v6"], _set(access_ip_v6="2001:db8::9")),
    "unlock": (["server:lock"], _set(locked=False, locked_by=None)),
    "lock as an administrator": (["server:lock"], _set(locked=True, locked_by="admin")),
    "add a key": (["metadata:key-2"], _add_key),
    "change a key": (["metadata:key-0"], _change_key),
    "remove a key": (["metadata:key-1"], _remove_key),
    "add a tag": (["tag:red"], _add_tag),
    "remove a tag": (["tag:blue"], _remove_tag),
    "attach a volume": ([f"volume:{_OF}b02", f"delete_on_termination:{_OF}b02"], _attach),
    "detach a volume": ([f"volume:{_OF}b01", f"delete_on_termination:{_OF}b01"], _detach),
    "swap a volume": ([f"volume:{_OF}b00"], _swap),
    "delete a volume with the server, or not": ([f"delete_on_termination:{_OF}b00"], _keep),
    "lose a port": ([f"interface:{_OF}c01", f"port:{_OF}c01"], _lose_port),
    "bring a port": ([f"interface:{_OF}c02", f"port:{_OF}c02"], _bring_port),
}
"""What it is → the keys of the values that change, and how; none hinders another."""


def write_all(session: orm.Session, server: str) -> None:
    """Do all of them that were not done; the last one of a value stands."""
    for _, act in WRITES.values():
        act(session, server)
        session.flush()


def shown(copy: Copy) -> dict[str, Any]:
    """What a user sees of all that: values themselves, not digests."""
    server, rows = copy.instance, copy.rows
    columns = ("display_name", "display_description", "hostname", "access_ip_v4", "access_ip_v6", "locked", "locked_by")
    return {
        "server": {name: server[name] for name in columns},
        "metadata": {row["key"]: row["value"] for row in rows["instance_metadata"]},
        "tags": sorted(row["tag"] for row in rows["tags"]),
        "volumes": {
            row["uuid"]: (row["volume_id"], row["volume_size"], row["delete_on_termination"], row["device_name"])
            for row in rows["block_device_mapping"]
        },
        "interfaces": sorted((row["uuid"], row["address"], row["tag"]) for row in rows["virtual_interfaces"]),
        "ports": [json.loads(row["network_info"]) for row in rows["instance_info_caches"]],
    }
