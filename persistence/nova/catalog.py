"""Reads servers, hosts, cells and flavors, to list them and to find one by its name.

The queries name tables and columns directly.  To import the models of Nova's databases would take longer than a command
that lists may take.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from droveway.errors import NotFound, Refused
from droveway.persistence.database import Database, DatabaseAway, absence
from droveway.persistence.nova.vm_states import api_status
from droveway.printable import SHORT

_MOST_NAMED: Final = 6

_POWER: Final = {0: "NOSTATE", 1: "RUNNING", 3: "PAUSED", 4: "SHUTDOWN", 6: "CRASHED", 7: "SUSPENDED"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Holds a server as Nova's API shows it; disks are in GiB."""

    id: str
    name: str
    status: str
    vm_state: str | None
    task_state: str | None
    power_state: str
    host: str | None
    flavor: str
    cell: str
    project: str
    user: str
    availability_zone: str | None
    locked: bool
    launched: bool
    boots_from_volume: bool
    root_gb: int
    ephemeral_gb: int
    flavor_id: int
    image: str | None
    created: dt.datetime | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Holds a hypervisor host; memory is in MiB, disk in GiB."""

    name: str
    cell: str
    enabled: bool
    disabled_reason: str | None
    forced_down: bool
    zone: str | None
    node: str
    """The uuid of the host's compute node, which is also that of its provider in Placement."""
    vcpus: int
    vcpus_used: int
    memory_mb: int
    memory_mb_used: int
    disk_gb: int
    disk_gb_used: int
    servers: int
    hypervisor: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Holds a cell, with the numbers of its hosts and of its servers."""

    name: str
    id: str
    disabled: bool
    hosts: int
    servers: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flavor:
    """Holds a flavor; memory and swap are in MiB, disks in GiB."""

    name: str
    id: str
    vcpus: int
    memory_mb: int
    root_gb: int
    ephemeral_gb: int
    swap_mb: int
    disabled: bool
    extra_specs: dict[str, str]


Named = TypeVar("Named", Server, Flavor)
Found = TypeVar("Found", Server, Host)

_SERVERS: Final = (
    "SELECT i.uuid, i.display_name, i.vm_state, i.task_state, i.power_state, i.host, i.project_id, i.user_id,"
    " i.availability_zone, i.locked, i.launched_at, i.created_at, i.root_gb, i.ephemeral_gb, i.instance_type_id,"
    " i.image_ref, e.flavor,"
    " EXISTS (SELECT 1 FROM block_device_mapping b WHERE b.instance_uuid = i.uuid AND b.deleted = 0"
    " AND b.boot_index = 0 AND b.destination_type = 'volume') AS from_volume"
    " FROM instances i LEFT JOIN instance_extra e ON e.instance_uuid = i.uuid AND e.deleted = 0"
    " WHERE i.deleted = 0 {which}ORDER BY i.display_name, i.uuid"
)
_ALL_SERVERS: Final = sa.text(_SERVERS.format(which="")).columns(launched_at=sa.DateTime, created_at=sa.DateTime)
_SERVERS_LIKE: Final = sa.text(
    _SERVERS.format(which="AND (i.display_name = :name OR i.uuid = :name OR i.uuid LIKE :beginning) ")
).columns(launched_at=sa.DateTime, created_at=sa.DateTime)
_MAPPINGS: Final = (
    "SELECT m.instance_uuid, COALESCE(NULLIF(c.name, ''), c.uuid) AS name"
    " FROM instance_mappings m JOIN cell_mappings c ON c.id = m.cell_id{which}"
)
_ALL_MAPPINGS: Final = sa.text(_MAPPINGS.format(which=""))
_MAPPINGS_OF: Final = sa.text(_MAPPINGS.format(which=" WHERE m.instance_uuid IN :servers")).bindparams(
    sa.bindparam("servers", expanding=True)
)
_ASK: Final = sa.text("SELECT 1 FROM instances WHERE id = 0")
_ASK_API: Final = sa.text("SELECT 1 FROM cell_mappings WHERE id = 0")
_HOSTS: Final = sa.text(
    "SELECT n.host, n.uuid, n.vcpus, n.vcpus_used, n.memory_mb, n.memory_mb_used, n.local_gb, n.local_gb_used,"
    " n.running_vms, n.hypervisor_type, s.disabled, s.disabled_reason, s.forced_down"
    " FROM compute_nodes n JOIN services s ON s.host = n.host AND s.deleted = 0 AND s.binary = 'nova-compute'"
    " WHERE n.deleted = 0 ORDER BY n.host"
)
_HOSTS_BY_METADATA: Final = sa.text(
    "SELECT h.host, m.value FROM aggregate_hosts h JOIN aggregate_metadata m ON m.aggregate_id = h.aggregate_id"
    " WHERE m.key = :name"
)
_CELLS: Final = sa.text(
    "SELECT COALESCE(NULLIF(c.name, ''), c.uuid) AS name, c.uuid, c.disabled,"
    " (SELECT count(*) FROM host_mappings h WHERE h.cell_id = c.id) AS hosts,"
    " (SELECT count(*) FROM instance_mappings m WHERE m.cell_id = c.id"
    " AND (m.queued_for_delete IS NULL OR m.queued_for_delete = :no)) AS servers"
    " FROM cell_mappings c ORDER BY name"
)
_OF_PROJECT: Final = sa.text("SELECT 1 FROM instance_mappings WHERE project_id = :project LIMIT 1")
_HOSTS_OF: Final = sa.text(
    "SELECT h.host FROM host_mappings h JOIN cell_mappings c ON c.id = h.cell_id"
    " WHERE COALESCE(NULLIF(c.name, ''), c.uuid) = :cell ORDER BY h.host"
)
_MAPPED_HOST: Final = sa.text("SELECT 1 FROM host_mappings WHERE host = :host")
_FLAVORS: Final = sa.text(
    "SELECT id, name, flavorid, vcpus, memory_mb, root_gb, ephemeral_gb, swap, disabled FROM flavors"
    " ORDER BY memory_mb, vcpus, root_gb, name"
)
_ACCESS: Final = sa.text(
    "SELECT f.is_public, EXISTS (SELECT 1 FROM flavor_projects p WHERE p.flavor_id = f.id AND p.project_id = :project)"
    " AS given FROM flavors f WHERE f.flavorid = :flavor"
)
_EXTRA_SPECS: Final = sa.text("SELECT e.flavor_id, e.key, e.value FROM flavor_extra_specs e ORDER BY e.key")


def answering(cells: Mapping[str, Database]) -> dict[str, Database]:
    """Return the cells whose databases answer now."""
    return {name: database for name, database in cells.items() if _answers(database, _ASK)}


def api_answers(api: Database) -> bool:
    """Tell whether the API database answers now."""
    return _answers(api, _ASK_API)


def _answers(database: Database, question: sa.TextClause) -> bool:
    try:
        with database.reading() as connection:
            connection.execute(question)
    except sa.exc.DBAPIError as error:
        if absence(error) is None:
            raise
        return False
    return True


def servers(api: Database, cells: Mapping[str, Database]) -> list[Server]:
    """Return all servers, in the order of their names, each from the cell to which it is mapped."""
    with api.read() as session:
        home = {row.instance_uuid: row.name for row in session.execute(_ALL_MAPPINGS)}
    found = []
    for cell, database in cells.items():
        with database.read() as session:
            found += [_server(row, cell) for row in session.execute(_ALL_SERVERS) if home.get(row.uuid) == cell]
    return sorted(found, key=lambda server: (server.name, server.id))


def find_server(api: Database, cells: Mapping[str, Database], name: str) -> Server:
    """Return the server by its name, its id or the first letters of its id.

    Raises `droveway.errors.NotFound` when there is none, and `droveway.errors.Refused`, naming them, when there are
    several.  Raises `droveway.persistence.database.DatabaseAway` when it may be in a cell that does not answer.
    """

    def like(cell: str, database: Database) -> list[Server]:
        with database.read() as session:
            rows = session.execute(_SERVERS_LIKE, {"name": name, "beginning": f"{name}%"})
            return [_server(row, cell) for row in rows]

    found, away = _search(cells, like)
    with api.read() as session:
        mapped = session.execute(_MAPPINGS_OF, {"servers": [server.id for server in found]})
        homes = {(row.instance_uuid, row.name) for row in mapped}
    known = [server for server in found if (server.id, server.cell) in homes]
    try:
        return _find(sorted(known, key=lambda server: (server.name, server.id)), name, "server")
    except NotFound:
        if away:
            raise _may_be_in(away, f"server {name}") from None
        raise


def hosts(api: Database, cells: Mapping[str, Database]) -> list[Host]:
    """Return all hosts, in the order of their cells and names."""
    zones = _zones(api)
    return [host for cell, database in cells.items() for host in _hosts(database, cell, zones)]


def _zones(api: Database) -> dict[str, str]:
    with api.read() as session:
        found = session.execute(_HOSTS_BY_METADATA, {"name": "availability_zone"})
        return {row.host: row.value for row in found}


def racks(api: Database, key: str) -> dict[str, frozenset[str]]:
    """Return host → its racks: the values of the metadata ``key`` of the aggregates that the host is in.

    A host has mostly one rack.  It has several when aggregates of it have different values.  A host is missing when no
    aggregate of it has the key.
    """
    found: dict[str, frozenset[str]] = {}
    with api.read() as session:
        for row in session.execute(_HOSTS_BY_METADATA, {"name": key}):
            found[row.host] = found.get(row.host, frozenset()) | {row.value}
    return found


def find_host(api: Database, cells: Mapping[str, Database], name: str, *, cell: str | None = None) -> Host:
    """Return the host of this name; raise `droveway.errors.NotFound` when there is none.

    Where two cells have a host of this name, it is the one in the ``cell``.  Raises
    `droveway.persistence.database.DatabaseAway` when the host may be in a cell that does not answer.
    """
    zones = _zones(api)
    found, away = _search(cells, lambda cell, database: list(_hosts(database, cell, zones)))
    named = [host for host in found if host.name == name]
    if named:
        return next((host for host in named if host.cell == cell), named[0])
    if away:
        raise _may_be_in(away, f"host {name}")
    raise _unknown_host(name)


def _search(
    cells: Mapping[str, Database], read: Callable[[str, Database], list[Found]]
) -> tuple[list[Found], list[str]]:
    """Return what ``read`` finds in the cells that answer, and the names of the other cells."""
    found: list[Found] = []
    away = []
    for cell, database in cells.items():
        try:
            found += read(cell, database)
        except sa.exc.DBAPIError as error:
            if absence(error) is None:
                raise
            away.append(cell)
    return found, away


def _may_be_in(cells: Iterable[str], what: str) -> DatabaseAway:
    """Return the error for a name that no answering cell has; no `NotFound`, which would say that nobody has it."""
    named = " and ".join(f"cell {cell}" for cell in sorted(cells))
    return DatabaseAway(
        f"{what} is in no cell that answers, and nobody could look in {named}, whose database does not answer: start "
        "that database, or correct the name"
    )


def _unknown_host(name: str) -> NotFound:
    return NotFound(f"host {name} is unknown: droveway host list shows the hosts")


def require_mapped(api: Database, host: str) -> None:
    """Raise `droveway.errors.NotFound` unless Nova maps the host to a cell, whose database need not answer."""
    with api.read() as session:
        if session.execute(_MAPPED_HOST, {"host": host}).first() is None:
            raise _unknown_host(host)


def hosts_of(api: Database, cell: str) -> list[str]:
    """Return the names of the cell's hosts.

    They are read in the API database, so the cell's own database need not answer.
    """
    with api.read() as session:
        return list(session.scalars(_HOSTS_OF, {"cell": cell}))


def cells_of(api: Database) -> list[Cell]:
    """Return all cells, in the order of their names."""
    with api.read() as session:
        return [
            Cell(name=row.name, id=row.uuid, disabled=bool(row.disabled), hosts=row.hosts, servers=row.servers)
            for row in session.execute(_CELLS, {"no": False})
        ]


def find_cell(api: Database, name: str) -> Cell:
    """Return the cell of this name or id; raise `droveway.errors.NotFound` when there is none."""
    for cell in cells_of(api):
        if name in (cell.name, cell.id):
            return cell
    raise NotFound(f"cell {name} is unknown: droveway cell list shows the cells")


def require_project(api: Database, project: str) -> None:
    """Raise `droveway.errors.NotFound` when Nova maps no server of the project of this id to a cell."""
    with api.read() as session:
        if session.execute(_OF_PROJECT, {"project": project}).first() is None:
            raise NotFound(
                f"project {project} is unknown, because it has no server: give its id, which droveway server show "
                "SERVER prints"
            )


def flavors(api: Database) -> list[Flavor]:
    """Return all flavors, the small ones first."""
    with api.read() as session:
        specs: dict[int, dict[str, str]] = {}
        for row in session.execute(_EXTRA_SPECS):
            specs.setdefault(row.flavor_id, {})[row.key] = row.value
        return [
            Flavor(
                name=row.name,
                id=row.flavorid,
                vcpus=row.vcpus,
                memory_mb=row.memory_mb,
                root_gb=row.root_gb,
                ephemeral_gb=row.ephemeral_gb,
                swap_mb=row.swap,
                disabled=bool(row.disabled),
                extra_specs=specs.get(row.id, {}),
            )
            for row in session.execute(_FLAVORS)
        ]


def find_flavor(api: Database, name: str) -> Flavor:
    """Return the flavor by its name, its id or the first letters of its id.

    Raises `droveway.errors.NotFound` when there is none, and `droveway.errors.Refused`, naming them, when there are
    several.
    """
    return _find(flavors(api), name, "flavor")


def may_use(api: Database, flavor: Flavor, project: str) -> bool:
    """Tell whether the flavor is public, or the project was given access to it."""
    with api.read() as session:
        row = session.execute(_ACCESS, {"flavor": flavor.id, "project": project}).one()
    return bool(row.is_public or row.given)


def _find(known: Iterable[Named], name: str, noun: str) -> Named:
    known = list(known)
    matches = [item for item in known if item.name == name] or [item for item in known if item.id == name]
    matches = matches or [item for item in known if item.id.startswith(name)]
    if not matches:
        raise NotFound(f"{noun} {name} is unknown: droveway {noun} list shows the {noun}s")
    if len(matches) > 1:
        named = ", ".join(f"{item.name} ({item.id[:SHORT]})" for item in matches[:_MOST_NAMED])
        raise Refused(f"several {noun}s match {name}: {named}; give the id of one, or more letters of it")
    return matches[0]


def _server(row: Any, cell: str) -> Server:
    return Server(
        id=row.uuid,
        name=row.display_name or "",
        status=api_status(row.vm_state, row.task_state),
        vm_state=row.vm_state,
        task_state=row.task_state,
        power_state=_POWER.get(row.power_state, "NOSTATE"),
        host=row.host,
        flavor=_flavor_name(row.flavor),
        cell=cell,
        project=row.project_id or "",
        user=row.user_id or "",
        availability_zone=row.availability_zone,
        locked=bool(row.locked),
        launched=row.launched_at is not None,
        boots_from_volume=bool(row.from_volume),
        root_gb=row.root_gb or 0,
        ephemeral_gb=row.ephemeral_gb or 0,
        flavor_id=row.instance_type_id,
        image=row.image_ref or None,
        created=row.created_at,
    )


def _hosts(database: Database, cell: str, zones: Mapping[str, str]) -> Iterator[Host]:
    with database.read() as session:
        rows = session.execute(_HOSTS).all()
    for row in rows:
        yield Host(
            name=row.host,
            cell=cell,
            enabled=not row.disabled,
            disabled_reason=row.disabled_reason,
            forced_down=bool(row.forced_down),
            zone=zones.get(row.host),
            node=row.uuid,
            vcpus=row.vcpus,
            vcpus_used=row.vcpus_used,
            memory_mb=row.memory_mb,
            memory_mb_used=row.memory_mb_used,
            disk_gb=row.local_gb,
            disk_gb_used=row.local_gb_used,
            servers=row.running_vms,
            hypervisor=row.hypervisor_type,
        )


def _flavor_name(text: str | None) -> str:
    """Return the name of the flavor in `instance_extra.flavor`: the flavor's own row may have been deleted."""
    current = (json.loads(text) if text else {}).get("cur") or {}
    return str(current.get("nova_object.data", {}).get("name", ""))
