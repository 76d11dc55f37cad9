"""Compare-and-swap on one row: every UPDATE names the old value of each column that the caller changes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Conflict
from droveway.persistence.times import utcnow


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Holds several old values, any of which a column may have before it is changed."""

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values


@dataclasses.dataclass
class Columns:
    """Holds some columns of one row: a step of a move reads these more cheaply than the whole row.

    A subclass sets ``model`` to the table's model and has one field for each column, with the column's name.  Its
    instances are plain data: the SQLAlchemy session does not track them.
    """

    model: ClassVar[Any]

    id: int

    @classmethod
    def selected(cls) -> sa.Select[Any]:
        """Return a SELECT of these columns, in the order of the fields."""
        return sa.select(*(getattr(cls.model, field.name) for field in dataclasses.fields(cls)))


def compare_and_swap(session: orm.Session, row: Any, **changes: tuple[Any, Any]) -> bool:
    """Change columns of one row, each given as (expected old value, new value); return whether anything changed.

    The row, a model's or `Columns`, must have been loaded in this transaction.  A column that has its new value already
    is left alone, so a repeated call changes nothing.  Raises `droveway.errors.Conflict`, naming the column, when a
    column holds neither its old nor its new value.
    """
    wanted: dict[str, Any] = {}
    for column, (old, new) in changes.items():
        present = getattr(row, column)
        if present == new:
            continue
        if present != old and not (isinstance(old, OneOf) and present in old):
            raise Conflict(_conflict(row, column, present, old, new))
        wanted[column] = (present, new)
    if not wanted:
        return False
    _update(session, row, wanted)
    return True


def _update(session: orm.Session, row: Any, wanted: Mapping[str, tuple[Any, Any]]) -> None:
    model = _model(row)
    values = {column: new for column, (_present, new) in wanted.items()}
    if hasattr(model, "updated_at"):
        values.setdefault("updated_at", utcnow())
    given = {"row_key": row.id if isinstance(row, Columns) else sa.inspect(row).identity[0]}
    given |= {f"old_{column}": present for column, (present, _new) in wanted.items()}
    given |= {f"new_{column}": new for column, new in values.items()}
    session.flush()
    result = session.connection().execute(_statement(model, tuple(wanted), tuple(values)), given)
    if result.rowcount != 1:
        raise Conflict(f"a row of {model.__tablename__} changed while it was being written: nothing was changed")
    if isinstance(row, Columns):
        for column in wanted:
            setattr(row, column, values[column])
        return
    for column, new in values.items():
        orm.attributes.set_committed_value(row, column, new)


def _model(row: Any) -> Any:
    return row.model if isinstance(row, Columns) else type(row)


@functools.cache
def _statement(model: Any, compared: tuple[str, ...], written: tuple[str, ...]) -> sa.Update:
    (key,) = sa.inspect(model).primary_key
    return (
        sa.update(model)
        .where(
            key == sa.bindparam("row_key"),
            *(getattr(model, column).is_not_distinct_from(sa.bindparam(f"old_{column}")) for column in compared),
        )
        .values({column: sa.bindparam(f"new_{column}") for column in written})
    )


def _conflict(row: Any, column: str, present: Any, old: Any, new: Any) -> str:
    name = getattr(row, "uuid", None) or getattr(row, "instance_uuid", None) or getattr(row, "id", "?")
    shown = tuple(_short(value) for value in (present, old, new))
    return (
        f"{_model(row).__tablename__}.{column} of {name} is {shown[0]}, but should be {shown[1]} before it becomes "
        f"{shown[2]}: somebody else changed it"
    )


def _short(value: Any) -> str:
    if isinstance(value, OneOf):
        return " or ".join(_short(each) for each in value.values)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a sentence, not a dump
