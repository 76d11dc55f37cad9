"""Lets a test process make once the two databases of a lab that migrations make, which is a tenth of all labs' time.

A database without rows of its own is the same in every lab, so that its file is written again for each.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from droveway.clients.embedded import placement
from droveway.lab import build
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import migrate

_create = placement._create


def share() -> None:
    """Let each lab that is made from now on get copies."""
    placement._create = _copy_placement
    build.migrate = _Journals  # type: ignore[assignment, attr-defined]


class _Journals:
    """Stands where `droveway.lab.build` names the module of the journal's schema."""

    @staticmethod
    def sync(journal: Database) -> None:
        """Give an empty journal this version's schema."""
        path = Path(str(journal.engine.url.database))
        assert path.stat().st_size == 0, f"{path} is not empty"
        path.write_bytes(_journal())


def _copy_placement(database: Path) -> None:
    new = database.with_name(f"{database.name}.new")
    new.write_bytes(_placement())
    new.rename(database)


@functools.cache
def _journal() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.sqlite")
        made = Database(sqlite_url(path))
        migrate.sync(made)
        made.close()
        return path.read_bytes()


@functools.cache
def _placement() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "placement.sqlite")
        _create(path)
        return path.read_bytes()
