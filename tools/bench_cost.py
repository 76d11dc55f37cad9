"""Measures what a move costs each process: statements, transactions and processor time, from outside of the processes.

PostgreSQL logs each statement with the names of the client and of the database. The kernel says the processor time.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ENTRY: Final = re.compile(r"^@", re.MULTILINE)
_STATEMENT: Final = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_ENDS: Final = ("COMMIT", "ROLLBACK")

NAME: Final = "PGAPPNAME"
"""The environment variable with the client's name, which libpq sends to the server."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """The statements and transactions of one process in one database."""

    statements: int
    transactions: int


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Give the processes that are started within the block this name in the server's log."""
    os.environ[NAME] = name
    try:
        yield
    finally:
        del os.environ[NAME]


class StatementLog:
    """Reads the log of a PostgreSQL server, which has every statement between `begin` and `end`."""

    def __init__(self, url: str, file: Path) -> None:
        """Take the URL of any database of the server as its administrator, and the server's log file."""
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        self._file = file
        self._since = 0

    def begin(self) -> None:
        """Let the server log every statement from now on."""
        self._configure("ALTER SYSTEM SET log_line_prefix = '@%%a|%%d|'", "ALTER SYSTEM SET log_statement = 'all'")
        self._since = self._file.stat().st_size

    def end(self) -> Mapping[tuple[str, str], Asked]:
        """End the logging, and return what was asked since, by the client's name and the database."""
        self._configure("ALTER SYSTEM RESET log_statement")
        self._engine.dispose()
        with self._file.open("rb") as file:
            file.seek(self._since)
            text = file.read().decode()
        statements: collections.Counter[tuple[str, str]] = collections.Counter()
        transactions: collections.Counter[tuple[str, str]] = collections.Counter()
        for entry in _ENTRY.split(text)[1:]:
            head, _, rest = entry.partition("LOG:  ")
            found = _STATEMENT.match(rest)
            if found is None:
                continue
            name, database = head.split("|")[:2]
            said = found.group(1)
            if said.startswith("BEGIN"):
                transactions[name, database] += 1
            elif not said.startswith(_ENDS):
                statements[name, database] += 1
        return {key: Asked(statements[key], transactions[key]) for key in {*statements, *transactions}}

    def _configure(self, *statements: str) -> None:
        with self._engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("SELECT pg_reload_conf()")


def processor_seconds(pids: Sequence[int]) -> float:
    """Return the processor seconds of these processes and of the children that they have waited for."""
    return sum(_seconds(pid) for pid in pids)


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    tasks: Any = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS
