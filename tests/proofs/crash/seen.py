"""What there is of one server in a sandbox lab, read from the lab's own files and rows.

Nothing here asks the product: what a flow has left is to be judged by what lies on the disks and in the databases.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

BOOT_BLOCK: Final = 4096
"""Bytes at the start of a disk that its guest writes at each start."""

STAMP: Final = 128 * 1024
"""Where the stamp of a disk lies."""

_PIECE: Final = 64 * 1024

_COLUMNS: Final = (
    "display_name",
    "host",
    "node",
    "compute_id",
    "availability_zone",
    "launched_on",
    "vm_state",
    "task_state",
    "power_state",
    "vcpus",
    "memory_mb",
    "root_gb",
    "ephemeral_gb",
    "instance_type_id",
)


class Disk(msgspec.Struct, frozen=True):
    """A disk's size, and a hash of the bytes in it that are not zero."""

    size: int
    content: str


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's definition."""

    vcpus: int
    memory_mb: int
    disks: list[str]
    volumes: list[str]
    ports: list[str]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has of the server."""

    store: str
    """The directory that it keeps its servers' disks in: hosts may share one."""
    guest: Guest | None
    running: bool
    folders: dict[str, dict[str, Disk]]
    """By what follows the server's id in a directory's name: the disks in it."""
    files: dict[str, list[str]]
    """The same: every other file in it."""
    volumes: list[str]
    """The volumes that are connected here."""
    ports: list[str]
    """The ports that are plugged in here."""
    strays: list[str]
    """What a move left beside the servers' directories."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is of the server."""

    server: str
    hosts: dict[str, Host]
    nodes: dict[str, int]
    """By host: the id of its compute node."""
    row: dict[str, Any]
    """Of its row, those columns that a flow changes; empty when the row is deleted."""
    flavors: dict[str, str | None]
    """The names of its flavors: ``cur``, ``old``, ``new``, and ``spec`` of its request spec."""
    context: bool
    """Whether it has a migration context."""
    old_vm_state: str | None
    swap_mb: int | None
    """What its block devices say of the swap disk."""
    attachments: dict[str, list[tuple[str | None, str]]]
    """By volume: the host and the status of each attachment."""
    recorded: dict[str, bool]
    """By volume: whether the attachment that its block device names exists."""
    bindings: dict[str, dict[str, str]]
    """By port: the status of its binding on each host."""
    givers: dict[str, list[str]]
    """By port: the names of the providers that its active binding names."""
    contents: dict[str, Disk]
    """By volume: its bytes."""
    images: dict[str, Disk]
    """By name: the bytes of the images that were made of the server."""
    shelved: list[str]
    """What its system metadata say of its shelving."""
    allocations: dict[str, dict[str, int]]
    """By consumer, the server or ``moves``: the amount of each class on each host."""
    actions: list[str]
    """Its instance actions."""
    open_events: list[str]
    """The events of its instance actions that nobody closed."""
    live_rows: list[str]
    """The tables that have a row of it which is not deleted."""
    migrations: dict[str, str]
    """By move: the status of its migration."""
    starts: dict[str, int]
    """By host: how often its guest was started there."""
    copies: dict[str, dict[str, Any]]
    """By cell that it is not mapped to: the columns of its row there, and whether that is hidden."""


def flavor(root: Path, name: str) -> dict[str, int]:
    """The numbers of a flavor."""
    with _open(root / "api.sqlite") as api:
        (row,) = api.execute("SELECT * FROM flavors WHERE name = ?", (name,))
        return {key: row[key] or 0 for key in ("id", "vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap")}


def move(root: Path) -> dict[str, Any]:
    """The journal's row of the youngest move, and the steps that ran of it."""
    with _open(root / "journal.sqlite") as journal:
        found = dict(journal.execute("SELECT * FROM moves ORDER BY created_at DESC, rowid DESC LIMIT 1").fetchone())
        ran = "SELECT step FROM move_steps WHERE move_id = ? AND direction = 'execute' ORDER BY seq"
        return found | {"ran": [row[0] for row in journal.execute(ran, (found["id"],))]}


def answers(root: Path, kind: str) -> dict[str, dict[str, Any]]:
    """By step: what it returned in the only flow of the kind, as the journal's history tells."""
    with _open(root / "journal.sqlite") as journal:
        told = journal.execute(
            "SELECT step, result FROM move_steps WHERE flow_uuid = (SELECT uuid FROM move_flows WHERE kind = ?)"
            " AND direction = 'execute'",
            (kind,),
        )
        return {row["step"]: json.loads(row["result"] or "null") or {} for row in told}


def stamp(root: Path) -> None:
    """Write bytes into every disk and volume of the lab's servers that tell each from a blank one."""
    for path in (*root.glob("hosts/*/instances/*/disk*"), *root.glob("volumes/*")):
        if _is_disk(path) or path.parent.name == "volumes":
            with path.open("r+b") as file:
                file.seek(STAMP)
                file.write(f"stamp of {path.parent.name}/{path.name}".encode())


def find(root: Path, name: str) -> str:
    """The id of the server of this name."""
    for cell in sorted((root / "cells").glob("*.sqlite")):
        with _open(cell) as rows:
            if found := _value(rows, "SELECT uuid FROM instances WHERE display_name = ?", name):
                return str(found)
    raise LookupError(f"no cell has a server {name}")


def look(root: Path, server: str) -> Seen:
    """All that there is of the server in the lab."""
    hosts = {path.name: _host(path, server) for path in sorted((root / "hosts").iterdir())}
    home = root / "cells" / f"{_cell(root, server)}.sqlite"
    with _open(home) as rows, _open(root / "api.sqlite") as api, _open(root / "services.sqlite") as services:
        volumes = [row["volume_id"] for row in rows.execute(_VOLUMES, (server,))]
        flavors, context = _extra(rows, server)
        attachments = _attachments(services, server)
        return Seen(
            server=server,
            hosts=hosts,
            nodes=_nodes(root),
            copies=_copies(root, home, server),
            row=_row(rows, server),
            flavors=flavors | {"spec": _spec(api, server)},
            context=context,
            old_vm_state=_value(rows, _OLD_VM_STATE, server),
            swap_mb=_value(rows, _SWAP, server),
            attachments={volume: attachments.get(volume, []) for volume in sorted({*volumes, *attachments})},
            recorded=_recorded(rows, services, server),
            bindings=_bindings(services, server),
            givers=_givers(root, services, server),
            contents={volume: _disk(root / "volumes" / volume) for volume in volumes},
            images=_images(root, services, server),
            shelved=[row[0] for row in rows.execute(_SHELVED, (server,))],
            allocations=_allocations(root, server),
            actions=[row[0] for row in rows.execute(_ACTIONS, (server,))],
            open_events=[row[0] for row in rows.execute(_OPEN, (server,))],
            live_rows=[*_live(rows, server), *_mapped(api, server)],
            migrations=dict(rows.execute("SELECT uuid, status FROM migrations WHERE instance_uuid = ?", (server,))),
            starts=_starts(root / "guests.log", server),
        )


_VOLUMES: Final = (
    "SELECT volume_id FROM block_device_mapping WHERE instance_uuid = ? AND volume_id IS NOT NULL AND deleted = 0"
)
_SWAP: Final = (
    "SELECT volume_size FROM block_device_mapping WHERE instance_uuid = ? AND guest_format = 'swap' AND deleted = 0"
)
_OLD_VM_STATE: Final = (
    "SELECT value FROM instance_system_metadata WHERE instance_uuid = ? AND key = 'old_vm_state' AND deleted = 0"
)
_SHELVED: Final = (
    "SELECT key FROM instance_system_metadata WHERE instance_uuid = ? AND key LIKE 'shelved_%' AND deleted = 0"
    " ORDER BY key"
)
_MAPPED_TO: Final = (
    "SELECT name FROM instance_mappings JOIN cell_mappings ON cell_mappings.id = instance_mappings.cell_id"
    " WHERE instance_uuid = ?"
)
_CHILDREN: Final = (
    ("instance_extra", "instance_uuid"),
    ("instance_system_metadata", "instance_uuid"),
    ("instance_metadata", "instance_uuid"),
    ("instance_info_caches", "instance_uuid"),
    ("block_device_mapping", "instance_uuid"),
    ("virtual_interfaces", "instance_uuid"),
    ("instance_actions", "instance_uuid"),
    ("instance_faults", "instance_uuid"),
    ("migrations", "instance_uuid"),
    ("instance_id_mappings", "uuid"),
    ("tags", "resource_id"),
)
_MIGRATION: Final = (
    "SELECT status, dest_compute, dest_compute_id, cross_cell_move FROM migrations WHERE instance_uuid = ?"
    " ORDER BY id DESC LIMIT 1"
)
_HAS: Final = 'SELECT 1 FROM "{}" WHERE {} = ?'
_PROFILES: Final = (
    "SELECT ports.id AS port, profile FROM ports LEFT JOIN port_bindings"
    " ON port_bindings.port = ports.id AND status = 'ACTIVE' WHERE server = ? ORDER BY ports.id"
)
_HELD: Final = (
    "SELECT consumer_id, resource_class_id, used, name FROM allocations"
    " JOIN resource_providers ON resource_providers.id = allocations.resource_provider_id"
)
_ACTIONS: Final = "SELECT action FROM instance_actions WHERE instance_uuid = ? ORDER BY id"
_OPEN: Final = (
    "SELECT event FROM instance_actions_events AS events JOIN instance_actions AS actions"
    " ON events.action_id = actions.id WHERE actions.instance_uuid = ? AND events.finish_time IS NULL"
)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def _host(path: Path, server: str) -> Host:
    store = path / "instances"
    found = {folder.name.removeprefix(server): folder for folder in sorted(store.glob(f"{server}*"))}
    definition = path / "domains" / f"{server}.json"
    return Host(
        store=str(store.resolve()),
        guest=_guest(json.loads(definition.read_bytes())) if definition.exists() else None,
        running=_runs(path / "run" / f"{server}.pid"),
        folders={
            name: {each.name: _disk(each) for each in sorted(folder.iterdir()) if _is_disk(each)}
            for name, folder in found.items()
        },
        files={
            name: sorted(each.name for each in folder.iterdir() if not _is_disk(each)) for name, folder in found.items()
        },
        volumes=sorted(each.stem for each in path.glob(f"connections/{server}/*.json")),
        ports=sorted(each.stem for each in path.glob(f"vifs/{server}/*.json")),
        strays=sorted(each.name for each in store.glob(".droveway-*") if each.name != ".droveway-store"),
    )


def _guest(told: dict[str, Any]) -> Guest:
    return Guest(
        vcpus=told["vcpus"],
        memory_mb=told["memory_mb"],
        disks=sorted(told["disks"]),
        volumes=sorted(each["volume"] for each in told["volumes"]),
        ports=sorted(each["port"] for each in told["ports"]),
    )


def _runs(record: Path) -> bool:
    """Whether the process that wrote the record of a run lives."""
    try:
        told = json.loads(record.read_bytes())
        fields = Path(f"/proc/{told['pid']}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in "ZXx" and int(fields[19]) == told["born"]


def _is_disk(path: Path) -> bool:
    return path.name.startswith("disk") and path.name != "disk.info"


def _disk(path: Path) -> Disk:
    found, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        for offset in _data(file.fileno(), size):
            piece = os.pread(file.fileno(), _PIECE, offset)
            if offset == 0:
                piece = bytes(BOOT_BLOCK) + piece[BOOT_BLOCK:]
            if piece.strip(b"\0"):
                found.update(f"{offset}:".encode() + piece.rstrip(b"\0"))
    return Disk(size, found.hexdigest())


def _data(descriptor: int, size: int) -> Iterator[int]:
    """Where each piece begins that is no hole."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:
            return
        offset = start // _PIECE * _PIECE
        yield offset
        offset += _PIECE


def _cell(root: Path, server: str) -> str:
    """The cell that the server is mapped to; that of a server without a mapping, which has only one."""
    with _open(root / "api.sqlite") as api:
        found = _value(api, _MAPPED_TO, server)
    return str(found or min((root / "cells").glob("*.sqlite")).stem)


def _nodes(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in sorted((root / "cells").glob("*.sqlite")):
        with _open(cell) as rows:
            found |= dict(rows.execute("SELECT host, id FROM compute_nodes WHERE deleted = 0"))
    return found


def _copies(root: Path, home: Path, server: str) -> dict[str, dict[str, Any]]:
    found = {}
    for cell in sorted((root / "cells").glob("*.sqlite")):
        if cell == home:
            continue
        with _open(cell) as rows:
            row = rows.execute("SELECT * FROM instances WHERE uuid = ?", (server,)).fetchone()
            children = [table for table, column in _CHILDREN if _value(rows, _HAS.format(table, column), server)]
            flavors, context = _extra(rows, server)
            migration = rows.execute(_MIGRATION, (server,)).fetchone()
            opened = [each[0] for each in rows.execute(_OPEN, (server,))]
        if row is not None:
            found[cell.stem] = {name: row[name] for name in (*_COLUMNS, "hidden", "deleted")} | {
                "flavors": flavors,
                "context": context,
                "migration": dict(migration or {}),
                "open_events": opened,
            }
        elif children:
            found[cell.stem] = {"rows": children}
    return found


def _row(rows: sqlite3.Connection, server: str) -> dict[str, Any]:
    found = rows.execute("SELECT * FROM instances WHERE uuid = ? AND deleted = 0", (server,)).fetchone()
    return {} if found is None else {name: found[name] for name in _COLUMNS}


def _extra(rows: sqlite3.Connection, server: str) -> tuple[dict[str, str | None], bool]:
    found = rows.execute("SELECT * FROM instance_extra WHERE instance_uuid = ? AND deleted = 0", (server,)).fetchone()
    if found is None:
        return {}, False
    told = json.loads(found["flavor"])
    names = {which: told[which] and told[which]["nova_object.data"]["name"] for which in ("cur", "old", "new")}
    return names, found["migration_context"] is not None


def _spec(api: sqlite3.Connection, server: str) -> str | None:
    found = _value(api, "SELECT spec FROM request_specs WHERE instance_uuid = ?", server)
    return found and str(json.loads(found)["nova_object.data"]["flavor"]["nova_object.data"]["name"])


def _value(connection: sqlite3.Connection, query: str, server: str) -> Any:
    found = connection.execute(query, (server,)).fetchone()
    return None if found is None else found[0]


def _attachments(services: sqlite3.Connection, server: str) -> dict[str, list[tuple[str | None, str]]]:
    found: dict[str, list[tuple[str | None, str]]] = {}
    for row in services.execute("SELECT * FROM attachments WHERE server = ? ORDER BY status", (server,)):
        connector = json.loads(row["connector"] or "null") or {}
        found.setdefault(row["volume"], []).append((connector.get("host"), row["status"]))
    return found


def _recorded(rows: sqlite3.Connection, services: sqlite3.Connection, server: str) -> dict[str, bool]:
    known = {row["id"] for row in services.execute("SELECT id FROM attachments WHERE server = ?", (server,))}
    query = _VOLUMES.replace("SELECT volume_id", "SELECT volume_id, attachment_id")
    return {row["volume_id"]: row["attachment_id"] in known for row in rows.execute(query, (server,))}


def _bindings(services: sqlite3.Connection, server: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for port in services.execute("SELECT id FROM ports WHERE server = ? ORDER BY id", (server,)).fetchall():
        bound = services.execute("SELECT host, status FROM port_bindings WHERE port = ?", (port["id"],))
        found[port["id"]] = {row["host"]: row["status"] for row in bound if row["host"]}
    return found


def _givers(root: Path, services: sqlite3.Connection, server: str) -> dict[str, list[str]]:
    with _open(root / "placement.sqlite") as placement:
        names = {row["uuid"]: row["name"] for row in placement.execute("SELECT uuid, name FROM resource_providers")}
    found: dict[str, list[str]] = {}
    for row in services.execute(_PROFILES, (server,)):
        named = json.loads(row["profile"] or "{}").get("allocation") or {}
        uuids = [named] if isinstance(named, str) else list(named.values())
        found[row["port"]] = sorted(names.get(uuid, uuid) for uuid in uuids)
    return found


def _images(root: Path, services: sqlite3.Connection, server: str) -> dict[str, Disk]:
    found = {}
    for row in services.execute("SELECT * FROM images"):
        if json.loads(row["properties"]).get("instance_uuid") == server:
            path = root / "images" / row["id"]
            found[row["name"]] = _disk(path) if path.exists() else Disk(0, "")
    return found


def _allocations(root: Path, server: str) -> dict[str, dict[str, int]]:
    with _open(root / "journal.sqlite") as journal:
        moves = {row["id"] for row in journal.execute("SELECT id FROM moves WHERE server = ?", (server,))}
    found: dict[str, dict[str, int]] = {"server": {}, "moves": {}}
    with _open(root / "placement.sqlite") as placement:
        for row in placement.execute(_HELD):
            if row["consumer_id"] in {server, *moves}:
                held = found["server" if row["consumer_id"] == server else "moves"]
                held[f"{row['name']} {row['resource_class_id']}"] = row["used"]
    return found


def _live(rows: sqlite3.Connection, server: str) -> Iterator[str]:
    for table, column in (
        ("instances", "uuid"),
        ("instance_extra", "instance_uuid"),
        ("instance_system_metadata", "instance_uuid"),
        ("block_device_mapping", "instance_uuid"),
        ("virtual_interfaces", "instance_uuid"),
        ("instance_info_caches", "instance_uuid"),
    ):
        query = f'SELECT 1 FROM "{table}" WHERE {column} = ? AND deleted = 0'
        if rows.execute(query, (server,)).fetchone():
            yield table


def _mapped(api: sqlite3.Connection, server: str) -> Iterator[str]:
    if _value(api, "SELECT 1 FROM request_specs WHERE instance_uuid = ?", server):
        yield "request_specs"
    if _value(api, "SELECT 1 FROM instance_mappings WHERE instance_uuid = ? AND NOT queued_for_delete", server):
        yield "instance_mappings"


def _starts(log: Path, server: str) -> dict[str, int]:
    found: dict[str, int] = {}
    if not log.exists():
        return found  # no guest was ever started
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if (event["event"], event["server"]) == ("start", server):
            found[event["host"]] = found.get(event["host"], 0) + 1
    return found
