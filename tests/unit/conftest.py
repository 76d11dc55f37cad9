from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import orm

from droveway.persistence.database import Database

_ROWS = Path(__file__).parent.parent / "data" / "nova" / "nova-row-examples.md"


@pytest.fixture(scope="session")
def nova_rows() -> list[tuple[str, dict[str, Any]]]:
    """The rows of a real Nova as (database.table, row); a JSON column stands decoded under the key `(JSON text)`."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for section in re.split(r"^## ", _ROWS.read_text(), flags=re.MULTILINE)[1:]:
        table = section.split()[0]
        rows += [(table, json.loads(block)) for block in re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)]
    return rows


@pytest.fixture(autouse=True)
def _reads_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SQLite refuse what a look writes: PostgreSQL, which is asked for no transaction then, commits it."""
    for name in ("read", "reading"):
        monkeypatch.setattr(Database, name, _refusing(getattr(Database, name)))


def _refusing(opened: Callable[[Database], AbstractContextManager[Any]]) -> Any:
    @contextlib.contextmanager
    def refusing(database: Database) -> Iterator[Any]:
        with opened(database) as found:
            if database.dialect != "sqlite":
                yield found
                return
            connection = found.connection() if isinstance(found, orm.Session) else found
            raw = connection.connection.driver_connection
            raw.execute("PRAGMA query_only=ON")
            try:
                yield found
            finally:
                with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed meanwhile
                    raw.execute("PRAGMA query_only=OFF")

    return refusing
