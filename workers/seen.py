"""Reads from a worker's journal the highest epoch and the highest step number in the commands that it has got.

The conductors' journal records every move with its epochs and step numbers.  If its numbers are lower than those in a
worker's journal, the conductors' journal was restored from an older copy.  A lab reads the workers' numbers before each
command, so this module loads nothing but SQLite.
"""

from __future__ import annotations

import sqlite3
from typing import Final

JOURNAL: Final = "worker.sqlite"
"""The journal of a host's worker, in the host's directory."""

OF_NO_MOVE: Final = ""
"""The stem of the notes that belong to no step and no move.  The worker keeps them when it forgets a move."""


def seen(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the highest epoch of any move, and the highest step number in the key of any command."""
    kept = dict(db.execute("SELECT name, value FROM notes WHERE stem = ?", (OF_NO_MOVE,)))
    (epoch,) = db.execute("SELECT coalesce(max(epoch), 0) FROM moves").fetchone()
    steps = [int(key.split(".")[3]) for (key,) in db.execute("SELECT key FROM commands")]
    return max(epoch, kept.get("epoch", 0)), max([kept.get("step", 0), *steps])
