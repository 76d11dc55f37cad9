"""Rows that a real Nova left of moves, and their comparison with a lab's, column by column.

Times and ids are taken for equal when they stand for the same thing throughout.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "data" / "nova" / "nova-row-examples.md"
JSON = "(JSON text)"
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?")
ID = re.compile(r"(req-)?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}|r-[0-9a-z]{8}")
NUMBERS = {"id", "cell_id", "migration_id", "action_id"}
BETWEEN = "\n# The same for a cross-cell"
"""Begins the part of the examples that is of a move between cells."""

Rows = dict[str, list[dict[str, Any]]]
"""By table."""


def within_a_cell() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of a resize in VERIFY_RESIZE, by database and table."""
    return _sections(EXAMPLES.read_text().partition(BETWEEN)[0])


def between_cells() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of a cold migration into another cell in VERIFY_RESIZE, by database and table."""
    return _sections(EXAMPLES.read_text().partition(BETWEEN)[2])


def _sections(text: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        database, _, table = section.split()[0].partition(".")
        found[database, table] = [
            plain(json.loads(row)) for row in re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        ]
    return found


def plain(value: Any) -> Any:
    """JSON columns in the place of their marks."""
    if isinstance(value, dict):
        return plain(value[JSON]) if JSON in value else {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith('{"') else value


def select(path: Path, query: str, *values: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


class Comparison:
    """Walks two sets of rows side by side; an id of Nova's has to stand for one and the same id of ours."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self._same: dict[tuple[str, Any], Any] = {}

    def walk(self, path: str, nova: Any, our: Any) -> None:
        if isinstance(nova, dict) and isinstance(our, dict):
            for key in sorted({*nova, *our}):
                self.walk(f"{path}.{key}", nova.get(key, "nothing"), our.get(key, "nothing"))
        elif isinstance(nova, list) and isinstance(our, list) and len(nova) == len(our):
            for number, (one, other) in enumerate(zip(nova, our, strict=True)):
                self.walk(f"{path}.{number}", one, other)
        elif not self._is_same(path.rpartition(".")[2], nova, our):
            null = " (NULL)" if None in (nova, our) else ""
            self.differences.append(f"{path}{null}: {nova!r} in Nova, {our!r} here")

    def _is_same(self, name: str, nova: Any, our: Any) -> bool:
        if nova == our:
            return True
        if isinstance(nova, str) and isinstance(our, str):
            if TIME.fullmatch(nova) and TIME.fullmatch(our):
                return True
            if ID.fullmatch(nova) and ID.fullmatch(our):
                return bool(self._same.setdefault(("", nova), our) == our)
        if name in NUMBERS and isinstance(nova, int) and isinstance(our, int):
            return bool(self._same.setdefault((name, nova), our) == our)
        return False
