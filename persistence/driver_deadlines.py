"""Connections that wait for no database server beyond the deadline of the step on whose behalf it was asked.

The drivers' own bounds are of the network: a server that is there and says nothing is waited for without end.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from droveway import deadlines

if TYPE_CHECKING:
    from collections.abc import Generator

    import sqlalchemy as sa

SHORTEST = 0.001
"""Seconds that are waited at least: none at all would say that nothing is ever waited for."""


def connect(dialect: sa.Dialect, _record: object, arguments: Any, options: Any) -> Any:
    """SQLAlchemy's event ``do_connect``: a connection of ours, or None for its own."""
    makes = {"psycopg": _psycopg, "pymysql": _pymysql}.get(dialect.driver)
    return None if makes is None else makes()(*arguments, **options)


@functools.cache
def _psycopg() -> Any:
    import psycopg

    class Connection(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
            """Psycopg's one way to wait for its server, which looks every tenth of a second whether it still may."""
            bounded = gen if deadlines.left() is None else self._in_time(gen)
            return super().wait(bounded, *arguments, **options)

        def _in_time(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            try:
                state = next(waiting)
                while True:
                    ready = yield state
                    if (why := deadlines.overdue("a database")) is not None:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(why)
                    state = waiting.send(ready)
            except StopIteration as ended:
                return ended.value

    return Connection.connect


@functools.cache
def _pymysql() -> Any:
    from pymysql import connections, err
    from pymysql.constants import CR

    class Connection(connections.Connection):
        @property
        def _read_timeout(self) -> float | None:
            """What PyMySQL waits at most for each part of an answer."""
            left = deadlines.left()
            if left is None:
                return self._own_timeout
            left = max(left, SHORTEST)
            return left if self._own_timeout is None else min(left, self._own_timeout)

        @_read_timeout.setter
        def _read_timeout(self, seconds: float | None) -> None:
            self._own_timeout = seconds

        def _read_bytes(self, num_bytes: int) -> Any:
            try:
                return super()._read_bytes(num_bytes)
            except err.OperationalError:
                if (why := deadlines.overdue("a database")) is None:
                    raise
                raise err.OperationalError(CR.CR_SERVER_LOST, why) from None

    return Connection
