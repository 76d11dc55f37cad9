"""Reads from a worker's journal the highest epoch and step number that the worker was asked with.

An older copy of the journal of moves is recognised by lower numbers.  A lab reads them before each command, so this
module loads nothing but SQLite.
"""

from __future__ import annotations

import sqlite3
from typing import Final

JOURNAL: Final = "worker.sqlite"
"""The journal of a host's worker, in the host's directory."""

FORGOTTEN: Final = ""
"""The stem of notes that belong to no step or move, and so stay when a move is forgotten."""


def seen(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the highest epoch of any move, and the highest step number in the key of any command."""
    kept = dict(db.execute("SELECT name, value FROM notes WHERE stem = ?", (FORGOTTEN,)))
    (epoch,) = db.execute("SELECT coalesce(max(epoch), 0) FROM moves").fetchone()
    steps = [int(key.split(".")[3]) for (key,) in db.execute("SELECT key FROM commands")]
    return max(epoch, kept.get("epoch", 0)), max([kept.get("step", 0), *steps])
