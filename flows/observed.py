"""Reads once, when a step begins, what its checks compare of the server's rows in the cell."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import sqlalchemy as sa

from droveway.persistence.nova import evacuations
from droveway.persistence.nova.cell import BlockDeviceMapping, Instance, InstanceAction, InstanceExtra, Migration

_ROWS: Final = (
    sa.select(
        Instance.host,
        Instance.task_state,
        Instance.vm_state,
        Migration.id,
        Migration.status,
        Migration.dest_compute,
        evacuations.made_since(Instance.uuid, Migration.id),
        sa.exists().where(
            InstanceAction.instance_uuid == Instance.uuid,
            InstanceAction.request_id == sa.bindparam("request"),
            InstanceAction.deleted == 0,
        ),
        InstanceExtra.id,
        InstanceExtra.flavor,
        InstanceExtra.migration_context.is_not(None),
        Instance.hidden,
        BlockDeviceMapping.volume_id,
        BlockDeviceMapping.attachment_id,
    )
    .select_from(Instance)
    .outerjoin(Migration, sa.and_(Migration.uuid == sa.bindparam("move"), Migration.deleted == 0))
    .outerjoin(InstanceExtra, sa.and_(InstanceExtra.instance_uuid == Instance.uuid, InstanceExtra.deleted == 0))
    .outerjoin(
        BlockDeviceMapping,
        sa.and_(
            BlockDeviceMapping.instance_uuid == Instance.uuid,
            BlockDeviceMapping.destination_type == "volume",
            BlockDeviceMapping.deleted == 0,
        ),
    )
    .where(Instance.uuid == sa.bindparam("server"), Instance.deleted == 0)
)
"""One row for each volume, or one without any."""


class Observed(NamedTuple):
    """Holds what the rows of a live server said, and those of its move."""

    host: str | None
    task_state: str | None
    vm_state: str | None
    migration: int | None
    """Identifies the move's migration; None while it has none."""
    status: str | None
    """Repeats the migration's status."""
    destination: str | None
    """Names the host that the migration leads to."""
    evacuated: bool
    """Tells that Nova evacuates the server, or has done so since the migration was made."""
    begun: bool
    """Tells that the rows have the flow's instance action: the first step that writes rows inserts the action."""
    extra: int | None
    """Identifies the server's instance_extra; None where somebody removed it."""
    flavor: str | None
    """Holds the flavors cur, old and new, as JSON of instance_extra."""
    traces: bool
    """Tells that instance_extra has a migration context, as between the claim and the end of a move."""
    hidden: bool | None
    """Tells that this copy of the server's rows is hidden, so that Nova's API lists no server for it."""
    attached: Mapping[str, str] = MappingProxyType({})
    """Names the attachment of each of the server's volumes."""


def observe(connection: sa.Connection, server: str, move: str, request: str) -> Observed | None:
    """Read the rows of the server and its move; None for a server that is gone.

    ``request`` is the request id of the flow's instance action.
    """
    rows = connection.execute(_ROWS, {"server": server, "move": move, "request": request}).all()
    if not rows:
        return None
    *columns, _volume, _attachment = rows[0]
    found = Observed(*columns)
    evacuating = evacuations.is_under_way(found.task_state)
    return found._replace(
        evacuated=found.migration is not None and (evacuating or found.evacuated),
        attached={row.volume_id: row.attachment_id or "" for row in rows if row.volume_id is not None},
    )
