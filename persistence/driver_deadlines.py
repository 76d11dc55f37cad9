"""Database connections that give up at the deadline of the step that is running, when their server does not answer.

A server may be reachable and still never answer.  By itself psycopg would wait for such a server without end.  PyMySQL
would wait for its read timeout, which may be over long after the deadline.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from droveway import deadlines

if TYPE_CHECKING:
    from collections.abc import Generator

    import sqlalchemy as sa

SHORTEST = 0.001
"""The shortest timeout in seconds that PyMySQL is given, also when the deadline is over.

A timeout of 0 would make PyMySQL's socket non-blocking: it would not wait even for an answer that is on its way.
"""


def connect(dialect: sa.Dialect, _record: object, arguments: Any, options: Any) -> Any:
    """Answer SQLAlchemy's event ``do_connect`` with a connection that heeds deadlines.

    Makes the connection when the driver is psycopg or PyMySQL.  Returns None for any other driver, SQLite's among them:
    SQLAlchemy then connects by itself.
    """
    makes = {"psycopg": _psycopg, "pymysql": _pymysql}.get(dialect.driver)
    return None if makes is None else makes()(*arguments, **options)


@functools.cache
def _psycopg() -> Any:
    import psycopg

    class Connection(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
            """Wait for the server until the deadline.

            Psycopg waits here for the answer to each statement.  It wakes up every tenth of a second, and the deadline
            is looked at each time.  While psycopg connects it waits elsewhere: only ``connect_timeout`` bounds that.
            """
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
            """Return the seconds that PyMySQL waits at most for each part of an answer."""
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
