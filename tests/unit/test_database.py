"""Connections and transactions of a SQLite database, and how it fails that one cannot begin on."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from droveway.persistence import database
from droveway.persistence.database import Database, DatabaseUnusable, absence, file_of, sqlite_url, without_sql
from droveway.persistence.journal.tables import Counter, JournalBase


def test_a_transaction_that_has_to_wait_too_long_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.01)
    path = tmp_path / "journal.sqlite"
    ours = Database(sqlite_url(path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        with ours.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE rows (number INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(exc.OperationalError, match="locked") as caught, ours.begin():
            pass
        assert file_of(caught.value) == str(path)
        other.execute("ROLLBACK")
        with ours.begin() as connection:
            connection.exec_driver_sql("INSERT INTO rows VALUES (1)")
        assert other.execute("SELECT number FROM rows").fetchall() == [(1,)]
    ours.close()


def test_a_file_that_became_garbage_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ours = Database(sqlite_url(path))
    with ours.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (number INTEGER)")
    ours.close()
    path.write_bytes(b"no database at all" * 500)
    with pytest.raises(exc.DatabaseError, match="not a database") as caught, ours.begin():
        pass
    assert file_of(caught.value) == str(path)


@pytest.mark.parametrize("kind", ["DatabaseError", "OperationalError"])
def test_what_fails_as_a_transaction_begins_is_sqlalchemys_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The command line knows a broken database by SQLAlchemy's errors alone."""

    class Broken(sqlite3.Connection):
        def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            if statement.startswith("BEGIN"):
                raise getattr(sqlite3, kind)("database disk image is malformed")
            return super().execute(statement, *parameters)

    ours = Database(sqlite_url(tmp_path / "journal.sqlite"))
    monkeypatch.setattr(sqlite3.dbapi2, "connect", Broken)
    with pytest.raises(getattr(exc, kind), match="malformed") as caught, ours.begin():
        pass
    assert file_of(caught.value) == str(tmp_path / "journal.sqlite")
    ours.close()


def test_only_what_is_to_write_takes_the_lock(tmp_path: Path) -> None:
    """And a connection that wrote, or was to write and did not, is one for reading again."""
    path = tmp_path / "journal.sqlite"
    ours, others = Database(sqlite_url(path)), Database(sqlite_url(path))
    with ours.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (number INTEGER)")
    with ours.write():
        pass
    with ours.begin() as writing, others.read() as reading:
        writing.exec_driver_sql("INSERT INTO rows VALUES (1)")
        assert reading.scalar(sa.text("SELECT count(*) FROM rows")) == 0
    with ours.read() as reading, others.write() as writing:
        assert reading.scalar(sa.text("SELECT count(*) FROM rows")) == 1
        writing.execute(sa.text("INSERT INTO rows VALUES (2)"))
    for each in (ours, others):
        each.close()


def test_what_is_changed_in_what_was_read_is_never_written(tmp_path: Path) -> None:
    """Nor for a statement that comes after the change, in the same session."""
    ours = Database(sqlite_url(tmp_path / "journal.sqlite"))
    with ours.begin() as connection:
        JournalBase.metadata.tables["counters"].create(connection)
        connection.execute(sa.insert(Counter), {"name": "epoch", "value": 1})
    with ours.read() as session:
        session.get_one(Counter, "epoch").value = 2
        assert session.scalar(sa.select(Counter.value)) == 1
    with ours.reading() as connection:
        assert connection.scalar(sa.select(Counter.value)) == 1
    ours.close()


@pytest.mark.parametrize("look", ["read", "reading"])
def test_no_unit_test_passes_in_which_a_look_writes(tmp_path: Path, look: str) -> None:
    """See `conftest.py`: it is refused there, and the connection writes again behind it."""
    ours = Database(sqlite_url(tmp_path / "journal.sqlite"))
    with ours.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (number INTEGER)")
    with pytest.raises(exc.OperationalError, match="readonly"), getattr(ours, look)() as looking:
        looking.execute(sa.text("INSERT INTO rows VALUES (1)"))
    with ours.begin() as connection:
        connection.exec_driver_sql("INSERT INTO rows VALUES (2)")
    with ours.reading() as connection:
        assert connection.scalar(sa.text("SELECT number FROM rows")) == 2
    ours.close()


def test_the_connection_that_was_given_back_last_is_the_next_one(tmp_path: Path) -> None:
    """Its pages are in memory still: one that rested has missed what was written meanwhile."""
    ours = Database(sqlite_url(tmp_path / "journal.sqlite"))
    with ours.engine.connect() as first:
        with ours.engine.connect() as second:
            early = first.connection.driver_connection
            late = second.connection.driver_connection
        assert early is not late
    with ours.engine.connect() as third:
        assert third.connection.driver_connection is early
    ours.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://user:SECRETWORD@127.0.0.1:1/nova?connect_timeout=PASSWORDTYPO",
        "postgresql+psycopg://user:SECRETWORD@127.0.0.1:1/nova?nosuchoption=PASSWORDTYPO",
        "postgresql+psycopg://user:SECRETWORD@127.0.0.1:1/nova?sslmode=PASSWORDTYPO",
        "mysql+pymysql://user:SECRETWORD@127.0.0.1:1/nova?connect_timeout=PASSWORDTYPO",
        "mysql+pymysql://user:SECRETWORD@127.0.0.1:1/nova?ssl_ca=PASSWORDTYPO",
        "mysql+pymysql://user:SECRETWORD@127.0.0.1:1/nova?nosuchoption=PASSWORDTYPO",
    ],
)
def test_a_driver_quotes_nothing_that_was_pasted_into_the_url(url: str) -> None:
    """S17: a password may be pasted behind the wrong name."""
    with pytest.raises(DatabaseUnusable) as refused:
        Database(url).require("of [journal]")
    assert "PASSWORDTYPO" not in str(refused.value)
    assert "SECRETWORD" not in str(refused.value)
    assert "of [journal]" in str(refused.value)


@pytest.mark.parametrize("password", ["73519284", "731", "XQ!"])
def test_a_drivers_message_shows_no_password_however_short_and_though_it_is_a_number(password: str) -> None:
    """S17: nor one that is given as an option."""
    urls = [
        f"postgresql+psycopg://user:{password}@127.0.0.1:1/nova?sslmode={password}",
        f"postgresql+psycopg://user@127.0.0.1:1/nova?sslmode={password}&password={password}",
    ]
    for url in urls:
        with pytest.raises(DatabaseUnusable, match=r"invalid sslmode value: \"\.\.\.\"") as refused:
            Database(url).require("of [journal]")
        assert password not in str(refused.value)


def test_a_database_of_which_nobody_knows_the_kind_is_named_once_it_is_needed() -> None:
    unknown = Database("nosuch://user:SECRETWORD@127.0.0.1/nova")
    with pytest.raises(DatabaseUnusable, match=r"the database of \[journal\] names no driver") as refused:
        unknown.require("of [journal]")
    assert "SECRETWORD" not in str(refused.value)


def test_an_error_shows_no_values(tmp_path: Path) -> None:
    """U17: neither in a reason nor in a log."""
    found = Database(sqlite_url(tmp_path / "x.sqlite"))
    with pytest.raises(sa.exc.DBAPIError) as met, found.write() as session:
        session.execute(sa.text("INSERT INTO nowhere (a) VALUES (:a)"), {"a": "PARAMETER"})
    assert "PARAMETER" not in str(met.value)
    assert without_sql(met.value) == (
        "the database refused a statement (ProgrammingError); the conductor's log has the traceback and what the "
        "server said"
    )
    assert without_sql(ValueError("x")) is None


@pytest.mark.parametrize(
    "statement", ["SELECT a FROM nowhere", "SELECT b FROM somewhere", "INSERT INTO somewhere (b) VALUES (1)"]
)
def test_a_table_or_column_that_is_not_there_is_no_outage(tmp_path: Path, statement: str) -> None:
    """Keep a step from being entered again and again for a database that answers."""
    found = Database(sqlite_url(tmp_path / "x.sqlite"))
    with found.write() as session:
        session.execute(sa.text("CREATE TABLE somewhere (a INTEGER)"))
    with pytest.raises(sa.exc.ProgrammingError) as met, found.reading() as connection:
        connection.execute(sa.text(statement))
    assert absence(met.value) is None
    assert file_of(met.value) == str(tmp_path / "x.sqlite")


class Gone(sqlite3.Connection):
    """A connection whose server went before the transaction was rolled back."""

    error: Exception | None = None

    def rollback(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "told"), [(sqlite3.OperationalError("gone"), 0), (sqlite3.ProgrammingError("a defect"), 1)]
)
def test_a_connection_that_broke_is_given_back_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, told: int
) -> None:
    """Anything else that fails there is shown."""
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool, connect_args={"factory": Gone})
    connection = engine.raw_connection()
    monkeypatch.setattr(Gone, "error", error)
    connection.close()
    assert len([record for record in caplog.records if "Exception during reset" in record.message]) == told
    monkeypatch.undo()
    engine.dispose()
