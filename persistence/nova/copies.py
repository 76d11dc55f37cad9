"""Copies a server's rows from one cell to another: reads them in one cell and inserts them in the other.

These functions decide nothing.  The caller opens a fenced transaction, and checks in it that the copy may be made.  The
statements bypass the session's bookkeeping: objects that were loaded before do not show the changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import NotFound
from droveway.persistence.nova import cell, copied_tables
from droveway.persistence.nova.vm_states import PowerState

Row = dict[str, Any]

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_TABLES: Final = cell.CellBase.metadata.tables
_COPIED: Final = tuple(_TABLES[entry.table] for entry in copied_tables.COPIED)
_INSTANCES: Final = _TABLES["instances"]
_ACTIONS: Final = _TABLES["instance_actions"]
_EVENTS: Final = _TABLES["instance_actions_events"]
_METADATA: Final = _TABLES["instance_system_metadata"]
_GROUPS: Final = _TABLES["security_groups"]
_IN_GROUP: Final = _TABLES["security_group_instance_association"]
_ID_MAPPINGS: Final = _TABLES["instance_id_mappings"]
_TAGS: Final = _TABLES["tags"]

_READ_TABLES: Final = (*_COPIED, _GROUPS)
_GROUP_COLUMNS: Final = ("name", "description", "user_id", "project_id")
_DEFAULT_GROUP: Final = "default"
"""The security group that Nova makes for a project in each cell, with the project's first server there."""


_NAMES_SERVER: Final = {"instances": "uuid", "instance_id_mappings": "uuid", "tags": "resource_id"}
"""Table → its column with the server's uuid; in all other tables it is `instance_uuid`."""


def of_server(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a row of the table belongs to the server (parameter ``server``)."""
    return _owner(table) == _SERVER


def _owner(table: sa.Table) -> sa.ColumnElement[str]:
    return table.c[_NAMES_SERVER.get(table.name, "instance_uuid")]


def _is_live(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return table.c.deleted == 0 if "deleted" in table.c else sa.true()


def _reading() -> sa.Select[Any]:
    """Build the one statement that reads the server's live rows in all tables.

    Each of its rows begins with a number that says which table the row comes from.  The columns of all tables follow.
    The columns of the other tables are NULL.
    """
    server, action = _INSTANCES.alias("server"), _ACTIONS.alias("action")
    parts = sa.union_all(
        *(sa.select(sa.literal_column(str(number), sa.Integer).label("part")) for number in range(len(_READ_TABLES)))
    ).subquery("parts")
    joined = server.join(parts, sa.true())
    for number, table in enumerate(_READ_TABLES):
        is_here = parts.c.part == number
        if table is _EVENTS:
            mine = sa.and_(is_here, action.c.instance_uuid == server.c.uuid, _is_live(action))
            joined = joined.outerjoin(action, mine).outerjoin(
                table, sa.and_(table.c.action_id == action.c.id, _is_live(table))
            )
        elif table is _GROUPS:
            mine = sa.and_(is_here, _IN_GROUP.c.instance_uuid == server.c.uuid, _is_live(_IN_GROUP))
            joined = joined.outerjoin(_IN_GROUP, mine).outerjoin(
                table, sa.and_(table.c.id == _IN_GROUP.c.security_group_id, _is_live(table))
            )
        else:
            mine = sa.and_(is_here, _owner(table) == server.c.uuid, _is_live(table))
            if table is _METADATA:
                mine = sa.and_(mine, table.c.key.not_in(copied_tables.MARKERS))
            joined = joined.outerjoin(table, mine)
    columns = itertools.chain.from_iterable(table.c for table in _READ_TABLES)
    return sa.select(parts.c.part, *columns).select_from(joined).where(server.c.uuid == _SERVER, server.c.deleted == 0)


_READ: Final = _reading()
_FIRST_COLUMNS: Final = tuple(itertools.accumulate((len(table.columns) for table in _READ_TABLES), initial=0))
"""For each table the position of its first column in a row of `_READ`, counted without the number in front."""

_ACTION_IDS: Final = sa.select(_ACTIONS.c.id).where(of_server(_ACTIONS)).order_by(_ACTIONS.c.id)
_REMOVE_TAGS: Final = sa.delete(_TAGS).where(of_server(_TAGS))
_FIND_GROUPS: Final = sa.select(_GROUPS.c.name, _GROUPS.c.id).where(
    _GROUPS.c.project_id == sa.bindparam("project"),
    _GROUPS.c.name.in_(sa.bindparam("names", expanding=True)),
    _is_live(_GROUPS),
)

_DEVICES: Final = _TABLES["block_device_mapping"]
_ATTACH: Final = (
    sa.update(_DEVICES)
    .where(_DEVICES.c.uuid == sa.bindparam("row"), _DEVICES.c.deleted == 0)
    .values(attachment_id=sa.bindparam("attachment"), connection_info=sa.bindparam("connection"))
)

_STANDING: Final = sa.select(_INSTANCES.c.hidden, _INSTANCES.c.deleted, _INSTANCES.c.created_at).where(
    of_server(_INSTANCES)
)

_BARRING: Final = tuple(_TABLES[entry.table] for entry in copied_tables.MUST_BE_EMPTY)
_HAS: Final = {
    "pci_devices": "PCI devices of its host",
    "share_mapping": "shares",
    "fixed_ips": "addresses of nova-network",
}
_BARRED: Final = sa.select(
    *(
        # A soft-deleted PCI device belongs to no server, so it does not count.  A row of the other tables counts even
        # when it is soft-deleted.  It refers to the server's row, so the database would refuse to remove the server's
        # row after the move.
        sa.exists()
        .where(of_server(table), _is_live(table) if table.name == "pci_devices" else sa.true())
        .label(table.name)
        for table in _BARRING
    )
)


@dataclasses.dataclass(frozen=True, repr=False)
class Copy:
    """Holds all live rows of a server in one cell, by table and in the order of their ids; they may hold secrets."""

    server: str
    rows: Mapping[str, Sequence[Row]]
    groups: Sequence[Row]
    """The security groups that the server is in: rows of `security_groups`."""

    @property
    def instance(self) -> Row:
        """Return the server's own row, of `instances`."""
        return self.rows["instances"][0]


def read(session: orm.Session, server: str) -> Copy:
    """Read all live rows of the server; raise `droveway.errors.NotFound` when the cell has none.

    One statement reads them all.  With several, a later one could see rows that were committed after the first one, and
    the copy would be inconsistent.
    """
    _flush(session)
    found: dict[str, list[Row]] = {table.name: [] for table in _READ_TABLES}
    for part, *values in session.connection().execute(_READ, {"server": server}):
        table, begin = _READ_TABLES[part], _FIRST_COLUMNS[part]
        row = dict(zip(table.columns.keys(), values[begin : begin + len(table.columns)], strict=True))
        # For a table without rows of the server the outer join returns one row with NULL in all its columns.
        if row[_key(table)] is not None:
            found[table.name].append(row)
    for table in _READ_TABLES:
        found[table.name].sort(key=operator.itemgetter(_key(table)))
    groups = found.pop(_GROUPS.name)
    if not found[_INSTANCES.name]:
        raise NotFound(f"server {server} is not in this cell: droveway server list shows the servers")
    return Copy(server, found, groups)


def insert(
    session: orm.Session,
    copy: Copy,
    *,
    host: str | None,
    node: str | None,
    task_state: str | None,
    markers: Mapping[str, str],
) -> None:
    """Insert the whole copy into a cell that has none; the new copy is hidden and its power state is off.

    ``session`` writes in the cell that gets the copy.  ``host`` and ``node`` are names in the cell where the copy was
    read; they are None when the server is on no host.  ``markers`` are the values of Droveway's own rows, by their keys
    (`copied_tables.MARKERS`); raises ValueError for any other key.
    """
    if set(markers) - set(copied_tables.MARKERS):
        raise ValueError(f"markers are {', '.join(copied_tables.MARKERS)}, not {', '.join(sorted(markers))}")
    session.flush()
    connection = session.connection()
    # Tags do not refer to the server's row.  A late request may have added some after an earlier copy was removed.
    connection.execute(_REMOVE_TAGS, {"server": copy.server})
    changed: dict[str, Row] = {
        "instances": {
            "host": host,
            "node": node,
            "compute_id": None,
            "hidden": True,
            "power_state": PowerState.SHUTDOWN,
            "task_state": task_state,
        },
        "instance_extra": {"migration_context": None},
        "migrations": {"dest_compute_id": None},
    }
    for table in _COPIED:
        rows = [_without_id(row) | changed.get(table.name, {}) for row in copy.rows[table.name]]
        if table is _EVENTS:
            actions = _new_action_ids(connection, copy)
            rows = [row | {"action_id": actions[row["action_id"]]} for row in rows]
        _add(connection, table, rows)
    ours = [{"instance_uuid": copy.server, "key": key, "value": value} for key, value in sorted(markers.items())]
    _add(connection, _METADATA, ours)
    _add(connection, _ID_MAPPINGS, [{"uuid": copy.server}])
    groups = _new_group_ids(connection, copy)
    _add(connection, _IN_GROUP, [{"instance_uuid": copy.server, "security_group_id": group} for group in groups])


def give_attachments(session: orm.Session, copy: Copy) -> None:
    """Write the attachments of the ``copy`` into the volumes' rows of the session's cell.

    The ``copy`` was read in the server's other cell.
    """
    _flush(session)
    connection = session.connection()
    for row in copy.rows[_DEVICES.name]:
        if row["volume_id"] is not None:
            given = {"row": row["uuid"], "attachment": row["attachment_id"], "connection": row["connection_info"]}
            connection.execute(_ATTACH, given)


def barred(session: orm.Session, server: str) -> str:
    """Return a sentence that says why the server cannot go into another cell; empty when it can."""
    _flush(session)
    found = session.connection().execute(_BARRED, {"server": server}).one()
    has = [_HAS[table.name] for table, stands in zip(_BARRING, found, strict=True) if stands]
    if not has:
        return ""
    return f"server {server} has {' and '.join(has)}, which exist only in its own cell: it cannot cross to another one"


def standing(session: orm.Session, server: str) -> str:
    """Describe the rows that a cell has of a server which is mapped to another cell; empty when it has none."""
    _flush(session)
    row = session.connection().execute(_STANDING, {"server": server}).first()
    if row is None:
        return ""
    what = "soft-deleted" if row.deleted else "hidden" if row.hidden else "visible"
    since = f" since {row.created_at:%Y-%m-%d %H:%M}" if row.created_at is not None else ""
    return f"it has rows of server {server}{since} already, {what}: droveway audit says what they are and how they go"


def _flush(session: orm.Session) -> None:
    """Write the session's pending changes, unless it is a session for reading, which has none to write."""
    if session.autoflush:
        session.flush()


def _key(table: sa.Table) -> str:
    """Return the name of the column that is unique among the rows of one server."""
    return "tag" if table is _TAGS else "id"


def _add(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)


def _without_id(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "id"}


def _new_action_ids(connection: sa.Connection, copy: Copy) -> dict[int, int]:
    """Return the old id → the new id of each instance action that was inserted.

    The old id is that of the action's row in the cell in which the copy was read.  The new id is that of its row in the
    session's cell.  The ids have the same order in both cells, because rows get their ids in the order in which they
    are inserted.
    """
    old = [row["id"] for row in copy.rows[_ACTIONS.name]]
    return dict(zip(old, connection.scalars(_ACTION_IDS, {"server": copy.server}), strict=True))


def _new_group_ids(connection: sa.Connection, copy: Copy) -> list[int]:
    """Return the ids that the copy's security groups have in the session's cell.

    Groups that the project lacks in that cell are added, and so is its default group.
    """
    of_project = {name: copy.instance[name] for name in ("user_id", "project_id")}
    wanted = {_DEFAULT_GROUP: of_project | {"name": _DEFAULT_GROUP, "description": _DEFAULT_GROUP}}
    wanted |= {row["name"]: {name: row[name] for name in _GROUP_COLUMNS} for row in copy.groups}
    mine = {"project": of_project["project_id"], "names": list(wanted)}
    there = {row.name: row.id for row in connection.execute(_FIND_GROUPS, mine)}
    for name in sorted(wanted.keys() - there.keys()):
        # Another server of the project may be copied at the same moment and add the group first: that group is used.
        with contextlib.suppress(sa.exc.IntegrityError), connection.begin_nested():
            connection.execute(sa.insert(_GROUPS), wanted[name])
    if wanted.keys() - there.keys():
        there = {row.name: row.id for row in connection.execute(_FIND_GROUPS, mine)}
    return [there[row["name"]] for row in copy.groups]
