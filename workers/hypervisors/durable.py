"""Small files that must survive a crash whole: written beside, synced, renamed into place."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(path: Path) -> None:
    """Make the directory and those above it, each with a durable name; done when it is there."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write(path: Path, data: bytes) -> None:
    """Replace the file by ``data``, making its directory when it is not there."""
    make_directory(path.parent)
    replace(path, data)


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the file's place in one go; its directory has to be there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def remove(path: Path) -> None:
    """Delete the file; done when it is not there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    sync_directory(path.parent)


def read(path: Path) -> bytes | None:
    """What the file holds, or None when it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
