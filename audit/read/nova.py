"""Reads Nova's API and cell databases into records: the columns that are compared, of rows that are not deleted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.audit.records import FLAVOR_COLUMNS, BlockDevice, Flavors, MappingRow, MigrationRow, Node, ServerRow
from droveway.errors import BadObject
from droveway.persistence.nova import api, cell, objects
from droveway.persistence.nova.cells import FENCE_KEY
from droveway.persistence.nova.usage import USAGE_COLUMNS

OLD_VM_STATE: Final = "old_vm_state"
SHELVED_IMAGE: Final = "shelved_image_id"
_AT_ONCE: Final = 500
"""How many names go into one query."""

_INSTANCE = cell.Instance
_EXTRA = cell.InstanceExtra


def mappings(session: orm.Session) -> tuple[MappingRow, ...]:
    """Return which cell each server is mapped to."""
    # A cell without a name, as nova-manage cell_v2 simple_cell_setup makes it, goes by its id.
    known = sa.case((api.CellMapping.name != "", api.CellMapping.name), else_=api.CellMapping.uuid)
    rows = session.execute(
        sa.select(api.InstanceMapping.instance_uuid, known, api.InstanceMapping.queued_for_delete)
        .select_from(api.InstanceMapping)
        .outerjoin(api.CellMapping, api.CellMapping.id == api.InstanceMapping.cell_id)
        .order_by(api.InstanceMapping.instance_uuid)
    )
    return tuple(MappingRow(server=server, cell=name, deleted=bool(gone)) for server, name, gone in rows)


def requests(session: orm.Session) -> dict[str, str]:
    """Return the flavorid in each server's request spec; empty when the spec cannot be read."""
    rows = session.execute(sa.select(api.RequestSpec.instance_uuid, api.RequestSpec.spec))
    return {server: _requested_flavor(spec) for server, spec in rows}


def servers(session: orm.Session, cell_name: str) -> tuple[ServerRow, ...]:
    """Return every live server of the cell."""
    columns = [getattr(_INSTANCE, name) for name in (*FLAVOR_COLUMNS, "project_id", "user_id", "availability_zone")]
    query = (
        sa.select(
            _INSTANCE.uuid,
            _INSTANCE.display_name,
            _INSTANCE.host,
            _INSTANCE.vm_state,
            _INSTANCE.task_state,
            _INSTANCE.power_state,
            _INSTANCE.hidden,
            _EXTRA.flavor,
            _EXTRA.migration_context,
            *columns,
        )
        .outerjoin(_EXTRA, sa.and_(_EXTRA.instance_uuid == _INSTANCE.uuid, _EXTRA.deleted == 0))
        .where(_INSTANCE.deleted == 0)
        .order_by(_INSTANCE.uuid)
    )
    metadata, volumes = _metadata(session), _volumes(session)
    return tuple(_server(row, cell_name, metadata, volumes) for row in session.execute(query))


def migrations(session: orm.Session, cell_name: str) -> tuple[MigrationRow, ...]:
    """Return every resize and cold migration of the cell that has a uuid and is not soft-deleted."""
    model = cell.Migration
    rows = session.execute(
        sa.select(model.id, model.uuid, model.instance_uuid, model.status, model.source_compute, model.dest_compute)
        .where(model.deleted == 0, model.migration_type.in_(("resize", "migration")), model.uuid.is_not(None))
        .order_by(model.id)
    )
    return tuple(
        MigrationRow(
            cell=cell_name,
            id=row.id,
            uuid=row.uuid,
            server=row.instance_uuid or "",
            status=row.status or "",
            source=row.source_compute,
            destination=row.dest_compute,
        )
        for row in rows
    )


def nodes(session: orm.Session, cell_name: str) -> tuple[Node, ...]:
    """Return every compute node of the cell."""
    rows = session.scalars(
        sa.select(cell.ComputeNode)
        .where(cell.ComputeNode.deleted == 0, cell.ComputeNode.uuid.is_not(None))
        .order_by(cell.ComputeNode.host)
    )
    return tuple(
        Node(
            cell=cell_name,
            host=row.host or "",
            uuid=row.uuid or "",
            used={name: getattr(row, name) for name in USAGE_COLUMNS},
            memory_mb=row.memory_mb,
            local_gb=row.local_gb,
        )
        for row in rows
    )


def actions(session: orm.Session, requests: Collection[str]) -> dict[str, bool]:
    """Return the requests that have an instance action in the cell, each with whether the action has failed."""
    action, asked, found = cell.InstanceAction, sorted(requests), dict[str, bool]()
    for first in range(0, len(asked), _AT_ONCE):
        some = action.request_id.in_(asked[first : first + _AT_ONCE])
        for row in session.execute(sa.select(action.request_id, action.message).where(some)):
            found[str(row.request_id)] = row.message is not None
    return found


def down(session: orm.Session) -> frozenset[str]:
    """Return the hosts that are declared down."""
    return frozenset(
        session.scalars(
            sa.select(cell.Service.host).where(
                cell.Service.forced_down.is_(True), cell.Service.deleted == 0, cell.Service.host.is_not(None)
            )
        )
    )


def _server(
    row: sa.Row[Any], cell_name: str, metadata: dict[tuple[str, str], str], volumes: dict[str, list[BlockDevice]]
) -> ServerRow:
    broken, context = "", None
    flavors: Flavors = {}
    try:
        flavors = _flavors(row.flavor)
        context = _context(row.migration_context)
    except BadObject as error:
        broken = str(error)
    return ServerRow(
        cell=cell_name,
        uuid=row.uuid,
        name=row.display_name or "",
        host=row.host,
        vm_state=row.vm_state or "",
        task_state=row.task_state,
        power_state=row.power_state,
        hidden=bool(row.hidden),
        columns={name: getattr(row, name) for name in FLAVOR_COLUMNS},
        flavors=flavors,
        context=context,
        old_vm_state=metadata.get((row.uuid, OLD_VM_STATE)),
        fence=metadata.get((row.uuid, FENCE_KEY)),
        volumes=tuple(volumes.get(row.uuid, ())),
        broken=broken,
        project=row.project_id or "",
        user=row.user_id or "",
        zone=row.availability_zone,
        shelved_image=metadata.get((row.uuid, SHELVED_IMAGE)) or None,
    )


def _metadata(session: orm.Session) -> dict[tuple[str, str], str]:
    """Return the system metadata that a move writes and removes again."""
    model = cell.InstanceSystemMetadata
    rows = session.execute(
        sa.select(model.instance_uuid, model.key, model.value).where(
            model.deleted == 0, model.key.in_((OLD_VM_STATE, FENCE_KEY, SHELVED_IMAGE))
        )
    )
    return {(server, key): value or "" for server, key, value in rows}


def _volumes(session: orm.Session) -> dict[str, list[BlockDevice]]:
    model = cell.BlockDeviceMapping
    rows = session.execute(
        sa.select(model.instance_uuid, model.volume_id, model.attachment_id, model.boot_index)
        .where(
            model.deleted == 0,
            model.destination_type == "volume",
            model.volume_id.is_not(None),
            model.instance_uuid.is_not(None),
        )
        .order_by(model.id)
    )
    found: dict[str, list[BlockDevice]] = {}
    for server, volume, attachment, boot_index in rows:
        # The columns instance_uuid and volume_id may be NULL. The query leaves such rows out.
        found.setdefault(str(server), []).append(
            BlockDevice(volume=str(volume), attachment=attachment, boot=boot_index == 0)
        )
    return found


def _flavors(text: str | None) -> Flavors:
    if not text:
        raise BadObject("The server has no flavor in instance_extra; restore the row.")
    stored = objects.decode(text)
    return {slot: objects.flavor_data(stored[slot]) if stored.get(slot) else None for slot in ("cur", "old", "new")}


def _context(text: str | None) -> int | None:
    packed = objects.decode(text) if text else None
    if not packed:
        return None
    return int(objects.unpack(packed, "MigrationContext").data["migration_id"])


def _requested_flavor(spec: str) -> str:
    try:
        request = objects.unpack(objects.decode(spec), "RequestSpec").data
        return str(objects.flavor_data(request["flavor"])["flavorid"])
    except (BadObject, KeyError):
        # Nova cannot read such an object either. The audit goes on: the empty answer becomes a finding.
        return ""
