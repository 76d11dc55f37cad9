"""Defines what an audit reports: one finding for each thing that no server and no move explains."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

NOBODY: Final = ""


class Kind(enum.StrEnum):
    """The kind of thing that a finding is about."""

    ALLOCATION = "allocation"
    BINDING = "binding"
    ATTACHMENT = "attachment"
    IMAGE = "image"
    DISK = "disk"
    GUEST = "guest"
    CONNECTION = "connection"
    INTERFACE = "interface"
    ROW = "row"
    MAPPING = "mapping"
    TASK = "task"
    MIGRATION = "migration"
    FLAVOR = "flavor"
    REQUEST = "request"
    FENCE = "fence"
    USAGE = "usage"
    JOURNAL = "journal"
    HOST = "host"
    CELL = "cell"
    COMMAND = "command"


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """One contradiction, or one thing left behind; ``server`` and ``move`` are empty when it belongs to none."""

    kind: Kind
    subject: str
    """The thing that the finding is about: a consumer, a port, a path below a host's root, a column of a server ..."""
    detail: str
    """One sentence that says what is there and what should be."""
    mend: str
    """The command that mends the finding. Where no command can, it is one that shows more."""
    host: str = NOBODY
    server: str = NOBODY
    move: str = NOBODY
    owable: bool = dataclasses.field(default=False, compare=False)
    """Whether a debt of ``host`` may explain the finding: paying the debt removes what the finding is about."""
    guaranteed: bool = dataclasses.field(default=False, compare=False)
    """Whether the finding is about resources that ports ask of Placement, such as a guaranteed bandwidth.

    `audit --heal` sets such allocations and bindings right.
    """

    def as_dict(self) -> dict[str, str]:
        """Return the finding with the keys that scripts rely on."""
        keys = ("kind", "subject", "host", "server", "move", "detail", "mend")
        return {key: str(getattr(self, key)) for key in keys}


@dataclasses.dataclass(frozen=True)
class Report:
    """What an audit compared and what it found."""

    findings: tuple[Finding, ...]
    noted: tuple[Finding, ...]
    """What is no leak: debts and what they explain, calls that may still be carried out, and disks not yet read."""
    counted: dict[str, int]
    """How many servers, moves, hosts, cells, allocations, ports ... were compared."""

    @property
    def clean(self) -> bool:
        """Say whether there is no finding; what is only noted does not count."""
        return not self.findings


def update(table: str, where: Mapping[str, str | int], values: Mapping[str, str | int | None]) -> str:
    """Return the SQL statement, with its values, by which an operator mends a row."""
    named = sa.table(table, *(sa.column(name) for name in {**where, **values}))
    literals = {name: sa.null() if value is None else sa.literal(value) for name, value in values.items()}
    return _text(sa.update(named).where(*_equal(named, where)).values(literals))


def update_json(table: str, where: Mapping[str, str | int], column: str, values: Mapping[str, Any]) -> str:
    """Return the SQL statement by which an operator mends a serialised object.

    ``values`` maps paths in the object's JSON to the values that belong there.
    """
    named = sa.table(table, *(sa.column(name) for name in {**where, column: None}))
    # This is the only function by which SQLite, MariaDB and MySQL all read JSON from a text.
    read = [part for path, value in values.items() for part in (path, sa.func.json_extract(json.dumps(value), "$"))]
    changed = sa.func.json_set(named.c[column], *read)
    return _text(sa.update(named).where(*_equal(named, where)).values({column: changed}))


def delete(table: str, where: Mapping[str, str | int]) -> str:
    """Return the SQL statement by which an operator deletes rows that should not be there."""
    named = sa.table(table, *(sa.column(name) for name in where))
    return _text(sa.delete(named).where(*_equal(named, where)))


def _equal(table: sa.TableClause, where: Mapping[str, str | int]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in where.items()]


def _text(statement: sa.UpdateBase) -> str:
    return " ".join(str(statement.compile(compile_kwargs={"literal_binds": True})).split()) + ";"


def unique(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, in a stable order."""
    return tuple(sorted(set(findings)))
