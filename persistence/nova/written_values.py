"""The kinds of values of a server that users can change: where a copy has them, and how another copy takes them over.

Rows that users removed are soft-deleted in the other copy, as Nova does it; only tags are deleted for good.

As in `late_writes`, the *source* is the copy from which changes are taken, and the *target* is the copy into which they
are written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceInfoCache,
    InstanceMetadata,
    Tag,
    VirtualInterface,
)
from droveway.persistence.nova.copies import Copy, Row
from droveway.persistence.times import utcnow

_COLUMNS: Final = {
    "name": ("display_name",),
    "description": ("display_description",),
    "hostname": ("hostname",),
    "access_ip_v4": ("access_ip_v4",),
    "access_ip_v6": ("access_ip_v6",),
    "lock": ("locked", "locked_by"),
}
_OF_VOLUME: Final = ("volume_id", "volume_size", "volume_type", "source_type", "snapshot_id")
"""The columns that Nova changes when a volume is swapped for another one.

The attachment changes too, but it is not carried over: it belongs to the host on which the volume is attached.
"""
_NO_ATTACHMENT: Final = {"attachment_id": None, "connection_info": None}


@dataclasses.dataclass(frozen=True, repr=False)
class Change:
    """Holds a change of one value in the target's copy; its rows may hold secrets."""

    kind: str
    name: str
    old: Row | None
    """The target's row at the comparison; None when it has no such value."""
    new: Row | None
    """The source's row; None when the value is to be removed from the target."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Holds the functions that handle one kind of values."""

    rows: Callable[[Copy], dict[str, Row]]
    """Returns name → row for all values of this kind in a copy."""
    value: Callable[[Row], Any]
    """Returns what is compared of such a row."""
    write: Callable[[orm.Session, str, Change], None]
    """Writes a change of a server's value, unless the value has changed since the comparison."""


def _server_rows(copy: Copy) -> dict[str, Row]:
    return {name: {column: copy.instance[column] for column in columns} for name, columns in _COLUMNS.items()}


def _write_server(session: orm.Session, server: str, change: Change) -> None:
    if change.old is not None and change.new is not None:
        is_as_compared = (getattr(Instance, name).is_not_distinct_from(old) for name, old in change.old.items())
        session.execute(
            sa.update(Instance)
            .where(Instance.uuid == server, Instance.deleted == 0, *is_as_compared)
            .values(change.new)
        )


def _rows_by(table: str, column: str) -> Callable[[Copy], dict[str, Row]]:
    def rows(copy: Copy) -> dict[str, Row]:
        return {row[column]: row for row in copy.rows[table]}

    return rows


def _write_metadata(session: orm.Session, server: str, change: Change) -> None:
    model = InstanceMetadata
    mine = (model.instance_uuid == server, model.key == change.name, model.deleted == 0)
    if change.old is None:
        _add(session, model, mine, change.new)
        return
    as_compared = (*mine, model.value.is_not_distinct_from(change.old["value"]))
    if change.new is None:
        _soft_delete(session, model, as_compared)
    else:
        session.execute(sa.update(model).where(*as_compared).values(value=change.new["value"]))


def _write_tag(session: orm.Session, server: str, change: Change) -> None:
    mine = (Tag.resource_id == server, Tag.tag == change.name)
    if change.new is None:
        session.execute(sa.delete(Tag).where(*mine))
    else:
        _add(session, Tag, mine, change.new)


def _volume_rows(copy: Copy) -> dict[str, Row]:
    return {row["uuid"]: row for row in copy.rows["block_device_mapping"] if row["destination_type"] == "volume"}


def _write_volume(session: orm.Session, server: str, change: Change) -> None:
    model = BlockDeviceMapping
    mine = (model.instance_uuid == server, model.uuid == change.name, model.deleted == 0)
    if change.old is None:
        # The unique key does not include `deleted`: a soft-deleted row of a volume that was detached would prevent the
        # insert when the volume is attached again.
        session.execute(
            sa.delete(model).where(model.instance_uuid == server, model.uuid == change.name, model.deleted != 0)
        )
        _add(session, model, mine, change.new and change.new | _NO_ATTACHMENT)
        return
    as_compared = (*mine, model.volume_id.is_not_distinct_from(change.old["volume_id"]))
    if change.new is None:
        _soft_delete(session, model, as_compared)
    else:
        taken = {name: change.new[name] for name in _OF_VOLUME} | _NO_ATTACHMENT
        session.execute(sa.update(model).where(*as_compared).values(taken))


def _write_delete_on_termination(session: orm.Session, server: str, change: Change) -> None:
    model = BlockDeviceMapping
    # A volume that is added or removed is written as a whole row, which includes its flag.
    if change.old is not None and change.new is not None:
        old = change.old["delete_on_termination"]
        session.execute(
            sa.update(model)
            .where(
                model.instance_uuid == server,
                model.uuid == change.name,
                model.deleted == 0,
                model.delete_on_termination.is_not_distinct_from(old),
            )
            .values(delete_on_termination=change.new["delete_on_termination"])
        )


def _write_interface(session: orm.Session, server: str, change: Change) -> None:
    model = VirtualInterface
    mine = (model.instance_uuid == server, model.uuid == change.name, model.deleted == 0)
    if change.new is None:
        _soft_delete(session, model, mine)
    else:
        _add(session, model, mine, change.new)


def _ports(row: Row) -> dict[str, Row]:
    return {port["id"]: port for port in json.loads(row["network_info"] or "[]")}


def _port_rows(copy: Copy) -> dict[str, Row]:
    return {name: port for row in copy.rows["instance_info_caches"] for name, port in _ports(row).items()}


def _write_port(session: orm.Session, server: str, change: Change) -> None:
    model = InstanceInfoCache
    found = session.execute(
        sa.select(model.id, model.network_info)
        .where(model.instance_uuid == server, model.deleted == 0)
        .with_for_update()
    ).first()
    if found is None:
        return
    ports = _ports({"network_info": found.network_info})
    if ports.get(change.name) == change.new:
        return
    ports.pop(change.name, None)
    if change.new is not None:
        ports[change.name] = change.new
    told = json.dumps(list(ports.values()))
    session.execute(sa.update(model).where(model.id == found.id).values(network_info=told))


def _add(session: orm.Session, model: Any, mine: Iterable[sa.ColumnElement[bool]], row: Row | None) -> None:
    """Insert the other copy's row, unless there is one already."""
    if row is not None and not session.scalar(sa.select(sa.exists().where(*mine))):
        session.execute(sa.insert(model).values({name: value for name, value in row.items() if name != "id"}))


def _soft_delete(session: orm.Session, model: Any, those: Iterable[sa.ColumnElement[bool]]) -> None:
    session.execute(sa.update(model).where(*those).values(deleted=model.id, deleted_at=utcnow()))


def _presence(_row: Row) -> Any:
    return True


KINDS: Final = {
    "server": Kind(_server_rows, dict, _write_server),
    "metadata": Kind(_rows_by("instance_metadata", "key"), lambda row: row["value"], _write_metadata),
    "tag": Kind(_rows_by("tags", "tag"), _presence, _write_tag),
    "volume": Kind(_volume_rows, lambda row: row["volume_id"], _write_volume),
    "delete_on_termination": Kind(
        _volume_rows, lambda row: bool(row["delete_on_termination"]), _write_delete_on_termination
    ),
    "interface": Kind(_rows_by("virtual_interfaces", "uuid"), _presence, _write_interface),
    "port": Kind(_port_rows, _presence, _write_port),
}
"""Name → kind, in the order in which changes are written."""
