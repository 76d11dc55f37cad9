"""Shares what SQLAlchemy has compiled between all SQLite engines of a test process.

Each command of a lab opens its databases anew, and each engine would compile every statement once more: a fifth of all
that the tests of operations take.  Daemons and commands, which have one engine each, gain nothing by it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import util
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine.base import Engine

STATEMENTS: Final = 10_000

_SHARED: Final[util.LRUCache[Any, Any]] = util.LRUCache(STATEMENTS)
_SHAPES: Final = ("driver", "paramstyle", "label_length", "_json_serializer", "_json_deserializer")
"""What of a dialect has a part in what it makes of a statement."""


def share() -> None:
    """Let every SQLite engine that is made or exists use one cache: its keys hold the dialect, which is then alike."""
    SQLiteDialect.__hash__ = _hash  # type: ignore[method-assign, assignment]
    SQLiteDialect.__eq__ = _is_alike  # type: ignore[method-assign, assignment]
    Engine._compiled_cache = property(_read, _write)  # type: ignore[assignment]


def _shape(dialect: SQLiteDialect) -> tuple[object, ...]:
    return type(dialect), *(getattr(dialect, name) for name in _SHAPES)


def _hash(dialect: SQLiteDialect) -> int:
    return hash(type(dialect))


def _is_alike(dialect: SQLiteDialect, other: object) -> bool:
    return dialect is other or (isinstance(other, SQLiteDialect) and _shape(dialect) == _shape(other))


def _read(engine: Engine) -> Any:
    return _SHARED if isinstance(engine.dialect, SQLiteDialect) else vars(engine)["own_compiled_cache"]


def _write(engine: Engine, cache: Any) -> None:
    vars(engine)["own_compiled_cache"] = cache
