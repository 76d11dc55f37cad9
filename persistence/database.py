"""One database: its engine, its transactions for reading and those for writing.

Transactions are short.  On SQLite a writing transaction begins with BEGIN IMMEDIATE, so that nothing read in it can
change before it is committed.  On PostgreSQL and MySQL the caller locks the rows that a decision rests on
(`with_for_update`).  "A server" in this module is one of these database servers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event, orm
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.ext.compiler import compiles

from droveway.errors import DrovewayError
from droveway.persistence import driver_deadlines

Executor = orm.Session | sa.Connection
"""A session or a connection: either runs a statement in the caller's transaction."""

BUSY_TIMEOUT = 30.0
"""Seconds that a SQLite transaction waits while another process writes."""

IDLE_TRANSACTION = 10
"""Seconds after which a server ends an idle transaction.

Otherwise a process that is stopped in the middle of a transaction would keep its rows locked until it runs again.
"""

ANSWERS_WITHIN = 60
"""Seconds after which a connection counts as lost when its server's machine or network is gone without notice."""

_ISOLATION: Final = "ISOLATION LEVEL READ COMMITTED"

_AWAY: Final = ("08", "57P", "25006")
"""Beginnings of SQLSTATE codes: the server cannot be reached (08), is shutting down (57P) or is read-only (25006)."""

_REFUSED: Final = re.compile(r"no such (table|column)|table \S+ has no column|(1054|1142|1143)\Z")
"""Matches the beginning of errors that would come again at each retry.

The table or the column is missing, or the user has no right to it.  SQLite says so in words, MariaDB by a number.
"""

_GIVES_UP: Final = {
    # TCP keepalive probes find a dead server.  They do not bound how long a statement may take on a live one.
    "psycopg": {
        "connect_timeout": 10,
        "keepalives_idle": 20,
        "keepalives_interval": 10,
        "keepalives_count": 4,
        "tcp_user_timeout": ANSWERS_WITHIN * 1000,
    },
    "pymysql": {"connect_timeout": 10, "read_timeout": ANSWERS_WITHIN, "write_timeout": ANSWERS_WITHIN},
}
"""Driver → connection options that make it notice a dead server; without them it waits for hours."""


_SHORTEST_VALUE: Final = 4
"""The length, in characters, of the shortest value that is removed from a driver's error message.

The values are the options of the database's URL.  A shorter value may be a part of ordinary words, and removing it
would make the message unreadable.  A value that has only digits is not removed, whatever its length.  A password is
always removed.
"""


class DatabaseUnusable(DrovewayError):
    """A database cannot be used: its file, URL, driver or schema is not right, or it does not answer."""

    code = "database-unusable"
    exit_code = 2


class DatabaseAway(DatabaseUnusable):
    """A database does not answer at present."""


_WRITES: Final = "droveway_writes"
"""The key in ``connection.info`` that marks a connection whose transactions write."""


class SqliteDialect(pysqlite.dialect):
    """Begins SQLite transactions with the right BEGIN statement.

    A listener of SQLAlchemy's event ``begin`` could do this too.  But an engine with such a listener would look for
    listeners of its other events at every statement, which costs time.
    """

    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin a transaction; SQLAlchemy calls this, and wraps what the driver raises in an error of its own."""
        statement = "BEGIN IMMEDIATE" if dbapi_connection.info.get(_WRITES) else "BEGIN"
        dbapi_connection.driver_connection.execute(statement)


_DRIVER: Final = "droveway"
sa.dialects.registry.register(f"sqlite.{_DRIVER}", __name__, SqliteDialect.__name__)


class _Broken(logging.Filter):
    """Drops the log records in which SQLAlchemy says that it could not roll back on a broken connection.

    SQLAlchemy logs this with a traceback when the database server went away between the last statement and the return
    of the connection to the pool.  Nothing is lost: the next use of the database raises an error, and that error is
    reported.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a record that is dropped."""
        error = record.exc_info[1] if record.exc_info else None
        # Each driver has its own classes, with the names that PEP 249 gives them.
        return type(error).__name__ not in ("OperationalError", "InterfaceError")


logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_Broken())


class Database:
    """A database, given by its SQLAlchemy URL.  The URL is never logged, since it may hold a password."""

    def __init__(self, url: str) -> None:
        try:
            self.dialect = sa.make_url(url).get_backend_name()
        except sa.exc.ArgumentError:
            raise DatabaseUnusable(
                "the URL of a database cannot be read: it has to be DIALECT+DRIVER://USER:PASSWORD@HOST/NAME"
            ) from None
        self._url = url
        self._engine: sa.Engine | None = None
        self._reader: sa.Engine | None = None

    @property
    def engine(self) -> sa.Engine:
        """Return the engine; it is made on first use, so that a process that forks before that shares no connection."""
        if self._engine is None:
            self._engine = self._connect()
        return self._engine

    @contextlib.contextmanager
    def read(self) -> Iterator[orm.Session]:
        """Open a session for reading; changes to its objects are never written.

        What its statements see is described at `reading`.
        """
        # When the block ends, the session detaches the objects first and rolls back then.  A rollback before that
        # would expire them, and the caller still reads them.
        with orm.Session(self._readers(), expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a connection for reading.

        On SQLite all statements in the block see what was committed before the first of them.  On a server each
        statement sees what is committed when that statement begins.  PostgreSQL therefore reads without a transaction:
        at READ COMMITTED, the level that is used here, a transaction would isolate no more than that.
        """
        with self._readers().connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[orm.Session]:
        """Open a session in a writing transaction; commit when the block ends, roll back when it raises."""
        with self.writing() as connection, orm.Session(connection, expire_on_commit=False) as session, session.begin():
            yield session

    @contextlib.contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Open a connection in a writing transaction, which ends in the same way as the transaction of `write`.

        A step of a move uses this where it can: a session's bookkeeping would double the step's cost.
        """
        with self.writing() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a connection for writing; the caller begins and ends its transactions."""
        with self.engine.connect() as connection:
            # Kept in a variable: if this connection is lost, `connection.info` later belongs to a new connection.
            info = connection.info
            info[_WRITES] = True
            try:
                yield connection
            finally:
                info.pop(_WRITES, None)

    def require(self, name: str) -> None:
        """Raise `DatabaseUnusable` unless the database answers; ``name`` is what the error calls it.

        Raises `DatabaseAway`, which is a `DatabaseUnusable`, when it may answer later.
        """
        if self.dialect == "sqlite" and sa.make_url(self._url).database in (None, "", ":memory:"):
            raise DatabaseUnusable(
                f"the URL of the database {name} keeps it in memory, where it is lost when the process ends: name a "
                "file in the URL"
            )
        try:
            with self.engine.connect():
                pass
        except sa.exc.NoSuchModuleError:
            raise DatabaseUnusable(f"the URL of the database {name} names no driver that is known here") from None
        except ImportError as error:
            raise DatabaseUnusable(f"the driver of the database {name} is missing ({error}): install it") from None
        except (TypeError, ValueError, OSError):
            raise DatabaseUnusable(
                f"an option behind the ? in the URL of the database {name} has a value that its driver does not take, "
                f"or names a file that is not there{self._options()}: correct it, or leave it out"
            ) from None
        except sa.exc.DBAPIError as error:
            told = self._without_values(" ".join(str(error.orig).split()))
            away = DatabaseUnusable if absence(error) is None else DatabaseAway
            raise away(f"the database {name} does not answer: {told}; start it, or mend its URL") from None

    def _options(self) -> str:
        names = ", ".join(sorted(sa.make_url(self._url).query))
        return f" ({names})" if names else ""

    def _without_values(self, told: str) -> str:
        """Return a driver's message with the URL's password and option values replaced by ``...``.

        A driver quotes these in its messages, and an option may hold a secret that was pasted there.  `_SHORTEST_VALUE`
        says which values stay.
        """
        url = sa.make_url(self._url)
        values = [
            (name, value) for name, each in url.query.items() for value in ([each] if isinstance(each, str) else each)
        ]
        found = {url.password or ""}
        for name, value in values:
            if "pass" in name or (len(value) >= _SHORTEST_VALUE and not value.isdecimal()):
                found.add(value)
        # In one go: a short password may be a part of what stands in the place of another value.
        quoted = "|".join(map(re.escape, sorted(found - {""}, key=len, reverse=True)))
        return re.sub(quoted, "...", told) if quoted else told

    def close(self) -> None:
        """Give back every connection."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = self._reader = None

    def _readers(self) -> sa.Engine:
        if self._reader is None:
            # Not with PyMySQL: each time it would need one more round trip to switch autocommit on, and one to end it.
            options = {"isolation_level": "AUTOCOMMIT"} if self.engine.driver == "psycopg" else {}
            self._reader = self.engine.execution_options(**options)
        return self._reader

    def _connect(self) -> sa.Engine:
        if self.dialect != "sqlite":
            url = sa.make_url(self._url)
            told = _GIVES_UP.get(url.get_driver_name(), {})
            engine = sa.create_engine(
                url,
                hide_parameters=True,
                connect_args={name: value for name, value in told.items() if name not in url.query},
            )
            event.listen(engine, "do_connect", driver_deadlines.connect)
            event.listen(engine, "connect", _bound_transactions)
            event.listen(engine, "checkout", _require_open)
            event.listen(engine, "handle_error", _name_loss, retval=True)
            return engine
        url = sa.make_url(self._url).set(drivername=f"sqlite+{_DRIVER}")
        engine = sa.create_engine(
            url,
            pool_use_lifo=True,
            hide_parameters=True,
            connect_args={"timeout": BUSY_TIMEOUT, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "handle_error", _name_file, retval=True)
        return engine


def sqlite_url(path: Path) -> str:
    """Return the SQLAlchemy URL of a SQLite file."""
    return f"sqlite:///{path}"


class _UtcNow(sa.sql.functions.GenericFunction[dt.datetime]):
    """The SQL function ``utc_now()``: the database's clock, with fractions of a second.

    Moves that are created within one second are listed in the right order thanks to the fractions.
    """

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_now"


@compiles(_UtcNow, "sqlite")
def _utc_now_of_sqlite(_element: _UtcNow, _compiler: Any, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(_UtcNow, "postgresql")
def _utc_now_of_postgresql(_element: _UtcNow, _compiler: Any, **_: Any) -> str:
    return "clock_timestamp() AT TIME ZONE 'utc'"


@compiles(_UtcNow, "mysql", "mariadb")
def _utc_now_of_mysql(_element: _UtcNow, _compiler: Any, **_: Any) -> str:
    return "utc_timestamp(6)"


_NOW: Final = sa.select(_UtcNow())


def database_time(session: Executor) -> Any:
    """Read the database's own clock (UTC, naive), the only clock by which deadlines are decided."""
    return session.scalar(_NOW)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # `SqliteDialect` begins transactions.  The driver's own implicit BEGIN would be a deferred one.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _bound_transactions(connection: Any, _record: object) -> None:
    """Set the idle timeout and the isolation level of a new connection, whatever the server's own defaults are.

    The timeout ends the transaction of a process that was stopped in the middle of one: otherwise that process would
    keep its rows locked.  The isolation level is READ COMMITTED: each statement sees what is committed when the
    statement begins.  So a transaction that locks a row, and then reads other rows, sees everything that the previous
    holder of the lock wrote.
    """
    if hasattr(connection, "get_server_info"):
        # MySQL has no timeout for transactions alone, so idle connections are closed too: the pool replaces them.
        idle = "idle_transaction_timeout" if "MariaDB" in connection.get_server_info() else "wait_timeout"
        statements = [f"SET SESSION {idle} = {IDLE_TRANSACTION}", f"SET SESSION TRANSACTION {_ISOLATION}"]
    else:
        statements = [
            f"SET SESSION idle_in_transaction_session_timeout = '{IDLE_TRANSACTION}s'",
            f"SET SESSION CHARACTERISTICS AS TRANSACTION {_ISOLATION}",
        ]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.commit()


def _require_open(connection: Any, _record: object, _borrower: object) -> None:
    """Have the pool replace a connection that its server has closed, without a round trip to the server.

    On an idle connection the only thing to read is the server's last message or the end of the stream.  The pool then
    replaces all its connections, since a server that closed one has closed the others too.
    """
    unread = select.poll()
    if _is_open(connection):
        unread.register(_socket(connection), select.POLLIN | select.POLLPRI)
        if not unread.poll(0):
            return
    raise sa.exc.InvalidatePoolError("the server has closed the connection")


def _is_open(connection: Any) -> bool:
    """Tell whether the driver still has its own end of the connection open."""
    return bool(connection.open) if hasattr(connection, "open") else not connection.closed


def _socket(connection: Any) -> int:
    """Return the file descriptor of a driver's connection."""
    if hasattr(connection, "fileno"):
        return int(connection.fileno())
    return int(connection._sock.fileno())  # noqa: SLF001 - PyMySQL has no public name for it


def _name_loss(context: sa.ExceptionContext) -> BaseException | None:
    """Return the error that SQLAlchemy is to raise instead of its own; None when its own is right.

    The error of a server that is away or read-only becomes an OperationalError, whatever its driver raised.  `_refusal`
    decides about all other errors.
    """
    if (getattr(context.original_exception, "sqlstate", None) or "").startswith(_AWAY):
        # A server turns read-only when another one has become the primary: a new connection leads to that one.
        context.is_disconnect = True
    if context.is_disconnect and not isinstance(context.sqlalchemy_exception, sa.exc.OperationalError):
        return sa.exc.OperationalError(context.statement, None, context.original_exception, connection_invalidated=True)
    return _refusal(context)


def _name_file(context: sa.ExceptionContext) -> BaseException | None:
    """Return what `_refusal` returns, and add the database's file to the error, since SQLite does not name it."""
    error = _refusal(context)
    shown = error or context.sqlalchemy_exception
    if shown is not None and context.engine is not None:
        shown.add_note(str(context.engine.url.database))
    return error


def _refusal(context: sa.ExceptionContext) -> sa.exc.ProgrammingError | None:
    """Return a ProgrammingError for a statement that the database will always refuse; None for any other error.

    SQLite's and MariaDB's drivers report such a statement as an OperationalError, as if the database were away.
    """
    error = context.original_exception
    told = str(error.args[0]) if error.args else ""
    if isinstance(context.sqlalchemy_exception, sa.exc.OperationalError) and _REFUSED.match(told):
        return sa.exc.ProgrammingError(context.statement, None, error, hide_parameters=True)
    return None


class WriteFailed(Exception):
    """A transaction for a move failed, or nobody knows whether it was committed; the cause is the driver's error."""


def absence(error: BaseException) -> str | None:
    """Return the driver's message when the database was away or gave the transaction up; None for any other error."""
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)):
        return str(error.orig)
    return None


def without_sql(error: BaseException) -> str | None:
    """Describe a failed statement without quoting the statement, its values or its rows, which may hold secrets.

    Returns None when neither the error nor its cause is one of SQLAlchemy's.
    """
    cause = error.__cause__ if not isinstance(error, sa.exc.SQLAlchemyError) else error
    if not isinstance(cause, sa.exc.SQLAlchemyError):
        return None
    if not isinstance(cause, sa.exc.DBAPIError):
        return f"the database layer refused a statement ({type(cause).__name__}); the conductor's log has the traceback"
    orig = cause.orig
    number = getattr(orig, "sqlstate", None) or next((each for each in getattr(orig, "args", ()) if each), "")
    code = f" {number}" if re.fullmatch(r"[0-9A-Z]{1,5}", str(number)) else ""
    return (
        f"the database refused a statement ({type(cause).__name__}{code}); the conductor's log has the traceback and "
        "what the server said"
    )


def file_of(error: BaseException) -> str:
    """Return the file that an error of a SQLite database names; empty for any other error."""
    return next(iter(getattr(error, "__notes__", ())), "")
