"""Reads and writes TaskFlow's own tables: turns flow and atom details into rows, and rows into details."""

from __future__ import annotations

import functools
from typing import Any, Final

import sqlalchemy as sa
from taskflow import states
from taskflow.persistence import models
from taskflow.persistence.backends.sqlalchemy import tables
from taskflow.types.failure import Failure

from droveway.errors import StepError

# Made once, so that statements stay compiled.  TaskFlow's own backend makes new tables for each call.
_METADATA: Final = sa.MetaData()
LOGBOOKS, FLOWS, ATOMS = tables.fetch(_METADATA)

ENDED_FLOW: Final = frozenset({states.SUCCESS, states.REVERTED})


def atom_row(detail: Any, flow_uuid: str) -> dict[str, Any]:
    """Return the atom detail as a row of `ATOMS`."""
    row: dict[str, Any] = detail.to_dict()
    row["atom_type"] = models.atom_detail_type(detail)
    row["parent_uuid"] = flow_uuid
    return row


def atom_detail(row: Any) -> Any:
    """Return the row as an atom detail.

    Does not use `taskflow.persistence.models.RetryDetail.from_dict`: that overwrites a retry's value with the dict of
    its failure, since it uses one name for both.  After a reload the value of a failed attempt would be lost.
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
    """Make the statement that sets just these columns of the row ``key``."""
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in columns}
    return table.update().where(table.c.uuid == sa.bindparam("key")).values(**values)


def changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that differ, as parameters of `update_of`."""
    return {f"new_{name}": value for name, value in new.items() if old.get(name) != value}


def error_of(failure: Any) -> dict[str, str]:
    """Return a failure as the history stores it: `droveway.errors.StepError.as_dict`."""
    error = failure.exception
    if isinstance(error, StepError):
        return error.as_dict()
    return {"code": "internal", "message": failure.exception_str, "host": "", "fault": "move"}
