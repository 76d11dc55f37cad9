"""Room that is kept on the file system of the worker's journal for when all other room is gone.

It is for one answer, and for what itself needs no room: to undo, to rename back, to start a guest.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from oslo_utils import units

BYTES: Final = units.Mi
"""Enough for some hundred short transactions, each of which writes a few pages of the journal."""


class Reserve:
    """A file that holds room by being there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Take the room, if there is that much; a file system without room is left as it is."""
        if self._path.exists():
            return
        new = self._path.with_name(f"{self._path.name}.new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, BYTES)
        except OSError:
            # Whatever keeps it from being taken, there is no reserve: the next try may find room.
            new.unlink()
        else:
            new.rename(self._path)
        finally:
            os.close(file)

    def give_up(self) -> bool:
        """Make room; False when there was nothing to give."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Leave nothing of it."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
