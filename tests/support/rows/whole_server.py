"""Fills every table of a cell that names a server, every column with a value, and reads the rows back as they stand."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova import cell

Row = dict[str, Any]

SERVER: Final = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6ad01"
OTHER: Final = "77777777-2ee8-4b0d-9e2c-6b2d60f6ad02"
PROJECT: Final = "a-project"
TABLES: Final = cell.CellBase.metadata.tables
CHILDREN: Final = (
    "instance_extra",
    "instance_info_caches",
    "instance_metadata",
    "instance_system_metadata",
    "block_device_mapping",
    "virtual_interfaces",
    "instance_actions",
    "instance_faults",
    "migrations",
)
MANY: Final = ("instance_metadata", "instance_system_metadata", "block_device_mapping", "virtual_interfaces")
LEFT_OUT: Final = {
    "instances": {"id", "compute_id", "host", "node", "hidden", "power_state", "task_state"},
    "instance_extra": {"id", "migration_context"},
    "migrations": {"id", "dest_compute_id"},
}
"""By hand, as the flows have it: what a copy does not have from the other one."""

_NUMBERS: Final = itertools.count(1)
_THEN: Final = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - Nova's columns are naive


class Filler:
    """Puts whole servers into a cell; no two values are the same where there may be many."""

    def __init__(self, session: orm.Session) -> None:
        self._session = session

    def fill(self, server: str) -> None:
        """One server with two rows in most tables, and soft-deleted rows beside them."""
        self.add("instances", uuid=server, deleted=0, deleted_at=None, project_id=PROJECT)
        for name in CHILDREN:
            for number in range(2 if name in (*MANY, "instance_actions", "instance_faults", "migrations") else 1):
                self.add(name, instance_uuid=server, deleted=0, deleted_at=None, **self._told(name, server, number))
            if name != "instance_info_caches":  # of which there may be one only, soft-deleted or not
                self.add(name, instance_uuid=server, deleted=77, deleted_at=_THEN, **self._told(name, server, 9))
        actions = sa.select(cell.InstanceAction.id).where(cell.InstanceAction.instance_uuid == server)
        for action in self._session.scalars(actions).all():
            for deleted in (0, 0, 77):
                self.add("instance_actions_events", action_id=action, deleted=deleted)
        for tag in ("blue", "green"):
            self._session.execute(sa.insert(cell.Tag), {"resource_id": server, "tag": tag})
        self.add("instance_id_mappings", uuid=server, deleted=0)
        self.add("console_auth_tokens", instance_uuid=server)
        self.add("consoles", instance_uuid=server, pool_id=None, deleted=0)
        self.add("consoles", instance_uuid=server, pool_id=None, deleted=77)

    def put_in_group(self, server: str, name: str) -> None:
        """Make a security group of the project, and put the server into it."""
        group = self.add("security_groups", name=name, project_id=PROJECT, deleted=0, deleted_at=None)
        for deleted in (0, 77):
            self.add(
                "security_group_instance_association", instance_uuid=server, security_group_id=group, deleted=deleted
            )

    def add(self, into: str, /, **values: Any) -> int:
        """Insert one row; what is not given is a value that the column takes."""
        table = TABLES[into]
        row = {column.name: self._value(column) for column in table.columns if column.name != "id"} | values
        key = self._session.connection().execute(sa.insert(table).values(row)).inserted_primary_key
        assert key is not None
        return int(key[0])

    def _told(self, name: str, server: str, number: int) -> Row:
        if name == "block_device_mapping":
            return {"destination_type": "volume", "uuid": f"{server[:-3]}b{number:02}", "volume_id": f"volume-{number}"}
        if name == "virtual_interfaces":
            return {"uuid": f"{server[:-3]}c{number:02}"}
        if name == "instance_info_caches":
            ports = [{"id": f"{server[:-3]}c{port:02}", "address": "fa:16:3e:00:00:01"} for port in range(2)]
            return {"network_info": json.dumps(ports)}
        if name == "migrations":
            return {"uuid": f"{server[:-3]}d{number:02}", "status": "confirmed"}
        return {"key": f"key-{number}"} if name in MANY else {}

    def _value(self, column: sa.Column[Any]) -> Any:
        number = next(_NUMBERS)
        if isinstance(column.type, sa.Enum):
            return column.type.enums[0]
        if isinstance(column.type, sa.Boolean):
            return True
        if isinstance(column.type, sa.Integer | sa.Float):
            return number
        if isinstance(column.type, sa.DateTime):
            return _THEN + dt.timedelta(seconds=number)
        text = f"{number} {column.name} grün"
        return text[: getattr(column.type, "length", None) or len(text)]


def live_rows(connection: sa.Connection, server: str) -> dict[str, list[Row]]:
    """What of a server has to be the same in each cell, by table: `SELECT *`, without what is of one cell alone.

    An event has its action's request in place of its id.
    """
    found: dict[str, list[Row]] = {}
    for name in ("instances", *CHILDREN):
        key = "uuid" if name == "instances" else "instance_uuid"
        rows = everything(connection, name, f"{key} = '{server}' AND deleted = 0")
        found[name] = [_without(row, LEFT_OUT.get(name, {"id"})) for row in rows]
    metadata = found["instance_system_metadata"]
    found["instance_system_metadata"] = [row for row in metadata if not row["key"].startswith("droveway_")]
    found["tags"] = everything(connection, "tags", f"resource_id = '{server}'")
    actions = everything(connection, "instance_actions", f"instance_uuid = '{server}' AND deleted = 0")
    requests = {row["id"]: row["request_id"] for row in actions}
    events = everything(connection, "instance_actions_events", "deleted = 0")
    found["instance_actions_events"] = [
        _without(row, {"id"}) | {"action_id": requests[row["action_id"]]}
        for row in events
        if row["action_id"] in requests
    ]
    return {name: sorted(rows, key=str) for name, rows in found.items()}


def everything(connection: sa.Connection, table: str, where: str = "1 = 1") -> list[Row]:
    """The rows of a table as the database gives them."""
    return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table} WHERE {where}")).mappings()]


def naming(connection: sa.Connection, server: str) -> Iterator[str]:
    """The tables with a row in which the server's uuid stands, whatever the column; the archiver's are left out."""
    for name in sorted(sa.inspect(connection).get_table_names()):
        if not name.startswith("shadow_") and any(server in row.values() for row in everything(connection, name)):
            yield name


def _without(row: Row, names: set[str]) -> Row:
    return {name: value for name, value in row.items() if name not in names}
