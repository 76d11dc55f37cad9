"""The state in which a point of the crash matrix leaves its lab: what tells two such states apart."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from droveway.lab.session import Lab

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+\d\d:\d\d)?")
_NUMBER: Final = re.compile(r'("(?:epoch|inode|mtime_ns)": ?)\d+')

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
}
"""Tables that say how a state came about and not what it is."""

_NUMBERS: Final = {"id", "generation", "revision", "consumer_id", "created_at", "updated_at", "deleted"}
"""Columns that count, and those that say when."""

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

_SAME: Final = (".lock", ".log", ".sqlite-wal", ".sqlite-shm", ".pid", ".ask", ".answer", ".starts")


def digest(lab: Lab, known: frozenset[str]) -> str:
    """A hash of all rows, files and guests of the lab at rest, normalised for times and for ids not ``known``."""
    total = hashlib.sha256()
    for line in sorted(_lines(lab)):
        total.update(_normal(line, known).encode())
        total.update(b"\n")
    return total.hexdigest()


def ids(lab: Lab) -> frozenset[str]:
    """Every id that the lab knows."""
    return frozenset(found for line in _lines(lab) for found in _UUID.findall(line))


def _normal(line: str, known: frozenset[str]) -> str:
    text = _UUID.sub(lambda found: found[0] if found[0] in known else "ID", line)
    return _NUMBER.sub(r"\1N", _TIME.sub("TIME", text))


def _lines(lab: Lab) -> Iterator[str]:
    for path in sorted(lab.layout.root.rglob("*")):
        name = str(path.relative_to(lab.layout.root))
        if path.suffix == ".sqlite":
            if path.name != "worker.sqlite":
                yield from _rows(name, path)
        elif not name.endswith(_SAME) and name not in ("faults.json", "lab.json", "marks.json"):
            yield f"{name} {_content(path)}"
    for host in sorted(lab.identity.hosts):
        for guest in lab.hypervisor(host).guests():
            yield f"guest {host} {guest.server} running={guest.running} {guest.vcpus} {guest.memory_mb}"


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    status = path.stat()
    if path.is_dir():
        return f"mode {status.st_mode:o}"
    content = path.read_text(encoding="utf-8") if path.suffix == ".json" else f"size {status.st_size}"
    return f"mode {status.st_mode:o} {content}"


def _rows(name: str, path: Path) -> Iterator[str]:
    connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(set(tables) - _HISTORY):
            for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - SQLite's own name of a table
                facts = {key: row[key] for key in row.keys() if _matters(table, key)}  # noqa: SIM118 - not a dict
                yield f"{name} {table} {facts}"
    finally:
        connection.close()


def _matters(table: str, column: str) -> bool:
    return column in _OF_A_MOVE if table == "moves" else column not in _NUMBERS
