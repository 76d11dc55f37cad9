"""One database: its engine and its two kinds of transaction.

Transactions are short.  On SQLite a writing transaction begins IMMEDIATE, so that nothing read in it can change before
it is committed; elsewhere the rows that a decision rests on are locked by the caller (`with_for_update`).
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
"""Whatever carries a statement out in the caller's transaction."""

BUSY_TIMEOUT = 30.0
"""Seconds that a SQLite transaction waits for another process's write."""

IDLE_TRANSACTION = 10
"""Seconds after which a server gives up the transaction of a process that stands still: others wait for its rows."""

ANSWERS_WITHIN = 60
"""Seconds after which a server whose machine or network is gone counts as lost, though nothing said so."""

_ISOLATION: Final = "ISOLATION LEVEL READ COMMITTED"

_AWAY: Final = ("08", "57P", "25006")
"""How the SQLSTATE of a server begins that is away, goes down or only reads."""

_REFUSED: Final = re.compile(r"no such (table|column)|table \S+ has no column|(1054|1142|1143)\Z")
"""How an error begins that no waiting mends: SQLite's words, MariaDB's number.

The table or the column is not there, or the user has no right to it.
"""

_GIVES_UP: Final = {
    # The kernel asks the other side's whether the connection still stands: statements may take as long as they like.
    "psycopg": {
        "connect_timeout": 10,
        "keepalives_idle": 20,
        "keepalives_interval": 10,
        "keepalives_count": 4,
        "tcp_user_timeout": ANSWERS_WITHIN * 1000,
    },
    "pymysql": {"connect_timeout": 10, "read_timeout": ANSWERS_WITHIN, "write_timeout": ANSWERS_WITHIN},
}
"""What each driver is told; without that it waits for hours."""


_SHORTEST_VALUE: Final = 4
"""Characters of a value that is kept out of a sentence: of a shorter one parts of words would go too."""


class DatabaseUnusable(DrovewayError):
    """A database file is missing, corrupt, read-only or of another schema."""

    code = "database-unusable"
    exit_code = 2


class DatabaseAway(DatabaseUnusable):
    """A database does not answer now."""


_WRITES: Final = "droveway_writes"
"""What is noted at a connection whose transactions are to write."""


class SqliteDialect(pysqlite.dialect):
    """Begins transactions itself: an event at each would call every other event's listeners at each statement too."""

    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:
        """SQLAlchemy's entry; what the driver raises here it makes its own error."""
        statement = "BEGIN IMMEDIATE" if dbapi_connection.info.get(_WRITES) else "BEGIN"
        dbapi_connection.driver_connection.execute(statement)


_DRIVER: Final = "droveway"
sa.dialects.registry.register(f"sqlite.{_DRIVER}", __name__, SqliteDialect.__name__)


class _Broken(logging.Filter):
    """Leaves out that a connection which broke could not be rolled back: who needs the server next is told of it.

    SQLAlchemy shows it with a traceback where the server went between the last statement and the connection's return.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # Each driver has classes of its own, by the names of PEP 249.
        return type(error).__name__ not in ("OperationalError", "InterfaceError")


logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_Broken())


class Database:
    """A database by its SQLAlchemy URL.  The URL is never logged: it may hold a password."""

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
        """The engine, made on first use, so that a process that forks before it inherits no connection."""
        if self._engine is None:
            self._engine = self._connect()
        return self._engine

    @contextlib.contextmanager
    def read(self) -> Iterator[orm.Session]:
        """Open a session for reading, each statement as in `reading`; what changes in its objects is never written."""
        # Its close detaches what was read before it rolls back, which would expire what the caller still looks at.
        with orm.Session(self._readers(), expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a connection for reading.

        On SQLite all of its statements read what was committed before the first one, on a server each what is
        committed when it begins: there a transaction, which isolates no more than that, would be asked for in vain.
        """
        with self._readers().connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[orm.Session]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        with self.writing() as connection, orm.Session(connection, expire_on_commit=False) as session, session.begin():
            yield session

    @contextlib.contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """The same transaction without a session's bookkeeping, which costs half of what runs at each step."""
        with self.writing() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection whose transactions, which the caller begins, are to write."""
        with self.engine.connect() as connection:
            # Asked for again it would be that of a new connection when this one was lost.
            info = connection.info
            info[_WRITES] = True
            try:
                yield connection
            finally:
                info.pop(_WRITES, None)

    def require(self, name: str) -> None:
        """Raise `DatabaseUnusable` with ``name`` in its sentence unless the database answers."""
        if self.dialect == "sqlite" and sa.make_url(self._url).database in (None, "", ":memory:"):
            raise DatabaseUnusable(f"the database {name} would be gone with its process: name a file in its URL")
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
        """What a driver says, without what stands in the URL where anything may have been pasted: it quotes that."""
        url = sa.make_url(self._url)
        values = [value for each in url.query.values() for value in ([each] if isinstance(each, str) else each)]
        for value in sorted({*values, url.password or ""}, key=len, reverse=True):
            if len(value) >= _SHORTEST_VALUE and not value.isdecimal():
                told = told.replace(value, "...")
        return told

    def close(self) -> None:
        """Give back every connection."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = self._reader = None

    def _readers(self) -> sa.Engine:
        if self._reader is None:
            # PyMySQL would ask its server for a connection without transactions each time, and for the end of that.
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
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


class _UtcNow(sa.sql.functions.GenericFunction[dt.datetime]):
    """The database's clock, with what it has below a second: moves of one second keep their order."""

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
    """The database's own clock, UTC, naive: deadlines are decided by it alone."""
    return session.scalar(_NOW)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The dialect begins transactions; the driver's own implicit BEGIN would be a deferred one.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _bound_transactions(connection: Any, _record: object) -> None:
    """Bound and isolate transactions alike on every server, whatever it is configured to do by itself.

    A process that is stopped in the middle of a transaction would else keep its rows for as long as it likes.  Each
    statement reads what is committed when it begins: what is summed up behind the lock of a row has all that whoever
    held the lock before has written.
    """
    if hasattr(connection, "get_server_info"):
        # MySQL knows no bound for transactions alone; the pool replaces what the server closed.
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
    """Replace a pooled connection that its server has closed, without a question to the server.

    An idle connection has nothing to read but the server's farewell or the end of the stream.  All the pooled
    connections are replaced then: the server that ended one has ended those beside it.
    """
    unread = select.poll()
    if _is_open(connection):
        unread.register(_socket(connection), select.POLLIN | select.POLLPRI)
        if not unread.poll(0):
            return
    raise sa.exc.InvalidatePoolError("the server has closed the connection")


def _is_open(connection: Any) -> bool:
    """Whether the driver has not closed its own end."""
    return bool(connection.open) if hasattr(connection, "open") else not connection.closed


def _socket(connection: Any) -> int:
    """The file descriptor of a driver's connection."""
    if hasattr(connection, "fileno"):
        return int(connection.fileno())
    return int(connection._sock.fileno())  # noqa: SLF001 - PyMySQL has no public name for it


def _name_loss(context: sa.ExceptionContext) -> BaseException | None:
    """Let a server that is away, or that only reads, be the same error whatever its driver calls it."""
    if (getattr(context.original_exception, "sqlstate", None) or "").startswith(_AWAY):
        # One that only reads has lost its place to another, to which a new connection leads.
        context.is_disconnect = True
    if context.is_disconnect and not isinstance(context.sqlalchemy_exception, sa.exc.OperationalError):
        return sa.exc.OperationalError(context.statement, None, context.original_exception, connection_invalidated=True)
    return _refusal(context)


def _name_file(context: sa.ExceptionContext) -> BaseException | None:
    """Let an error say which file it is of: SQLite's own does not."""
    error = _refusal(context)
    shown = error or context.sqlalchemy_exception
    if shown is not None and context.engine is not None:
        shown.add_note(str(context.engine.url.database))
    return error


def _refusal(context: sa.ExceptionContext) -> sa.exc.ProgrammingError | None:
    """Return the error of a statement that the database refuses, which some drivers class as an outage."""
    error = context.original_exception
    told = str(error.args[0]) if error.args else ""
    if isinstance(context.sqlalchemy_exception, sa.exc.OperationalError) and _REFUSED.match(told):
        return sa.exc.ProgrammingError(context.statement, None, error, hide_parameters=True)
    return None


class WriteFailed(Exception):
    """A transaction for a move failed, or is in doubt; its cause is the driver's error."""


def absence(error: BaseException) -> str | None:
    """What the driver said when the database could not be reached or gave the transaction up; None for other errors."""
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)):
        return str(error.orig)
    return None


def without_sql(error: BaseException) -> str | None:
    """What a statement met, in words without the statement, its values or rows; None for what is no such error."""
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
    """The file of a SQLite database's error, else nothing."""
    return next(iter(getattr(error, "__notes__", ())), "")
