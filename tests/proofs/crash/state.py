"""The state that a point of the crash matrix has its lab in, at rest or under way: what tells two of them apart."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from droveway.lab.layout import RECORDED
from droveway.lab.session import Lab
from droveway.workers.hypervisors import guests_log
from droveway.workers.transfer import extents

HEAD: Final = 64 * 1024
"""Bytes at the start of a disk that the guest itself may write."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+\d\d:\d\d)?")
_NUMBER: Final = re.compile(r"""("(?:epoch|inode|[cm]time_ns|free_bytes)": ?|'droveway_epoch', 'value': ')\d+""")

_HISTORY: Final = {
    "instance_actions",
    "instance_actions_events",
    "move_steps",
    "move_attempts",
    "move_flows",
    "claims",
    "counters",
    "instance_faults",
    "logbooks",
    "flowdetails",
    "atomdetails",
    "intents",
    "sqlite_sequence",
    "traits",
    "resource_classes",
    "consumer_types",
}
"""Tables that say how a state came about and not what it is, or what words Placement knows."""

_NUMBERS: Final = {"id", "generation", "revision", "consumer_id", "created_at", "updated_at", "deleted"}
"""Columns that count, and those that say when."""

_IDS: Final = {"id", "consumer_id"}
"""Those of them that are ids in some tables, which others name."""

_OF_A_MOVE: Final = {
    "kind",
    "server",
    "active_server",
    "state",
    "flow_uuid",
    "hold",
    "source_host",
    "dest_host",
    "deadline",
}
"""The columns of a move that say what it is; the others tell how it went."""

_OF_A_FLOW: Final = _OF_A_MOVE | {
    "parked_from",
    "attempt",
    "dest_cell",
    "target_host",
    "policy",
    "cancel_requested",
    "delete_requested",
    "storage",
    "transfer",
    "transfer_asked",
    "keep_image",
    "before",
}
"""The columns of a move that its flow goes by."""

_NOT_DONE: Final = ("PENDING", "REVERTED")
"""An atom that was undone is to the rest of its flow what one is that never ran."""

_RETRY: Final = "RETRY_DETAIL"

_FLOW: Final = (
    "SELECT state FROM flowdetails",
    "SELECT kind, version, outcome FROM move_flows",
    "SELECT attempt, cell, host, request FROM move_attempts",
    "SELECT step, direction FROM move_steps WHERE ended_at IS NULL",
    "SELECT service, call FROM intents WHERE state = 'open'",
)
"""What a flow under way goes on from, beside its atoms and the state that it has made, and what it has yet to close."""

_WORKER: Final = (
    "SELECT server, move, peer FROM offers",
    "SELECT stem, name, value FROM notes",
    "SELECT step, action, direction FROM commands WHERE finished IS NULL",
)
"""What a host's worker goes on from."""

_SMALL: Final = 64 * 1024
"""Bytes: of so small a file the whole content counts; a disk's beyond what the guest itself writes."""

_SAME_FILES: Final = ("faults.json", "lab.json", "marks.json")
_SAME: Final = (".lock", ".log", ".sqlite-wal", ".sqlite-shm", ".pid", ".ask", ".answer", ".starts")


def digest(lab: Lab, known: frozenset[str]) -> str:
    """A hash of all rows, files and guests of the lab at rest, normalised for times and for ids not ``known``."""
    total = hashlib.sha256()
    for line in sorted(_named_so(_timeless(line), dict.fromkeys(_unknown(line, known), "ID")) for line in _lines(lab)):
        total.update(line.encode())
    return total.hexdigest()


def under_way(lab: Lab, known: frozenset[str]) -> str:
    """The same of a lab between two steps of a flow, with the bytes of its disks and what the flow goes on from.

    Ids that are not ``known`` count as the same where they stand in the same places, so that a row which names the
    wrong one of two is found.
    """
    total = hashlib.sha256()
    for line in _named(sorted(_lines(lab, flow=True)), known):
        total.update(line.encode())
    return total.hexdigest()


def ids(lab: Lab) -> frozenset[str]:
    """Every id that the lab knows."""
    return frozenset(found for line in _lines(lab) for found in _UUID.findall(line))


def _unknown(line: str, known: frozenset[str]) -> set[str]:
    return {found for found in _UUID.findall(line) if found not in known}


def _timeless(line: str) -> str:
    """The line without times, epochs and what else a file system numbers."""
    return _NUMBER.sub(r"\1N", _TIME.sub("TIME", line)) + "\n"


def _named_so(line: str, names: Mapping[str, str]) -> str:
    return _UUID.sub(lambda found: names.get(found[0], found[0]), line)


def _named(lines: Iterable[str], known: frozenset[str]) -> list[str]:
    """The lines, normalised and in order, each id that is not known under a name that says where it stands."""
    timeless = [_timeless(line) for line in lines]
    places: dict[str, list[str]] = collections.defaultdict(list)
    for line in timeless:
        for found in _unknown(line, known):
            places[found].append(line)
    plain = dict.fromkeys(places, "ID")
    names = {}
    for found, at in places.items():
        seen = "".join(sorted(_named_so(line, plain | {found: "THIS"}) for line in at))
        names[found] = hashlib.sha256(seen.encode()).hexdigest()
    return sorted(_named_so(line, names) for line in timeless)


def _lines(lab: Lab, *, flow: bool = False) -> Iterator[str]:
    for path in sorted(lab.layout.root.rglob("*")):
        name = str(path.relative_to(lab.layout.root))
        if path.suffix == ".sqlite":
            if path.name != "worker.sqlite":
                yield from _rows(name, path, flow=flow)
            elif flow:
                yield from _worker(name, path)
        elif not name.endswith(_SAME) and name not in _SAME_FILES and path.parent.name != RECORDED:
            yield f"{name} {_content(path, whole=flow)}"
    for host in sorted(lab.identity.hosts):
        for guest in lab.hypervisor(host).guests():
            yield f"guest {host} {guest.server} running={guest.running} {guest.vcpus} {guest.memory_mb}"
    if flow:
        # A second run of a server may be over by now, and is still what the audit has to see.
        yield from (f"overlap {each}" for each in guests_log.overlaps(lab.layout.guests_log))


def _content(path: Path, *, whole: bool) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    status = path.stat()
    if path.is_dir():
        return f"mode {status.st_mode:o}"
    if path.suffix == ".json" or (whole and status.st_size <= _SMALL):
        return f"mode {status.st_mode:o} {path.read_text(encoding='utf-8', errors='replace')}"
    return f"mode {status.st_mode:o} size {status.st_size} {_data(path, status.st_size) if whole else ''}"


def _data(path: Path, size: int) -> str:
    """A hash of what the file holds beyond its head, its holes being zeros; not written as an id is."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for offset, length in extents.chunks(extents.data_extents(file.fileno(), size)):
            file.seek(max(offset, HEAD))
            data = file.read(max(0, offset + length - max(offset, HEAD)))
            if data != bytes(len(data)):
                found.update(f"{offset}:".encode())
                found.update(data)
    return found.hexdigest().upper()


def _worker(name: str, path: Path) -> Iterator[str]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as journal:
        for query in _WORKER:
            yield from (f"{name} {row}" for row in journal.execute(query))


def _rows(name: str, path: Path, *, flow: bool) -> Iterator[str]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(set(tables) - _HISTORY):
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                facts = dict(zip(row.keys(), row, strict=True))
                counted = {key: value for key, value in facts.items() if _matters(table, key, value, flow=flow)}
                gone = "gone" if flow and facts.get("deleted") else ""
                yield f"{name} {table} {counted} {gone}"
        if flow and "atomdetails" in tables:
            yield from _flow(connection)


def _flow(journal: sqlite3.Connection) -> Iterator[str]:
    for query in _FLOW:
        yield from (f"{query} {tuple(row)}" for row in journal.execute(query))
    for row in journal.execute("SELECT parent_uuid, name, state, intention, atom_type, results FROM atomdetails"):
        yield f"atom {_atom(row)}"


def _atom(row: sqlite3.Row) -> tuple[Any, ...]:
    if row["state"] in _NOT_DONE:
        return row["parent_uuid"], row["name"]
    *facts, results = row
    if row["atom_type"] == _RETRY and results is not None:
        # Each value that it gave out, with the failures that came of it: of those their class counts, not the step.
        results = [(value, _classes(failures)) for value, failures in json.loads(results)]
    return (*facts, results)


def _classes(failures: dict[str, Any]) -> list[str]:
    return sorted({name for failure in failures.values() for name in failure["exc_type_names"]})


def _matters(table: str, column: str, value: object, *, flow: bool) -> bool:
    if table == "moves":
        return column in (_OF_A_FLOW if flow else _OF_A_MOVE)
    # Who holds what counts where a flow is under way; at rest only the server is left to hold it.
    return column not in _NUMBERS or (flow and column in _IDS and isinstance(value, str))
