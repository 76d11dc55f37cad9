"""A power cut: what was never synced is gone from the files below some directories, in the worst order.

A file has the bytes that its last fsync found.  Names are either all as they were at the last fsync of their directory,
or all as they are now: a file system may write names long before the bytes that they stand for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

APART = ("run", "sqlite")
"""What names of files contain that are no part of it: guests' processes, and what SQLite syncs itself."""


class Synced(NamedTuple):
    data: bytes
    mtime_ns: int


class Medium:
    """What would be left of these directories; `watching` follows every sync while it lasts."""

    def __init__(self, tops: Iterable[Path], vault: Path) -> None:
        """``vault``, on the same file system, keeps a second name of every file, so that none is ever lost."""
        self._tops = list(tops)
        self._vault = vault
        self._vault.mkdir()
        self._numbers = itertools.count()
        self._kept: dict[int, Path] = {}
        self._files: dict[int, Synced] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._directories: list[int] = []
        for top in self._tops:
            for folder, _, files in os.walk(top):
                self._note_names(Path(folder))
                for name in files:
                    if not _is_apart(Path(folder, name)):
                        self._note_file(Path(folder, name))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is synced from now on."""
        with (
            mock.patch.object(os, "fsync", self._after(os.fsync)),
            mock.patch.object(os, "fdatasync", self._after(os.fdatasync)),
        ):
            yield
        for directory in self._directories:
            os.close(directory)

    def cut(self, *, names: bool) -> None:
        """Leave only what is on the medium; with ``names`` every name as it is now, whatever was synced of it."""
        for top in self._tops:
            self._cut(top, top.stat().st_ino, keep=names)
        for top in self._tops:
            for folder, _, _ in os.walk(top):
                self._note_names(Path(folder))

    def _after(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(file: Any) -> None:
            sync(file)
            number = file if isinstance(file, int) else file.fileno()
            path = Path(f"/proc/self/fd/{number}")
            if not any(path.resolve().is_relative_to(top) for top in self._tops):
                return
            if stat.S_ISDIR(os.fstat(number).st_mode):
                self._note_names(path)
            else:
                self._note_file(path)

        return synced

    def _note_file(self, path: Path) -> None:
        status = path.stat()
        if status.st_ino not in self._kept:
            self._kept[status.st_ino] = self._vault / str(next(self._numbers))
            os.link(path.resolve(), self._kept[status.st_ino])
        self._files[status.st_ino] = Synced(path.read_bytes(), status.st_mtime_ns)

    def _note_names(self, path: Path) -> None:
        # Kept open, so that no other directory gets its number.
        self._directories.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        self._names[path.stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}

    def _cut(self, folder: Path, number: int, *, keep: bool) -> None:
        """Make the folder hold what the directory of this number holds on the medium."""
        present = {entry.name: entry.inode() for entry in os.scandir(folder)}
        wanted = present if keep else self._names.get(number, {})
        for name, inode in {**present, **wanted}.items():
            path = folder / name
            if _is_apart(path):
                continue
            if wanted.get(name) == inode == present.get(name):
                self._cut_entry(path, inode, keep=keep)
            else:
                self._replace(path, wanted.get(name))

    def _cut_entry(self, path: Path, inode: int, *, keep: bool) -> None:
        if path.is_dir():
            self._cut(path, inode, keep=keep)
        elif path.is_file():
            self._write(path, self._files.get(inode, Synced(b"", path.stat().st_mtime_ns)))

    def _replace(self, path: Path, wanted: int | None) -> None:
        """Put what bore this number in the place of whatever is there now."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if wanted in self._kept:
            os.link(self._kept[wanted], path)
            self._write(path, self._files[wanted])
        elif wanted in self._names:
            path.mkdir()
            for name, inode in self._names[wanted].items():
                self._replace(path / name, inode)
        elif wanted is not None:
            path.touch()

    def _write(self, path: Path, synced: Synced) -> None:
        if path.read_bytes() != synced.data:
            path.write_bytes(synced.data)
        os.utime(path, ns=(synced.mtime_ns, synced.mtime_ns))


def _is_apart(path: Path) -> bool:
    return any(part in path.name for part in APART)
