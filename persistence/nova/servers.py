"""Reads a server's rows in its cell and in the API database, and writes its system metadata.

A step of a move reads the columns that it needs as `Columns`: to load whole rows of these wide tables would take
several times as long.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import NotFound, ServerDeleted
from droveway.persistence.compare_and_swap import Columns
from droveway.persistence.database import Executor
from droveway.persistence.nova import api, objects
from droveway.persistence.nova.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceExtra,
    InstanceSystemMetadata,
    Migration,
)
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.persistence.times import utcnow

SHELVED_IMAGE: Final = "shelved_image_id"
"""The key of a shelved server's system metadata that names the image which holds its root disk."""


@dataclass
class ServerColumns(Columns):
    """Holds the columns of a server's own row that the steps of a move compare or change."""

    model: ClassVar[Any] = Instance

    uuid: str
    host: str | None
    node: str | None
    compute_id: int | None
    vm_state: str | None
    task_state: str | None
    power_state: int | None
    progress: int | None
    launched_at: dt.datetime | None
    launched_on: str | None
    availability_zone: str | None
    instance_type_id: int | None
    memory_mb: int | None
    vcpus: int | None
    root_gb: int | None
    ephemeral_gb: int | None
    hidden: bool | None
    deleted: int | None


@dataclass
class ExtraColumns(Columns):
    """Holds the columns of a server's instance_extra row that the steps of a move compare or change."""

    model: ClassVar[Any] = InstanceExtra

    instance_uuid: str
    flavor: str | None
    migration_context: str | None


@dataclass
class MigrationColumns(Columns):
    """Holds the columns of a migration's row that the steps of its move compare or change."""

    model: ClassVar[Any] = Migration

    uuid: str | None
    status: str | None
    source_compute: str | None
    dest_compute: str | None
    dest_node: str | None
    dest_compute_id: int | None
    dest_host: str | None
    cross_cell_move: bool | None


_Server = TypeVar("_Server", Instance, ServerColumns)

# Built once: to build a statement costs as much as to run it, and every step of a move runs some of these.
_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_LIVE: Final = sa.select(Instance).where(Instance.uuid == _SERVER).with_for_update()
_GOING: Final = sa.select(Instance.deleted, Instance.vm_state, Instance.task_state).where(Instance.uuid == _SERVER)
_ID: Final = sa.select(Instance.id).where(Instance.uuid == _SERVER, Instance.deleted == 0)
_FOUND: Final = sa.select(Instance).where(Instance.uuid == _SERVER, Instance.deleted == 0)
_OF_EXTRA: Final = (InstanceExtra.instance_uuid == _SERVER, InstanceExtra.deleted == 0)
_EXTRA: Final = sa.select(InstanceExtra).where(*_OF_EXTRA)
_OF_MOVE: Final = (Migration.uuid == sa.bindparam("move"), Migration.deleted == 0)
_MIGRATION: Final = sa.select(Migration).where(*_OF_MOVE)
_LIVE_COLUMNS: Final = ServerColumns.selected().where(Instance.uuid == _SERVER).with_for_update()
_EXTRA_COLUMNS: Final = ExtraColumns.selected().where(*_OF_EXTRA)
_MIGRATION_COLUMNS: Final = MigrationColumns.selected().where(*_OF_MOVE)
_VOLUMES: Final = (
    sa.select(BlockDeviceMapping)
    .where(
        BlockDeviceMapping.instance_uuid == _SERVER,
        BlockDeviceMapping.destination_type == "volume",
        BlockDeviceMapping.deleted == 0,
    )
    .order_by(BlockDeviceMapping.device_name, BlockDeviceMapping.id)
)
_ATTACHED: Final = (
    sa.select(
        BlockDeviceMapping.volume_id,
        BlockDeviceMapping.attachment_id,
        BlockDeviceMapping.device_name,
        BlockDeviceMapping.boot_index,
        BlockDeviceMapping.id,
    )
    .select_from(Instance)
    .outerjoin(
        BlockDeviceMapping,
        sa.and_(
            BlockDeviceMapping.instance_uuid == Instance.uuid,
            BlockDeviceMapping.destination_type == "volume",
            BlockDeviceMapping.deleted == 0,
        ),
    )
    .where(Instance.uuid == _SERVER, Instance.deleted == 0)
    .order_by(BlockDeviceMapping.device_name, BlockDeviceMapping.id)
)
"""Selects a row for each volume of a live server, or one row without a volume when it has none."""
_METADATA: Final = (
    InstanceSystemMetadata.instance_uuid == _SERVER,
    InstanceSystemMetadata.key == sa.bindparam("named"),
)
_METADATA_ROW: Final = sa.select(InstanceSystemMetadata.id, InstanceSystemMetadata.value).where(
    *_METADATA, InstanceSystemMetadata.deleted == 0
)
_ALL_METADATA: Final = sa.select(InstanceSystemMetadata.key, InstanceSystemMetadata.value).where(
    InstanceSystemMetadata.instance_uuid == _SERVER, InstanceSystemMetadata.deleted == 0
)
_ADD_METADATA: Final = sa.insert(InstanceSystemMetadata)
_CHANGE_METADATA: Final = (
    sa.update(InstanceSystemMetadata)
    .where(InstanceSystemMetadata.id == sa.bindparam("row"))
    .values(value=sa.bindparam("becomes"), updated_at=sa.bindparam("now"))
)
_REMOVE_METADATA: Final = sa.delete(InstanceSystemMetadata).where(*_METADATA)
_REQUEST_SPEC: Final = sa.select(api.RequestSpec).where(api.RequestSpec.instance_uuid == _SERVER)
_FLAVOR: Final = sa.select(api.Flavor).where(
    sa.or_(api.Flavor.name == sa.bindparam("named"), api.Flavor.flavorid == sa.bindparam("named"))
)
_EXTRA_SPECS: Final = sa.select(api.FlavorExtraSpec.key, api.FlavorExtraSpec.value).where(
    api.FlavorExtraSpec.flavor_id == sa.bindparam("flavor")
)


def live(session: orm.Session, server: str, *, deleting: bool = False) -> Instance:
    """Return the server's row, locked; raise `droveway.errors.ServerDeleted` when it is gone or being deleted.

    With ``deleting`` a server whose task_state is `deleting` is returned too.
    """
    return _require_live(session.scalar(_LIVE, {"server": server}), server, deleting=deleting)


def live_columns(session: orm.Session, server: str, *, deleting: bool = False) -> ServerColumns:
    """Do the same as `live`, but read only the columns that a move is about."""
    found = session.connection().execute(_LIVE_COLUMNS, {"server": server}).first()
    return _require_live(None if found is None else ServerColumns(*found), server, deleting=deleting)


def _require_live(row: _Server | None, server: str, *, deleting: bool) -> _Server:
    if row is None or _is_deleted_or_deleting(row.deleted, row.vm_state, row.task_state, deleting=deleting):
        raise ServerDeleted(f"server {server} was deleted meanwhile")
    return row


def is_deleted_or_deleting(connection: Executor, server: str, *, deleting: bool = False) -> bool:
    """Tell whether the server has no row, is deleted, or is being deleted.

    A server that its user deleted so that it can be restored (Nova's ``reclaim_instance_interval``) is not gone.

    With ``deleting`` a server whose task_state is `deleting` does not count.  These are the cases in which `live`
    raises.  Nothing is locked, so the answer may be out of date at once.
    """
    found = connection.execute(_GOING, {"server": server}).first()
    return found is None or _is_deleted_or_deleting(*found, deleting=deleting)


def _is_deleted_or_deleting(
    deleted: int | None, vm_state: str | None, task_state: str | None, *, deleting: bool
) -> bool:
    gone = bool(deleted) or vm_state == VmState.DELETED
    return gone or (task_state == TaskState.DELETING and not deleting)


def is_gone(session: orm.Session, server: str) -> bool:
    """Tell whether the cell has no live row of the server."""
    return session.scalar(_ID, {"server": server}) is None


def find(session: orm.Session, server: str) -> Instance:
    """Return the server's live row, whatever its state; raise `droveway.errors.NotFound` when there is none."""
    row = session.scalar(_FOUND, {"server": server})
    if row is None:
        raise NotFound(f"server {server} is not in this cell: droveway server list shows the servers")
    return row


def extra_row(session: orm.Session, server: str) -> InstanceExtra:
    """Return the server's instance_extra row; raise `droveway.errors.NotFound` when there is none."""
    row = session.scalar(_EXTRA, {"server": server})
    if row is None:
        raise _no_extra(server)
    return row


def extra_columns(session: orm.Session, server: str) -> ExtraColumns:
    """Do the same as `extra_row`, but read only the columns that a move is about."""
    found = session.connection().execute(_EXTRA_COLUMNS, {"server": server}).first()
    if found is None:
        raise _no_extra(server)
    return ExtraColumns(*found)


def _no_extra(server: str) -> NotFound:
    return NotFound(f"server {server} has no instance_extra row: restore it before the server is moved")


def migration(session: orm.Session, move_id: str) -> Migration | None:
    """Return the migration row of a move, whose uuid is the move's id; None when there is none."""
    return session.scalar(_MIGRATION, {"move": move_id})


def the_migration(session: orm.Session, move_id: str) -> Migration:
    """Return the migration row of a move; raise `droveway.errors.NotFound` when there is none."""
    row = migration(session, move_id)
    if row is None:
        raise _no_migration(move_id)
    return row


def migration_columns(session: orm.Session, move_id: str) -> MigrationColumns:
    """Do the same as `the_migration`, but read only the columns that a move is about."""
    found = session.connection().execute(_MIGRATION_COLUMNS, {"move": move_id}).first()
    if found is None:
        raise _no_migration(move_id)
    return MigrationColumns(*found)


def _no_migration(move_id: str) -> NotFound:
    return NotFound(f"move {move_id} has no migration row in its cell: somebody removed it")


def flavors(row: InstanceExtra | ExtraColumns) -> dict[str, Any]:
    """Return the value of instance_extra.flavor: the Flavor objects ``cur``, ``old`` and ``new``, each may be None."""
    found: dict[str, Any] = objects.decode(row.flavor or "{}")
    return found


def volumes(session: orm.Session, server: str) -> list[BlockDeviceMapping]:
    """Return the block device mappings of the server's volumes, in the order of their device names."""
    return list(session.scalars(_VOLUMES, {"server": server}))


class Attached(NamedTuple):
    """Holds a volume of a server, as its block device mapping names it."""

    volume: str
    attachment: str
    device: str
    boot: bool


def attached(connection: Executor, server: str) -> list[Attached] | None:
    """Return the server's volumes, in the order of their device names.

    Returns None when the cell has no live row of the server.
    """
    rows = connection.execute(_ATTACHED, {"server": server}).all()
    if not rows:
        return None
    return [
        Attached(row.volume_id or "", row.attachment_id or "", row.device_name or "", row.boot_index == 0)
        for row in rows
        if row.id is not None
    ]


def swap_disk(session: orm.Session, server: str) -> BlockDeviceMapping | None:
    """Return the block device mapping of the server's swap disk; None when it has none."""
    return session.scalar(
        sa.select(BlockDeviceMapping).where(
            BlockDeviceMapping.instance_uuid == server,
            BlockDeviceMapping.guest_format == "swap",
            BlockDeviceMapping.deleted == 0,
        )
    )


def system_metadata(session: orm.Session, server: str) -> dict[str, str]:
    """Read all of the server's system metadata."""
    found = session.connection().execute(_ALL_METADATA, {"server": server})
    return {row.key: row.value or "" for row in found}


def set_system_metadata(session: orm.Session, server: str, key: str, value: str | None) -> None:
    """Set one value of the server's system metadata; None deletes the row for good, as Nova does."""
    mine = {"server": server, "named": key}
    # The row refers to the server's row, which this transaction may have added.
    session.flush()
    connection = session.connection()
    if value is None:
        connection.execute(_REMOVE_METADATA, mine)
        return
    row = connection.execute(_METADATA_ROW, mine).first()
    if row is None:
        connection.execute(_ADD_METADATA, {"instance_uuid": server, "key": key, "value": value, "deleted": 0})
    elif row.value != value:
        connection.execute(_CHANGE_METADATA, {"row": row.id, "becomes": value, "now": utcnow()})


def request_spec(session: orm.Session, server: str) -> api.RequestSpec:
    """Return the server's request spec in the API database; raise `droveway.errors.NotFound` when there is none."""
    row = session.scalar(_REQUEST_SPEC, {"server": server})
    if row is None:
        raise NotFound(f"server {server} has no request spec: restore it before the server is moved")
    return row


def flavor(session: orm.Session, name: str) -> dict[str, Any]:
    """Return the flavor of this name or flavorid in the API database, as Nova's Flavor object.

    Raises `droveway.errors.NotFound` when there is none.
    """
    row = session.scalar(_FLAVOR, {"named": name})
    if row is None:
        raise NotFound(f"flavor {name} is unknown: droveway flavor list shows the flavors")
    specs = session.execute(_EXTRA_SPECS, {"flavor": row.id})
    return objects.flavor_object(row, {key: value or "" for key, value in specs})
