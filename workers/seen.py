"""Reads from a worker's journal how far its host has seen the journal of moves.

A lab reads it before each command, so this loads nothing but SQLite.
"""

from __future__ import annotations

import sqlite3
from typing import Final

JOURNAL: Final = "worker.sqlite"
"""The journal of a host's worker, in the host's directory."""

FORGOTTEN: Final = ""
"""The stem of the notes that outlive the moves which were forgotten: no step has it."""


def seen(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the highest epoch of any move, and the highest number of a step that a command had in its key."""
    kept = dict(db.execute("SELECT name, value FROM notes WHERE stem = ?", (FORGOTTEN,)))
    (epoch,) = db.execute("SELECT coalesce(max(epoch), 0) FROM moves").fetchone()
    steps = [int(key.split(".")[3]) for (key,) in db.execute("SELECT key FROM commands")]
    return max(epoch, kept.get("epoch", 0)), max([kept.get("step", 0), *steps])
