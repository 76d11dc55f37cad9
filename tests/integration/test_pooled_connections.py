"""Pooled connections to real servers: nobody asks whether they live before a use, and a dead one is never met."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from support.labs.small_lab import until
from support.servers import mariadb_server, postgres_server
from support.servers.proxy import running_proxy

from droveway import deadlines
from droveway.persistence.database import Database

MAKES: Final = {"postgresql": postgres_server, "mariadb": mariadb_server}
NAME: Final = "pooled"
OTHERS: Final = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE id <> connection_id()",
}
END: Final = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
_ONE: Final = sa.text("SELECT 1")
_PID: Final = sa.text("SELECT pg_backend_pid()")
_STATE: Final = sa.text("SELECT state FROM pg_stat_activity WHERE pid = :pid")

Server = postgres_server.Server | mariadb_server.Server


@pytest.fixture(name="make", params=list(MAKES))
def fixture_make(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="server")
def fixture_server(make: str) -> Iterator[Server]:
    with MAKES[make].running_server() as server:
        server.create(NAME)
        yield server


def used(database: Database, connections: int = 2) -> None:
    """Have so many connections lie in the pool."""
    opened = [database.engine.connect() for _ in range(connections)]
    for connection in opened:
        assert connection.scalar(_ONE) == 1
    for connection in opened:
        connection.close()


def test_the_server_hears_nothing_of_a_connection_that_is_taken_from_the_pool(server: Server) -> None:
    with running_proxy(server.socket) as proxy:
        database = Database(server.url_through(proxy.port, NAME))
        used(database)
        proxy.fall_silent(b"", heard=False)
        with deadlines.running("look", 5.0), database.engine.connect():
            assert proxy.unanswered == 0
            proxy.heal()
        used(database)
        database.close()


def test_a_server_that_was_started_anew_is_met_by_new_connections(server: Server) -> None:
    database = Database(server.url(NAME))
    used(database)
    server.kill()
    server.start()
    used(database)
    database.close()


def test_connections_that_the_server_ended_are_replaced(make: str, server: Server) -> None:
    database, other = Database(server.url(NAME)), Database(server.url(NAME))
    used(database)
    with other.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        ended = connection.scalars(sa.text(OTHERS[make])).all()
        assert len(ended) >= 2
        for number in ended:
            connection.execute(sa.text(END[make].format(int(number))))
        # Both servers end a connection some time after they were told to.
        until(lambda: not connection.scalars(sa.text(OTHERS[make])).all(), "the connections to end")
    used(database)
    for each in (database, other):
        each.close()


@pytest.mark.parametrize("words", ["move list", "move show nosuch"])
def test_a_command_takes_leave_of_its_database_servers(tmp_path: Path, words: str) -> None:
    """A server counts the clients that go without a word, and logs each."""
    with mariadb_server.running_server() as server:
        server.create("journal", "api")
        path = tmp_path / "droveway.conf"
        groups = {"journal": "journal", "api_database": "api"}
        path.write_text("".join(f"[{group}]\nconnection = {server.url(name)}\n" for group, name in groups.items()))
        path.chmod(0o600)
        watching = Database(server.url("api"))
        for each in ("db sync", words):
            command = [sys.executable, "-m", "droveway.cli.main", *each.split(), "--config-file", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == (2 if "nosuch" in each else 0), done.stderr
        with watching.reading() as connection:
            until(lambda: not connection.scalars(sa.text(OTHERS["mariadb"])).all(), "the end of the command's")
            assert connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Aborted_clients'")).one()[1] == "0"
        watching.close()


def test_a_look_begins_no_transaction_on_postgresql() -> None:
    """Each would be two more questions; and after looks the connection is one for transactions again."""
    with postgres_server.running_server() as server:
        server.create(NAME)
        database, other = Database(server.url(NAME)), Database(server.url(NAME))
        with database.begin() as connection:
            connection.execute(sa.text("CREATE TABLE numbers (number integer)"))
        with database.reading() as connection, other.begin() as watching:
            pid = connection.scalar(_PID)
            assert watching.scalar(_STATE, {"pid": pid}) == "idle"
        with database.read() as session, other.begin() as watching:
            pid = session.scalar(_PID)
            assert watching.scalar(_STATE, {"pid": pid}) == "idle"
        connection = database.engine.connect()
        transaction = connection.begin()
        pid = connection.scalar(_PID)
        with other.begin() as watching:
            assert watching.scalar(_STATE, {"pid": pid}) == "idle in transaction"
        connection.execute(sa.text("INSERT INTO numbers VALUES (1)"))
        transaction.rollback()
        connection.close()
        with database.reading() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM numbers")) == 0
        database.close()
        other.close()
