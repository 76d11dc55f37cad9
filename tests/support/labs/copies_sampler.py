"""After every commit of a move between cells: is its server in one place, whole, for whoever reads all databases?

It hooks each commit where it happens, in the thread that made it.  A look reads the mapping, the rows of both cells and
the mapping again with SQL of its own, as a list of servers has to, and knows nothing of moves.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from droveway.persistence.database import Database

_MAPPED: Final = (
    "SELECT c.name FROM instance_mappings m JOIN cell_mappings c ON c.id = m.cell_id WHERE m.instance_uuid = ?"
)
_CHILDREN: Final = {
    "tags": "SELECT count(*) FROM tags WHERE resource_id = ?",
    "metadata": "SELECT count(*) FROM instance_metadata WHERE instance_uuid = ? AND deleted = 0",
    "block devices": "SELECT count(*) FROM block_device_mapping WHERE instance_uuid = ? AND deleted = 0",
    "extra": "SELECT count(*) FROM instance_extra WHERE instance_uuid = ? AND deleted = 0",
    "network info": "SELECT count(*) FROM instance_info_caches WHERE instance_uuid = ? AND deleted = 0",
}


class Seen(NamedTuple):
    """What one look found."""

    mapped: str
    visible: tuple[str, ...]
    """The cells whose copy is in the lists."""
    cores: int
    """What the server counts in its project's quota: the sum over all visible copies."""


class CopiesSampler:
    """What was looked at, and what was wrong; `watching` looks after every commit of the block."""

    def __init__(self, root: Path, server: str) -> None:
        self.looks: Counter[str] = Counter()
        """By database, how many commits were followed by a look."""
        self.wrong: list[str] = []
        """One sentence for each look at which a promise did not hold."""
        self.seen: list[Seen] = []
        """What was found, without repetitions."""
        self._root = root
        self._server = server
        self._lock = threading.Lock()
        self._hosts = {path.stem: self._hosts_of(path) for path in self._cells()}
        self._whole = self._children(self._mapped())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look after every commit until the block ends."""
        with contextlib.ExitStack() as stack:
            for name in ("write", "begin"):
                patched = self._after_commit(getattr(Database, name))
                stack.enter_context(mock.patch.object(Database, name, patched))
            yield

    def look(self, where: str) -> None:
        """Read all databases, and compare."""
        with self._lock:
            self.looks[where] += 1
            mapped, copies = self._read()
            visible = {cell: row for cell, row in copies.items() if not row["hidden"]}
            seen = Seen(mapped, tuple(visible), sum(row["vcpus"] for row in visible.values()))
            if not self.seen or self.seen[-1] != seen:
                self.seen.append(seen)
            self.wrong += [f"after a commit of {where}: {text}" for text in self._wrong(mapped, visible)]

    def _wrong(self, mapped: str, visible: dict[str, dict[str, Any]]) -> Iterator[str]:
        if mapped not in visible:
            yield f"the mapping names {mapped}, and in the lists are the copies of {sorted(visible) or 'no cell'}"
            return
        host = visible[mapped]["host"]
        if host not in self._hosts[mapped]:
            yield f"the mapped copy, in {mapped}, names {host}, which is no host of that cell"
        if (found := self._children(mapped)) != self._whole:
            yield f"the mapped copy, in {mapped}, has {found} and not {self._whole}"

    def _read(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """The mapping, and the rows of each cell; read again where the mapping changed meanwhile."""
        while True:
            before = self._mapped()
            copies = {path.stem: row for path in self._cells() for row in self._copy(path)}
            if self._mapped() == before:
                return before, copies

    def _mapped(self) -> str:
        return str(_rows(self._root / "api.sqlite", _MAPPED, self._server)[0][0])

    def _cells(self) -> list[Path]:
        return sorted((self._root / "cells").glob("*.sqlite"))

    def _copy(self, path: Path) -> list[dict[str, Any]]:
        query = "SELECT host, hidden, vcpus FROM instances WHERE uuid = ? AND deleted = 0"
        return [dict(row) for row in _rows(path, query, self._server)]

    def _children(self, cell: str) -> dict[str, int]:
        path = self._root / "cells" / f"{cell}.sqlite"
        return {name: int(_rows(path, query, self._server)[0][0]) for name, query in _CHILDREN.items()}

    def _hosts_of(self, path: Path) -> set[str]:
        return {str(row["host"]) for row in _rows(path, "SELECT host FROM compute_nodes")}

    def _after_commit(self, transaction: Callable[[Database], Any]) -> Callable[[Database], Any]:
        @contextlib.contextmanager
        def committed(database: Database) -> Iterator[Any]:
            with transaction(database) as opened:
                yield opened
            self.look(Path(str(database.engine.url.database)).stem)

        return committed


def _rows(database: Path, query: str, *values: str) -> list[sqlite3.Row]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(query, values).fetchall()
