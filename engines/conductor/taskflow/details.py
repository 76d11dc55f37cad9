"""TaskFlow's own tables, and how its flow and atom details become rows and rows become details."""

from __future__ import annotations

import functools
from typing import Any, Final

import sqlalchemy as sa
from taskflow import states
from taskflow.persistence import models
from taskflow.persistence.backends.sqlalchemy import tables
from taskflow.types.failure import Failure

from droveway.errors import StepError

# Made once for the process: the stock backend makes new ones for each call, and no statement is ever found compiled.
_METADATA: Final = sa.MetaData()
LOGBOOKS, FLOWS, ATOMS = tables.fetch(_METADATA)

ENDED_FLOW: Final = frozenset({states.SUCCESS, states.REVERTED})


def atom_row(detail: Any, flow_uuid: str) -> dict[str, Any]:
    """The atom detail as a row of `ATOMS`."""
    row: dict[str, Any] = detail.to_dict()
    row["atom_type"] = models.atom_detail_type(detail)
    row["parent_uuid"] = flow_uuid
    return row


def atom_detail(row: Any) -> Any:
    """The row as an atom detail.

    Replaces `taskflow.persistence.models.RetryDetail.from_dict`, which uses one name for a retry's value and for a
    failure's dict, so that after a reload the value of a failed attempt is its failure.
    """
    data = dict(row)
    kind = models.atom_detail_class(data.pop("atom_type"))
    if kind is not models.RetryDetail:
        return kind.from_dict(data)
    detail = models.AtomDetail.from_dict.__func__(kind, data)
    detail.results = [
        (value, {name: Failure.from_dict(failure) for name, failure in failures.items()})
        for value, failures in data.get("results") or []
    ]
    return detail


@functools.cache
def update_of(table: sa.Table, columns: frozenset[str]) -> sa.Update:
    """The statement that sets just these columns of the row ``key``."""
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in columns}
    return table.update().where(table.c.uuid == sa.bindparam("key")).values(**values)


def changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The columns that differ, as parameters of `update_of`."""
    return {f"new_{name}": value for name, value in new.items() if old.get(name) != value}


def error_of(failure: Any) -> dict[str, str]:
    """A failure as the history stores it: `droveway.errors.StepError.as_dict`."""
    error = failure.exception
    if isinstance(error, StepError):
        return error.as_dict()
    return {"code": "internal", "message": failure.exception_str, "host": "", "fault": "move"}
