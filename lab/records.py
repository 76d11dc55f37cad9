"""Mirrors what a lab's journal recorded of its moves in files: no ZooKeeper outlives the command that runs the lab."""

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
        """Return the mirror, and 0 for the one version that there is; or None."""
        try:
            return self._file(move).read_bytes(), 0
        except FileNotFoundError:
            return None

    def put(self, move: str, data: bytes, version: int | None) -> bool:
        """Write the mirror, unless there is one where ``version`` says that there is none."""
        if (version is None) == self._file(move).exists():
            return False
        self._folder.mkdir(exist_ok=True)
        durable.replace(self._file(move), data)
        return True

    def moves(self) -> list[str]:
        """List the ids of the moves that have one."""
        return sorted(path.stem for path in self._folder.glob(f"[!.]*{_ENDING}"))

    def forget(self, moves: Iterable[str]) -> None:
        """Remove what is mirrored of moves that were purged."""
        for move in moves:
            self._file(move).unlink(missing_ok=True)

    def _file(self, move: str) -> Path:
        return self._folder / f"{move}{_ENDING}"
