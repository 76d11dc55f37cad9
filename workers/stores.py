"""Identifies an instances directory by a random id that is written into it once.

Hosts that share the directory read the same id.  Another file system that is mounted in its place has another id or
none, and so does an empty mount point.  Inodes would not tell them apart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from pathlib import Path
from typing import Final

from droveway.errors import Refused
from droveway.wire.values import UUID

LOG = logging.getLogger(__name__)

STORE: Final = ".droveway-store"
"""The file that holds the id."""

_ID: Final = re.compile(UUID)
_MODE: Final = 0o644


def identify(top: int, where: Path) -> str:
    """Return the id of an open instances directory, after writing one if it has none.

    Raises OSError, and Refused for a damaged id.  When several hosts write at once, one id wins, and all return it.
    """
    if not (found := known(top, where)):
        _write(top)
        found = known(top, where)
    return found


def known(top: int, where: Path) -> str:
    """Return the id, or empty when none was written; raises OSError, and Refused for a file that holds no id."""
    try:
        file = os.open(STORE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=top)
    except FileNotFoundError:
        return ""
    with os.fdopen(file, "rb") as stream:
        found = stream.read(64).decode("ascii", "replace").strip()
    if not _ID.fullmatch(found):
        raise Refused(f"{where / STORE} holds no id of the directory: remove it, and it is written anew")
    return found


def begin(top: int, where: Path) -> None:
    """Write an id where there is none.

    An error is only logged, so that a directory that cannot be written to does not keep the worker from starting.
    """
    if STORE in os.listdir(top):
        return
    try:
        _write(top)
    except OSError as error:
        LOG.warning("%s gets no id yet, so no move can use it: %s", where, error)


def _write(top: int) -> None:
    temporary = f"{STORE}.{uuid.uuid4()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE, dir_fd=top)
    try:
        with os.fdopen(file, "w") as stream:
            stream.write(f"{uuid.uuid4()}\n")
            stream.flush()
            os.fchmod(stream.fileno(), _MODE)
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, STORE, src_dir_fd=top, dst_dir_fd=top)
    finally:
        os.unlink(temporary, dir_fd=top)
    os.fsync(top)
