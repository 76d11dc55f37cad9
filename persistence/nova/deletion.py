"""Deletes a server's rows as Nova does: they are soft-deleted, and stay as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova import api, cell, usage
from droveway.persistence.nova.cells import FENCE_KEY
from droveway.persistence.nova.vm_states import PowerState, VmState
from droveway.persistence.times import utcnow

# The tables that Nova soft-deletes with a server.  Its actions are not among them: they stay readable.
_DEPENDENTS: Final[tuple[Any, ...]] = (
    cell.InstanceExtra,
    cell.InstanceInfoCache,
    cell.InstanceMetadata,
    cell.InstanceSystemMetadata,
    cell.BlockDeviceMapping,
    cell.VirtualInterface,
    cell.InstanceFault,
    cell.InstanceIdMapping,
    cell.SecurityGroupInstanceAssociation,
    cell.Migration,
)


def remove_from_cell(session: orm.Session, server: str, reserved: Mapping[str, usage.Usage] | None = None) -> None:
    """Soft-delete the server's rows as Nova does, and compute the usage of its host anew.

    Nothing happens when they are soft-deleted already.  The fence of the flow that calls this stays: the conductor that
    raised it drops it.  ``reserved`` is explained at `usage.recompute`.
    """
    row = session.scalar(sa.select(cell.Instance).where(cell.Instance.uuid == server, cell.Instance.deleted == 0))
    if row is None:
        return
    now = utcnow()
    row.vm_state, row.task_state, row.power_state = VmState.DELETED, None, PowerState.NOSTATE
    row.terminated_at = now
    row.deleted, row.deleted_at = row.id, now
    for model in _DEPENDENTS:
        of = model.uuid if model is cell.InstanceIdMapping else model.instance_uuid
        query = sa.select(model).where(of == server, model.deleted == 0)
        if model is cell.InstanceSystemMetadata:
            query = query.where(model.key != FENCE_KEY)
        for dependent in session.scalars(query):
            dependent.deleted, dependent.deleted_at = dependent.id, now
    session.execute(sa.delete(cell.Tag).where(cell.Tag.resource_id == server))
    session.execute(sa.delete(cell.ConsoleAuthToken).where(cell.ConsoleAuthToken.instance_uuid == server))
    usage.recompute(session, row.host, reserved=reserved)


def remove_from_api(session: orm.Session, server: str) -> None:
    """Delete the server's request spec and group memberships, and set `queued_for_delete` in its mapping.

    Safe to repeat.
    """
    session.execute(sa.delete(api.RequestSpec).where(api.RequestSpec.instance_uuid == server))
    session.execute(sa.delete(api.InstanceGroupMember).where(api.InstanceGroupMember.instance_uuid == server))
    session.execute(
        sa.update(api.InstanceMapping)
        .where(api.InstanceMapping.instance_uuid == server)
        .values(queued_for_delete=True, updated_at=utcnow())
    )
