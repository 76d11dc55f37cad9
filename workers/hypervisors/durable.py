"""Reads and writes small files so that a crash leaves the old or the new content whole, never a part."""

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
    """Make the directory and those above it, each durably; does nothing when it is there."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write(path: Path, data: bytes) -> None:
    """Replace the file by ``data``, after making its directory if it is not there."""
    make_directory(path.parent)
    replace(path, data)


def replace(path: Path, data: bytes) -> None:
    """Replace the file by ``data`` in one go, durably; its directory has to be there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def remove(path: Path) -> None:
    """Delete the file, durably; does nothing when it is not there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    sync_directory(path.parent)


def read(path: Path) -> bytes | None:
    """Return the content of the file; None when it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
