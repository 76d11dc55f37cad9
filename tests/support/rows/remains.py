"""What is left of a deleted server in a lab, read from the raw tables of every database and from the hosts' folders."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

EVIDENCE: Final = frozenset({"instance_actions", "commands"})
"""Tables whose rows tell what was done, and stay: Nova's actions, and what a worker was told."""

JOURNAL: Final = "journal.sqlite"
"""It is the history, and is purged by age."""

NOTHING_IN_IT: Final = ("connections", "vifs")
"""Folders below a host with one of its own for each server: it stays, and nothing may lie in it."""

LOCKS_AND_LOGS: Final = (".lock", ".log")


def of(root: Path, server: str) -> list[str]:
    """One phrase for each live row that names the server, and for each of its files on a host."""
    return [*_rows(root, server), *_files(root, server)]


def _rows(root: Path, server: str) -> Iterator[str]:
    for path in sorted(path for path in root.rglob("*.sqlite") if path.name != JOURNAL):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for row in connection.execute(f'SELECT * FROM "{table}"'):
                    if _names(row, server) and table not in EVIDENCE and not _is_gone(row):
                        yield f"{path.relative_to(root)}: {table}: {dict(row)}"


def _names(row: sqlite3.Row, server: str) -> bool:
    return any(server in str(value) for value in row)


def _is_gone(row: sqlite3.Row) -> bool:
    columns = row.keys()
    return bool("deleted" in columns and row["deleted"]) or bool(
        "queued_for_delete" in columns and row["queued_for_delete"]
    )


def _files(root: Path, server: str) -> Iterator[str]:
    for path in sorted((root / "hosts").rglob(f"*{server}*")):
        empty = path.parent.name in NOTHING_IN_IT and path.is_dir() and not any(path.iterdir())
        if not empty and not (path.parent.name == "run" and path.suffix in LOCKS_AND_LOGS):
            yield str(path.relative_to(root))
