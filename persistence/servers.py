"""A server's rows in its cell: loading them, and the small tables that hang on them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import NotFound, ServerDeleted
from droveway.persistence import api, objects
from droveway.persistence.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceExtra,
    InstanceSystemMetadata,
    Migration,
)
from droveway.persistence.vm_states import TaskState, VmState


def live(session: orm.Session, server: str, *, deleting: bool = False) -> Instance:
    """The server's row, locked; raises `droveway.errors.ServerDeleted` when it is gone or being deleted.

    With ``deleting`` one that is being deleted will do.
    """
    row = session.scalar(sa.select(Instance).where(Instance.uuid == server).with_for_update())
    going = row is not None and row.task_state == TaskState.DELETING and not deleting
    if row is None or row.deleted or row.vm_state in (VmState.DELETED, VmState.SOFT_DELETED) or going:
        raise ServerDeleted(f"server {server} was deleted meanwhile")
    return row


def is_gone(session: orm.Session, server: str) -> bool:
    """Whether the cell has no live row of the server."""
    return session.scalar(sa.select(Instance.id).where(Instance.uuid == server, Instance.deleted == 0)) is None


def find(session: orm.Session, server: str) -> Instance:
    """The server's row whatever its state; raises NotFound."""
    row = session.scalar(sa.select(Instance).where(Instance.uuid == server, Instance.deleted == 0))
    if row is None:
        raise NotFound(f"server {server} is not in this cell: droveway server list shows the servers")
    return row


def extra_row(session: orm.Session, server: str) -> InstanceExtra:
    """The server's instance_extra row; raises NotFound."""
    row = session.scalar(
        sa.select(InstanceExtra).where(InstanceExtra.instance_uuid == server, InstanceExtra.deleted == 0)
    )
    if row is None:
        raise NotFound(f"server {server} has no instance_extra row: restore it before the server is moved")
    return row


def migration(session: orm.Session, move_id: str) -> Migration | None:
    """The migration row of a move, which has its uuid."""
    return session.scalar(sa.select(Migration).where(Migration.uuid == move_id, Migration.deleted == 0))


def the_migration(session: orm.Session, move_id: str) -> Migration:
    """The migration row of a move that must have one; raises NotFound."""
    row = migration(session, move_id)
    if row is None:
        raise NotFound(f"move {move_id} has no migration row in its cell: somebody removed it")
    return row


def flavors(row: InstanceExtra) -> dict[str, Any]:
    """What instance_extra.flavor holds: the Flavor objects cur, old and new."""
    found: dict[str, Any] = objects.decode(row.flavor or "{}")
    return found


def volumes(session: orm.Session, server: str) -> list[BlockDeviceMapping]:
    """The server's volumes, by device name."""
    return list(
        session.scalars(
            sa.select(BlockDeviceMapping)
            .where(
                BlockDeviceMapping.instance_uuid == server,
                BlockDeviceMapping.destination_type == "volume",
                BlockDeviceMapping.deleted == 0,
            )
            .order_by(BlockDeviceMapping.device_name, BlockDeviceMapping.id)
        )
    )


def swap_disk(session: orm.Session, server: str) -> BlockDeviceMapping | None:
    """The block device mapping of the server's swap disk, if it has one."""
    return session.scalar(
        sa.select(BlockDeviceMapping).where(
            BlockDeviceMapping.instance_uuid == server,
            BlockDeviceMapping.guest_format == "swap",
            BlockDeviceMapping.deleted == 0,
        )
    )


def set_system_metadata(session: orm.Session, server: str, key: str, value: str | None) -> None:
    """Set one value of the server's system metadata; None removes the row physically, as Nova does."""
    mine = (InstanceSystemMetadata.instance_uuid == server, InstanceSystemMetadata.key == key)
    if value is None:
        session.execute(sa.delete(InstanceSystemMetadata).where(*mine))
        return
    row = session.scalar(sa.select(InstanceSystemMetadata).where(*mine, InstanceSystemMetadata.deleted == 0))
    if row is None:
        session.add(InstanceSystemMetadata(instance_uuid=server, key=key, value=value, deleted=0))
    elif row.value != value:
        row.value = value


def request_spec(session: orm.Session, server: str) -> api.RequestSpec:
    """The server's request spec in the API database; raises NotFound."""
    row = session.scalar(sa.select(api.RequestSpec).where(api.RequestSpec.instance_uuid == server))
    if row is None:
        raise NotFound(f"server {server} has no request spec: restore it before the server is moved")
    return row


def flavor(session: orm.Session, name: str) -> dict[str, Any]:
    """The flavor of that name or flavorid in the API database as Nova's object; raises NotFound."""
    row = session.scalar(sa.select(api.Flavor).where(sa.or_(api.Flavor.name == name, api.Flavor.flavorid == name)))
    if row is None:
        raise NotFound(f"flavor {name} is unknown: droveway flavor list shows the flavors")
    specs = session.scalars(sa.select(api.FlavorExtraSpec).where(api.FlavorExtraSpec.flavor_id == row.id))
    return objects.flavor_object(row, {spec.key: spec.value or "" for spec in specs})
