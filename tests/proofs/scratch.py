"""Where labs are made that nobody keeps: in memory, where there is room for them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 2 * 1024**3
"""Bytes: with so much room labs are in memory, for a SIGKILL loses nothing that was written."""


def place() -> Path:
    """The directory that such labs' directories are made in; a TMPDIR that is in memory itself is kept to."""
    usual = Path(tempfile.gettempdir())
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    return MEMORY if has_room and not usual.is_relative_to(MEMORY) else usual
