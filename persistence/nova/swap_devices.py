"""Changes the block device mapping of a server's swap disk when its flavor changes."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.compare_and_swap import compare_and_swap
from droveway.persistence.nova import servers
from droveway.persistence.nova.cell import BlockDeviceMapping
from droveway.persistence.times import utcnow


def follow_flavor(session: orm.Session, server: str, old_mb: int, new_mb: int, *, back: bool) -> None:
    """Add, resize or soft-delete the swap disk's row for the new flavor's size; sizes are in MiB, 0 is no swap disk.

    This is what Nova's `_update_bdm_for_swap_to_finish_resize` does.  ``back`` undoes an earlier change: the row that
    was soft-deleted then becomes live again, instead of a new one, so that the server is as it was.  A repeated call
    changes nothing.
    """
    row = servers.swap_disk(session, server)
    if not new_mb:
        if row is not None:
            row.deleted, row.deleted_at = row.id, utcnow()
    elif row is not None:
        compare_and_swap(session, row, volume_size=(old_mb, new_mb))
    elif not (back and _revive(session, server, new_mb)):
        session.add(_blank(server, new_mb))
    session.flush()


def _revive(session: orm.Session, server: str, size_mb: int) -> bool:
    """Undo the soft-delete of the newest swap row of this size; return False when there is none."""
    row = session.scalar(
        sa.select(BlockDeviceMapping)
        .where(
            BlockDeviceMapping.instance_uuid == server,
            BlockDeviceMapping.guest_format == "swap",
            BlockDeviceMapping.volume_size == size_mb,
            BlockDeviceMapping.deleted != 0,
        )
        .order_by(BlockDeviceMapping.id.desc())
        .limit(1)
    )
    if row is None:
        return False
    row.deleted, row.deleted_at = 0, None
    return True


def _blank(server: str, size_mb: int) -> BlockDeviceMapping:
    """Make the row of a swap disk as Nova does; it has no device name, which is given when the guest is defined."""
    return BlockDeviceMapping(
        instance_uuid=server,
        uuid=str(uuid.uuid4()),
        source_type="blank",
        destination_type="local",
        guest_format="swap",
        device_type="disk",
        volume_size=size_mb,
        delete_on_termination=True,
        boot_index=-1,
        no_device=False,
        deleted=0,
    )
