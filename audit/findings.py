"""What an audit says: one finding for each thing that no live server and no move explains."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

NOBODY: Final = ""


class Kind(enum.StrEnum):
    """What a finding is about."""

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
    COMMAND = "command"


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """One contradiction, or one thing left behind; ``server`` and ``move`` say whose it is, empty when nobody's."""

    kind: Kind
    subject: str
    """What it is about: a consumer, a port, a path below a host's root, a column of a server ..."""
    detail: str
    """One sentence: what is there, and what should be."""
    mend: str
    """The command that mends it."""
    host: str = NOBODY
    server: str = NOBODY
    move: str = NOBODY
    owable: bool = dataclasses.field(default=False, compare=False)
    """Whether it is something that lies on its host, so that the host may owe to take it away."""
    guaranteed: bool = dataclasses.field(default=False, compare=False)
    """Whether it is about what ports are guaranteed, which is put right in place."""

    def as_dict(self) -> dict[str, str]:
        """The finding with the keys that scripts rely on."""
        keys = ("kind", "subject", "host", "server", "move", "detail", "mend")
        return {key: str(getattr(self, key)) for key in keys}


@dataclasses.dataclass(frozen=True)
class Report:
    """What an audit looked at and what it found."""

    findings: tuple[Finding, ...]
    noted: tuple[Finding, ...]
    """No leaks: what a host still owes and a debt explains, and cloud calls that may yet land."""
    counted: dict[str, int]
    """How many of each there were: servers, moves, hosts, cells, allocations, ports ..."""

    @property
    def clean(self) -> bool:
        """Whether the books balance; what is only noted does not unbalance them."""
        return not self.findings


def update(table: str, where: Mapping[str, str | int], values: Mapping[str, str | int | None]) -> str:
    """The SQL statement, with its values in it, by which an operator mends a row."""
    named = sa.table(table, *(sa.column(name) for name in {**where, **values}))
    literals = {name: sa.null() if value is None else sa.literal(value) for name, value in values.items()}
    return _text(sa.update(named).where(*_equal(named, where)).values(literals))


def update_json(table: str, where: Mapping[str, str | int], column: str, values: Mapping[str, Any]) -> str:
    """The SQL statement by which an operator mends a serialised object; ``values`` by their paths in its JSON."""
    named = sa.table(table, *(sa.column(name) for name in {**where, column: None}))
    # SQLite, MariaDB and MySQL all read JSON out of a text by this function, and by no other.
    read = [part for path, value in values.items() for part in (path, sa.func.json_extract(json.dumps(value), "$"))]
    changed = sa.func.json_set(named.c[column], *read)
    return _text(sa.update(named).where(*_equal(named, where)).values({column: changed}))


def delete(table: str, where: Mapping[str, str | int]) -> str:
    """The SQL statement by which an operator removes rows that should not be there."""
    named = sa.table(table, *(sa.column(name) for name in where))
    return _text(sa.delete(named).where(*_equal(named, where)))


def _equal(table: sa.TableClause, where: Mapping[str, str | int]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in where.items()]


def _text(statement: sa.UpdateBase) -> str:
    return " ".join(str(statement.compile(compile_kwargs={"literal_binds": True})).split()) + ";"


def unique(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """The findings in a stable order, each once."""
    return tuple(sorted(set(findings)))
