"""Databases over TLS, as their URLs ask for it: the server proves its name, and nothing goes in the clear."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import mariadb_server, postgres_server
from support.servers.certificates import Authority

from droveway.persistence.database import Database, DatabaseUnusable
from droveway.persistence.journal import migrate

SERVERS = {"postgresql": postgres_server, "mariadb": mariadb_server}
IN_USE = {
    "postgresql": "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mariadb": "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Ssl_version'",
}

Server = postgres_server.Server | mariadb_server.Server


@pytest.fixture(scope="module", name="authority")
def fixture_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", name="server", params=list(SERVERS))
def fixture_server(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[str, Server]]:
    files = authority.issue("db", names=("localhost",))
    with SERVERS[request.param].running_server(files) as server:
        server.create("journal")
        yield request.param, server


def test_the_journal_is_made_and_read_through_tls(server: tuple[str, Server], authority: Authority) -> None:
    kind, where = server
    journal = Database(where.tls_url("journal", authority.path))
    migrate.sync(journal)
    migrate.check(journal)
    with journal.engine.connect() as connection:
        assert str(connection.exec_driver_sql(IN_USE[kind]).scalar()).startswith("TLSv1.")
    journal.close()


def test_a_server_that_does_not_prove_its_name_is_not_spoken_to(
    server: tuple[str, Server], authority: Authority, tmp_path: Path
) -> None:
    _, where = server
    other = Authority(tmp_path / "other")
    wrong = [
        where.tls_url("journal", other.path),
        where.tls_url("journal", authority.path, name="127.0.0.1"),
        where.plain_url("journal"),
    ]
    for url in wrong:
        with pytest.raises(DatabaseUnusable, match=r"of \[journal\] does not answer") as told:
            Database(url).require("of [journal]")
        assert "canary" not in str(told.value)
