"""Lets a test process make once what the Placement embedded in it makes anew for every request.

Placement checks the schema of a body before the body, and names its tables anew for every query: a quarter of all that
a crash point takes.  A schema or a table that stood once is the same for as long as the process runs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from jsonschema import validators
from sqlalchemy.sql.selectable import FromClause, NamedFromClause

_Validator = validators.Draft202012Validator
_check_schema = _Validator.check_schema
_alias = sa.alias

_CHECKED: dict[int, Any] = {}
"""By identity, and held, so that no other schema takes the identity of one that was checked."""

_NAMED: dict[tuple[sa.Table, str], NamedFromClause] = {}


def share() -> None:
    """Check each schema once, and give each table one alias of a name."""
    _Validator.check_schema = _check_once
    sa.alias = _name_once  # type: ignore[assignment]


def _check_once(schema: Any, *arguments: Any, **options: Any) -> None:
    """Check a schema object; raises jsonschema's SchemaError each time for one that is wrong."""
    if _CHECKED.get(id(schema)) is not schema:
        _check_schema(schema, *arguments, **options)
        _CHECKED[id(schema)] = schema


def _name_once(selectable: FromClause, name: str | None = None, flat: bool = False) -> NamedFromClause:
    if name is None or not isinstance(selectable, sa.Table):
        return _alias(selectable, name, flat)
    if (selectable, name) not in _NAMED:
        _NAMED[selectable, name] = _alias(selectable, name, flat)
    return _NAMED[selectable, name]
