"""Keeps room on the file system of the worker's journal for when all other room is gone.

The worker uses the reserve for two kinds of journal records: the results of actions, and all records of actions that
need no room on the disk themselves.  Such actions are an undo, the rename of a directory or the start of a guest.
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
    """A file whose size is the room that is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Make the file if there is enough room; a file system without room is left as it is."""
        new = self._path.with_name(f"{self._path.name}.new")
        # Whatever the cause of an error is, there is no reserve now, and a later call may find room.
        with contextlib.suppress(OSError):
            if self._path.exists():
                return
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, BYTES)
                new.rename(self._path)
            except OSError:
                new.unlink()
            finally:
                os.close(file)

    def give_up(self) -> bool:
        """Delete the file to make room; returns False when there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Delete the file for good; does nothing when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
