"""Keeps a copy of what the journal recorded of each move in a file.

An installation keeps these copies in ZooKeeper. A lab's ZooKeeper ends with the command that runs the lab.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from droveway.workers.hypervisors import durable

_ENDING: Final = ".json"


class InFolder:
    """Keeps a file for each move; only the command that holds the lab's lock writes there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, move: str) -> tuple[bytes, int] | None:
        """Return the copy and 0 as its version, since a file has no versions; None when there is no copy."""
        try:
            return self._file(move).read_bytes(), 0
        except FileNotFoundError:
            return None

    def put(self, move: str, data: bytes, version: int | None) -> bool:
        """Write the copy; False when it exists and ``version`` is None, or is missing and ``version`` is a number."""
        if (version is None) == self._file(move).exists():
            return False
        self._folder.mkdir(exist_ok=True)
        durable.replace(self._file(move), data)
        return True

    def moves(self) -> list[str]:
        """Return the ids of the moves that have a copy."""
        return sorted(path.stem for path in self._folder.glob(f"[!.]*{_ENDING}"))

    def forget(self, moves: Iterable[str]) -> None:
        """Delete the copies of moves that were purged."""
        for move in moves:
            self._file(move).unlink(missing_ok=True)

    def _file(self, move: str) -> Path:
        return self._folder / f"{move}{_ENDING}"
