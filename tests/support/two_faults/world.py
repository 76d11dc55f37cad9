"""What has to hold after two faults, judged from raw rows, raw files and the log of the guests.

Nothing here is shared with the product or its audit: each database is read as SQLite has it, each disk is hashed here,
and whether a guest runs is asked of the lock that its process holds.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from support.labs import shares

Row = dict[str, Any]

BLOCK: Final = 4096
"""The guest itself writes into the first block of its disks; only what lies behind that is compared."""

OVER: Final = ("confirmed", "reverted", "error", "failed", "cancelled", "done", "completed")
"""What a row of migrations says of a migration that nobody carries on."""

_WHOLE_FILE: Final = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_SWAP: Final = ".swap"
_RUNS: Final = "its running guest"
_STORE: Final = ".droveway-store"
_CELLS: Final = "cells/*.sqlite"


_REST: Final = {"vcpus_used": 0, "memory_mb_used": 0, "local_gb_used": 0, "running_vms": 0}
"""What compute_nodes says of a host that has nothing."""
_TRACKED: Final = (*_REST, "free_ram_mb", "free_disk_gb", "updated_at")
_CLASSES: Final = {"VCPU": "vcpus_used", "MEMORY_MB": "memory_mb_used", "DISK_GB": "local_gb_used"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a point; ``trouble`` is empty when it held."""

    kind: str
    point: str
    trouble: str
    seconds: float


class Watch:
    """Looks at a lab before the first fault, and says later what must not have become of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.servers = {row["uuid"]: row["display_name"] for row in cell_rows(root, "instances") if not row["deleted"]}
        self.disks = {server: dict(self.bytes_of(server)) for server in self.servers}
        self._volumes = {path.name: content(path) for path in sorted((root / "volumes").glob("*"))}
        self._before = {server: self._photograph(server) for server in self.servers}
        self._untracked = _untracked(root)

    def trouble(
        self, server: str, *, ended: bool, verifying: bool = False, deleted: bool = False, dead: Collection[str] = ()
    ) -> str:
        """One sentence about the first thing that is wrong; "" when all is well.

        ``server`` is the one that was moved, all others are neighbours.  ``ended``: its move is over, so that rows,
        services and hosts have to agree, and nothing may be left over; ``verifying``: it waits to be confirmed or
        reverted.  ``deleted``: its user deleted it.  Of ``dead`` hosts only the disks are looked at.
        """
        return next(self._troubles(server, ended, verifying, deleted, dead), "")

    def is_whole(self, server: str, *, dead: Collection[str] = ()) -> bool:
        """Whether each disk of the server stands whole where a host that is not dead reaches it."""
        lost = _of_dead(self.root, dead)
        found = [path for path in folders(self.root, server) if path not in lost]
        return all(self.stands(server, found, name, known) for name, known in self.disks[server].items())

    def _troubles(
        self, server: str, ended: bool, verifying: bool, deleted: bool, dead: Collection[str]
    ) -> Iterator[str]:
        yield from overlaps(self.root)
        for each in self.servers:
            if len(at := [host for host in running_on(self.root, each) if host not in dead]) > 1:
                yield f"the guest of {self.servers[each]} runs on {' and on '.join(at)}"
        yield from self._lost_disks(server, deleted)
        for each in self.servers:
            if each != server:
                yield from self._changed(each)
        if deleted and ended:
            yield from self.left_of_deleted(server, dead)
        elif ended or verifying:
            yield from self.disagreeing(server, verifying, dead)

    def bytes_of(self, server: str) -> Iterator[tuple[str, str]]:
        """Name and content of each disk of the server where its row says that it lives."""
        row = the_row(self.root, server)
        folder = instances(self.root, row["host"]) / server
        for path in sorted(folder.glob("disk*")) if folder.is_dir() else []:
            if is_disk(path):
                yield path.name, content(path)

    def stands(self, _server: str, found: Iterable[Path], name: str, known: str) -> bool:
        """Whether the disk stands whole in one of the directories."""
        return any(content(folder / name) == known for folder in found if (folder / name).is_file())

    def _lost_disks(self, server: str, deleted: bool) -> Iterator[str]:
        for each, disks in self.disks.items():
            if deleted and each == server:
                continue
            found = folders(self.root, each)
            for name, known in disks.items():
                if not self.stands(each, found, name, known):
                    where = ", ".join(str(path.relative_to(self.root)) for path in found) or "nowhere"
                    yield f"no whole copy of {name} of {self.servers[each]} exists (looked in: {where})"
        gone = {row["volume"] for row in rows(self.root / "services.sqlite", "attachments")}
        for volume, known in self._volumes.items():
            path = self.root / "volumes" / volume
            if not path.exists() and not (deleted and volume not in gone):
                yield f"the volume {volume} is gone"
            elif path.exists() and content(path) != known:
                yield f"the volume {volume} has other bytes"

    def _changed(self, server: str) -> Iterator[str]:
        now = self._photograph(server)
        before = self._before[server]
        for key in sorted({*now, *before}):
            if now.get(key) != before.get(key):
                yield f"of the neighbour {self.servers[server]} {key} changed: {before.get(key)} -> {now.get(key)}"

    def _photograph(self, server: str) -> dict[str, object]:
        """Everything that is the server's own: rows of all databases that name it or its things, files, guests."""
        services = self.root / "services.sqlite"
        ports = {row["id"] for row in rows(services, "ports") if row["server"] == server}
        volumes = {row["volume"] for row in rows(services, "attachments") if row["server"] == server}
        mine = {server, *ports, *volumes}
        seen: dict[str, object] = {}
        for database in [*sorted(self.root.glob(_CELLS)), self.root / "api.sqlite", services]:
            for table in tables(database):
                kept = [row for row in rows(database, table) if mine.intersection(map(str, row.values()))]
                if kept:
                    seen[f"{database.stem}.{table}"] = sorted(json.dumps(row, default=repr) for row in kept)
        seen["allocations"] = allocations(self.root, server)
        for folder in folders(self.root, server):
            for path in sorted(folder.iterdir()):
                seen[str(path.relative_to(self.root))] = (path.stat().st_mode, content(path))
        for host in hosts(self.root):
            for place in ("connections", "vifs"):
                for path in sorted((self.root / "hosts" / host / place / server).glob("*")):
                    seen[str(path.relative_to(self.root))] = path.read_bytes()
            definition = self.root / "hosts" / host / "domains" / f"{server}.json"
            if definition.exists():
                seen[f"the definition on {host}"] = definition.read_bytes()
        seen["where its guest runs"] = running_on(self.root, server)
        return seen

    def left_of_deleted(self, server: str, dead: Collection[str]) -> Iterator[str]:
        """What is left of a server that was deleted."""
        name = self.servers[server]
        for row in cell_rows(self.root, "instances"):
            if row["uuid"] == server and not row["deleted"]:
                yield f"the deleted server {name} has a live row"
        services = self.root / "services.sqlite"
        for table in ("attachments", "ports"):
            if any(row["server"] == server for row in rows(services, table)):
                yield f"of the deleted server {name} a row of {table} is left"
        for consumer in (server, *self.migrations(server)):
            if held := allocations(self.root, consumer):
                yield f"the deleted server {name} still holds {held}"
        for host in hosts(self.root):
            if host not in dead and (left := _not_owed(self.root, host, server, dead)):
                yield f"of the deleted server {name} is left on {host}: {', '.join(left)}"

    def migrations(self, server: str) -> dict[str, Row]:
        return {row["uuid"]: row for row in own_rows(self.root, "migrations", server)}

    def disagreeing(self, server: str, verifying: bool, dead: Collection[str]) -> Iterator[str]:
        """Where the rows of a server that rests do not agree with the services and the hosts."""
        name, row = self.servers[server], the_row(self.root, server)
        host = row["host"]
        wanted = ("resized",) if verifying else ("active", "stopped")
        if row["vm_state"] not in wanted or row["task_state"] is not None:
            yield f"{name} rests as {row['vm_state']} with the task {row['task_state']}"
        live = [each for each in self.migrations(server).values() if not each["deleted"]]
        alive = [each["status"] for each in live if each["status"] not in OVER]
        if alive != (["finished"] if verifying else []):
            yield f"the migrations of {name} that are not over say {alive}"
        runs = running_on(self.root, server)
        if host not in dead and runs != ([host] if row["power_state"] == 1 else []):
            yield f"{name} has power_state {row['power_state']} on {host} and its guest runs on {runs or 'no host'}"
        yield from self.copies(server, name, verifying)
        yield from self._services(server, name, host)
        yield from self._books(server, name, row, live, verifying)
        yield from self.hosts(server, name, host, live, verifying, dead)

    def copies(self, server: str, name: str, verifying: bool) -> Iterator[str]:
        """Where the server has more than one copy of its rows, or the wrong one is visible."""
        found, home = copies(self.root, server), home_cell(self.root, server)
        if (visible := [cell for cell, row in found.items() if not row["hidden"]]) != [home]:
            yield f"{name} is mapped to {home}, and visible in {visible or 'no cell'}"
        if not verifying and list(found) != [home]:
            yield f"{name} lives in {home}, and has rows in {', '.join(found)}"
        for cell in sorted(self.root.glob(_CELLS)):
            keys = [row["key"] for row in rows(cell, "instance_system_metadata") if row["instance_uuid"] == server]
            if left := [key for key in keys if key.startswith("droveway_")]:
                yield f"of {name} {', '.join(left)} is left in {cell.stem}"

    def _services(self, server: str, name: str, host: str) -> Iterator[str]:
        services = self.root / "services.sqlite"
        ports = [row["id"] for row in rows(services, "ports") if row["server"] == server]
        bound = collections.defaultdict(list)
        for row in rows(services, "port_bindings"):
            bound[row["port"]].append((row["host"], row["status"]))
        for port in ports:
            if bound[port] != [(host, "ACTIVE")]:
                yield f"{name} lives on {host} and its port {port} is bound {bound[port]}"
        wanted = shares.needed(services)
        for each in shares.active(services, self.root / "placement.sqlite"):
            if each.server == server and (wrong := shares.misnamed(each, wanted)):
                yield f"of {name} {wrong}"
        volumes = sorted(
            str(row["volume_id"])
            for row in own_rows(self.root, "block_device_mapping", server)
            if not row["deleted"] and row["volume_id"]
        )
        found = sorted(
            (
                (row["volume"], (json.loads(row["connector"] or "null") or {}).get("host"), row["status"])
                for row in rows(services, "attachments")
                if row["server"] == server
            ),
            key=repr,
        )
        if found != [(volume, host, "attached") for volume in volumes]:
            yield f"{name} lives on {host} with the volumes {volumes}, and the attachments are {found}"

    def _books(self, server: str, name: str, row: Row, live: list[Row], verifying: bool) -> Iterator[str]:
        held = allocations(self.root, server)
        node = row["node"]
        if not self._is_held(server, held, node):
            yield f"{name} lives on {node} and holds {held}"
        else:
            amounts = (held[node].get("VCPU"), held[node].get("MEMORY_MB"))
            if amounts != (row["vcpus"], row["memory_mb"]):
                yield f"{name} has {row['vcpus']} vCPUs and {row['memory_mb']} MiB and holds {held}"
        for migration in self.migrations(server).values():
            kept = allocations(self.root, migration["uuid"])
            waits = verifying and migration in live and migration["status"] == "finished"
            if not self._is_held(server, kept, migration["source_node"]) if waits else kept:
                yield f"the migration of {name} that is {migration['status']} holds {kept}"
        if not verifying:
            for context in own_rows(self.root, "instance_extra", server):
                if context["migration_context"] is not None:
                    yield f"{name} has a migration context, and no migration"
        yield from self.usage()

    def _is_held(self, server: str, held: dict[str, dict[str, int]], node: str) -> bool:
        """Whether this is of the host, and below it all that the server's ports need there and nothing else."""
        above = shares.roots(self.root / "placement.sqlite")
        below = {provider: amounts for provider, amounts in held.items() if provider != node}
        host = next(row["host"] for row in cell_rows(self.root, "compute_nodes") if row["hypervisor_hostname"] == node)
        wanted = shares.together(shares.needed(self.root / "services.sqlite")[server][host])
        return node in held and {above[each] for each in held} == {node} and below == wanted

    def usage(self) -> Iterator[str]:
        """Where each migration is over or waits, compute_nodes counts what lives there and what waits to come back.

        All else in it, and the PCI devices, stands as it was.
        """
        mine = self._of_home("migrations", "instance_uuid")
        alive = [row for row in mine if not row["deleted"] and row["status"] not in OVER]
        if any(row["status"] != "finished" for row in alive):
            return
        waiting = {row["instance_uuid"]: row["source_compute"] for row in alive}
        extras = self._of_home("instance_extra", "instance_uuid")
        flavors = {row["instance_uuid"]: json.loads(row["flavor"]) for row in extras}
        on_volumes = {
            row["instance_uuid"]
            for row in self._of_home("block_device_mapping", "instance_uuid")
            if row["boot_index"] == 0 and row["destination_type"] == "volume" and not row["deleted"]
        }
        held: dict[str, collections.Counter[str]] = collections.defaultdict(lambda: collections.Counter(_REST))
        for row in self._of_home("instances", "uuid"):
            if row["deleted"]:
                continue
            server, kept = row["uuid"], flavors[row["uuid"]]
            no_root = server in on_volumes
            held[row["host"]].update(_amounts(row, _fields(kept["cur"])["swap"], no_root=no_root), running_vms=1)
            if server in waiting:
                old = _fields(kept["old"])
                held[waiting[server]].update(_amounts(old, old["swap"], no_root=no_root))
        for node in cell_rows(self.root, "compute_nodes"):
            wanted = held[node["host"]]
            wanted.update(_reserved(self.root, node["uuid"]))
            wanted["free_ram_mb"] = node["memory_mb"] - wanted["memory_mb_used"]
            wanted["free_disk_gb"] = node["local_gb"] - wanted["local_gb_used"]
            for column, amount in sorted(wanted.items()):
                if node[column] != amount:
                    yield f"{node['host']} counts {node[column]} as {column} and its servers make it {amount}"
        if (now := _untracked(self.root)) != self._untracked:
            yield f"of the hosts changed what no move writes: {self._untracked} -> {now}"

    def _of_home(self, table: str, column: str) -> list[Row]:
        """The table's rows of every server, each in the cell that the server is mapped to."""
        servers = dict.fromkeys(row["uuid"] for row in cell_rows(self.root, "instances"))
        return [row for server in servers for row in own_rows(self.root, table, server, column)]

    def hosts(
        self, server: str, name: str, host: str, live: list[Row], verifying: bool, dead: Collection[str]
    ) -> Iterator[str]:
        source = next((row["source_compute"] for row in live if row["status"] == "finished"), None)
        for each in hosts(self.root):
            if each in dead:
                continue
            if each == host:
                yield from self._at_home(server, name, host, verifying, dead)
            elif verifying and each == source:
                where = instances(self.root, each) / f"{server}_resize"
                if self.disks[server] and not where.is_dir():
                    yield f"{name} waits, and nothing of it is set aside on {each}"
            else:
                found = _not_owed(self.root, each, server, dead)
                extra = [thing for thing in found if not _is_shared(self.root, each, host, thing, server, verifying)]
                if extra:
                    yield f"{name} lives on {host}, and on {each} is left: {', '.join(extra)}"

    def _at_home(self, server: str, name: str, host: str, verifying: bool, dead: Collection[str]) -> Iterator[str]:
        here = instances(self.root, host)
        if here not in {instances(self.root, each) for each in dead}:
            extra = [path.name for path in here.glob(f"{server}_*") if not _may_stay(path, verifying)]
            if extra:
                yield f"of {name} {', '.join(extra)} is left on {host}"
            if not verifying and (marks := [path.name for path in (here / server).glob("droveway*")]):
                yield f"a mark of a move that is over is left on the disks of {name}: {marks}"
        for disk in self.disks[server]:
            if not (here / server / disk).is_file():
                yield f"{name} lives on {host} and its {disk} is not there"
        if f"domains/{server}.json" not in standing_on(self.root, host, server):
            yield f"{name} lives on {host} and is not defined there"


def content(path: Path) -> str:
    """A hash of what a file has beyond its first block; blocks of zeros and holes count as nothing."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while offset < size:
            try:
                offset = os.lseek(file.fileno(), offset, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError:
                break
            end = os.lseek(file.fileno(), offset, os.SEEK_HOLE)
            for at in range(max(offset, BLOCK), end, BLOCK):
                data = os.pread(file.fileno(), BLOCK, at)
                if data.strip(b"\0"):
                    found.update(b"%d:" % at + data.rstrip(b"\0"))
            offset = end
    return found.hexdigest()


def is_disk(path: Path) -> bool:
    """Whether a file of a server's directory is one of its disks that has to cross: swap is made anew."""
    return path.is_file() and path.suffix not in (_SWAP, ".info", ".part")


def hosts(root: Path) -> list[str]:
    """The names of the lab's hosts."""
    return sorted(path.name for path in (root / "hosts").iterdir() if path.is_dir())


def instances(root: Path, host: str) -> Path:
    """Where a host keeps its servers' disks, in the end."""
    return (root / "hosts" / host / "instances").resolve()


def folders(root: Path, server: str) -> list[Path]:
    """Every directory of the server on any host, under whatever name, each once."""
    found = {path for host in hosts(root) for path in instances(root, host).glob(f"*{server}*") if path.is_dir()}
    return sorted(found)


def standing_on(root: Path, host: str, server: str) -> list[str]:
    """What stands of the server on the host: directories, definition, connected volumes, plugged ports, a run."""
    base = root / "hosts" / host
    found = [f"instances/{path.name}" for path in instances(root, host).glob(f"*{server}*")]
    found += [f"instances/{path.name}" for path in instances(root, host).glob(".droveway-*") if path.name != _STORE]
    found += [f"{path.parent.name}/{path.name}" for path in (base / "domains").glob(f"{server}.*")]
    for place in ("connections", "vifs"):
        found += [f"{place}/{server}/{path.name}" for path in (base / place / server).glob("*")]
    if is_running(root, host, server):
        found.append(_RUNS)
    return sorted(found)


def is_running(root: Path, host: str, server: str) -> bool:
    """Whether a process holds the lock of the server's run on the host."""
    try:
        file = os.open(root / "hosts" / host / "run" / f"{server}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    finally:
        os.close(file)
    return int(struct.unpack("hhqqi", answer)[0]) != fcntl.F_UNLCK


def running_on(root: Path, server: str) -> list[str]:
    """The hosts on which a guest of the server runs now."""
    return [host for host in hosts(root) if is_running(root, host, server)]


def starts(root: Path) -> list[Row]:
    """Every line of the guests' log."""
    log = root / "guests.log"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def overlaps(root: Path) -> Iterator[str]:
    """Each start of a server while another run of it had not ended, by the guests' log."""
    runs: dict[str, dict[tuple[str, int, int], str]] = collections.defaultdict(dict)
    for line in starts(root):
        of_server, run = runs[line["server"]], (line["host"], line["pid"], line.get("born", 0))
        if line["event"] == "start":
            for other in of_server.values():
                yield f"the guest of {line['server']} was started on {line['host']} while it ran on {other}"
            of_server[run] = line["host"]
        else:
            of_server.pop(run, None)


def allocations(root: Path, consumer: str) -> dict[str, dict[str, int]]:
    """What a consumer holds in Placement, by the provider's name and the resource class."""
    held: dict[str, dict[str, int]] = collections.defaultdict(dict)
    placement = root / "placement.sqlite"
    query = (
        "SELECT p.name AS node, c.name AS class, a.used AS used, a.resource_class_id AS number FROM allocations a "
        "JOIN resource_providers p ON p.id = a.resource_provider_id "
        "LEFT JOIN resource_classes c ON c.id = a.resource_class_id WHERE a.consumer_id = ?"
    )
    with opened(placement) as database:
        for row in database.execute(query, (consumer,)):
            held[row["node"]][row["class"] or str(row["number"])] = row["used"]
    return dict(held)


def the_row(root: Path, server: str) -> Row:
    """The server's row in its cell, a deleted one when there is no other; where it has none, one of any cell."""
    found = own_rows(root, "instances", server, "uuid")
    found = found or [row for row in cell_rows(root, "instances") if row["uuid"] == server]
    return min(found, key=lambda row: bool(row["deleted"]))


def home_cell(root: Path, server: str) -> str | None:
    """The cell that the server is mapped to, as the API database has it."""
    query = "SELECT c.name FROM instance_mappings m JOIN cell_mappings c ON c.id = m.cell_id WHERE m.instance_uuid = ?"
    with opened(root / "api.sqlite") as database:
        found = database.execute(query, (server,)).fetchone()
    return str(found["name"]) if found else None


def own_rows(root: Path, table: str, server: str, column: str = "instance_uuid") -> list[Row]:
    """The server's rows of the table, in the cell that it is mapped to; without a mapping in every cell."""
    cell = home_cell(root, server)
    found = cell_rows(root, table) if cell is None else rows(root / "cells" / f"{cell}.sqlite", table)
    return [row for row in found if row[column] == server]


def copies(root: Path, server: str) -> dict[str, Row]:
    """The server's row in each cell that has a live one."""
    return {
        database.stem: row
        for database in sorted(root.glob(_CELLS))
        for row in rows(database, "instances")
        if row["uuid"] == server and not row["deleted"]
    }


def cell_rows(root: Path, table: str) -> list[Row]:
    """The table's rows in every cell."""
    return [row for database in sorted(root.glob(_CELLS)) for row in rows(database, table)]


def rows(database: Path, table: str) -> list[Row]:
    """The table's rows, as they are stored."""
    with opened(database) as connection:
        return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]


def tables(database: Path) -> list[str]:
    """The names of the database's tables."""
    with opened(database) as connection:
        return sorted(row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


@contextlib.contextmanager
def opened(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees rows by name and is closed again."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def _fields(flavor: Row) -> Row:
    """What a flavor says that is kept with a server."""
    return dict(flavor["nova_object.data"])


def _amounts(holder: Row, swap: int, *, no_root: bool) -> dict[str, int]:
    """What Nova's tracker counts for a server's row or a flavor: only whole GiB of swap, and no root on a volume."""
    disk = holder["ephemeral_gb"] + swap // 1024 + (0 if no_root else holder["root_gb"])
    return {"vcpus_used": holder["vcpus"], "memory_mb_used": holder["memory_mb"], "local_gb_used": disk}


def _reserved(root: Path, node: str) -> dict[str, int]:
    """What a host keeps for itself, as it told Placement."""
    query = (
        "SELECT c.name AS class, i.reserved AS kept FROM inventories i "
        "JOIN resource_providers p ON p.id = i.resource_provider_id "
        "JOIN resource_classes c ON c.id = i.resource_class_id WHERE p.uuid = ?"
    )
    with opened(root / "placement.sqlite") as database:
        told = {row["class"]: row["kept"] for row in database.execute(query, (node,))}
    return {column: told.get(name, 0) for name, column in _CLASSES.items()}


def _untracked(root: Path) -> list[Row]:
    """The hosts' rows without what a move changes in them, and their PCI devices."""
    nodes = [
        {key: value for key, value in row.items() if key not in _TRACKED} for row in cell_rows(root, "compute_nodes")
    ]
    return nodes + cell_rows(root, "pci_devices")


def _may_stay(path: Path, verifying: bool) -> bool:
    """A directory that was set aside waits beside its copy where both ends share a directory; a kept one stays."""
    return "_keep-" in path.name or (verifying and path.name.endswith("_resize"))


def _is_shared(root: Path, other: str, host: str, thing: str, server: str, verifying: bool) -> bool:
    """Whether the thing lies in a directory that both hosts share, and is right there."""
    if thing.startswith("instances/"):
        kept = "_keep-" in thing
        same = instances(root, other) == instances(root, host)
        return kept or (same and (thing == f"instances/{server}" or (verifying and thing.endswith("_resize"))))
    return False


def _not_owed(root: Path, host: str, server: str, dead: Collection[str]) -> list[str]:
    """What stands on the host, without what a dead host owes and without what is kept until a dead one is back."""
    left = standing_on(root, host, server)
    if host in set(_waiting_for(root, dead)):
        return [thing for thing in left if thing in (_RUNS, f"instances/{server}")]
    if instances(root, host) in {instances(root, each) for each in dead}:
        return [thing for thing in left if not thing.startswith("instances/")]
    return left


def _waiting_for(root: Path, dead: Collection[str]) -> Iterator[str]:
    """The hosts that keep a copy, as the journal says, until a dead host has shown its own."""
    for debt in rows(root / "journal.sqlite", "debts"):
        if debt["settled_at"] is None and json.loads(debt["details"]).get("after") in dead:
            yield str(debt["host"])


def _of_dead(root: Path, dead: Collection[str]) -> set[Path]:
    """The directories that only dead hosts reach."""
    alive = {instances(root, host) for host in hosts(root) if host not in dead}
    lost = {instances(root, host) for host in dead} - alive
    return {path for place in lost for path in place.glob("*")}
