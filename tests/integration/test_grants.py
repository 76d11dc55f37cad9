"""etc/sql: with the users and the rights that these files make, and no others, servers are moved on real servers."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from support.daemons.daemons import LONG, Installation, installation
from support.labs.small_lab import assert_balanced, until
from support.labs.snapshot import Snapshot
from support.servers import mariadb_server, postgres_server, zookeeper_server

from droveway.lab import cloud, operations
from droveway.persistence.database import Database
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import JournalBase
from droveway.persistence.nova import cell
from droveway.persistence.nova.base import ApiBase, CellBase

SQL: Final = Path(__file__).parents[2] / "etc" / "sql"
PASSWORD: Final = "canary-grants-71ab"
JOURNAL: Final = "droveway"
"""What journal.sql calls the database that it makes."""

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"
_CLOUD: Final = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {_HOST}, host2: {_HOST}}}}}
  cell2: {{hosts: {{host3: {_HOST}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 0}}
  swapping: {{vcpus: 2, memory_mb: 512, root_gb: 0, swap_mb: 1}}
images: {{base: {{size_mb: 2}}}}
servers:
  web: {{host: host1, flavor: small, image: base, ports: [{{}}], volumes: [{{size_gb: 1}}]}}
  idle: {{host: host1, flavor: small, image: base, state: stopped, ports: [{{}}]}}
"""

Right = tuple[str, str]
"""A verb of SQL and a table."""

ONLY_SEEN: Final = {("SELECT", "console_pools")}
"""What no statement reads: `droveway db check` looks whether it is there, and MariaDB shows only what one may use."""

ELSEWHERE: Final = {
    # For servers in a group, which this lab has not.
    ("SELECT", "instance_group_policy"),
    # Rows that Nova no longer writes; a copy that is left may have old ones.
    ("DELETE", "consoles"),
}
"""What the operations below do not need, and others do."""


class Granted:
    """A server on which daemons are the user that etc/sql gives rights to; the lab itself is another one."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind = kind
        self._server = server

    def create(self, *databases: str) -> None:
        """Make the databases; the journal's as journal.sql does."""
        if self.kind == "postgresql":
            self.say("postgres", f"CREATE ROLE droveway LOGIN PASSWORD '{PASSWORD}'")
            self.say("postgres", "ALTER ROLE droveway SET log_statement = 'all'")
            self.say("postgres", "ALTER SYSTEM SET log_line_prefix = '@@%u '")
            self.say("postgres", "SELECT pg_reload_conf()")
        else:
            self.say("mysql", f"CREATE USER droveway@'%' IDENTIFIED BY '{PASSWORD}'")
            self.say("mysql", "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
        self.run("journal.sql", "postgres" if self.kind == "postgresql" else "mysql")
        self._server.create(*(name for name in databases if name != "journal"))

    def url(self, database: str) -> str:
        """How the lab reaches it: the journal is of the user of etc/sql, all others are an administrator's."""
        return self.reached(database) if database == "journal" else self._server.url(database)

    def reached(self, database: str) -> str:
        """How daemons reach it."""
        url = sa.make_url(self._server.url(JOURNAL if database == "journal" else database))
        return url.set(username="droveway", password=PASSWORD).render_as_string(hide_password=False)

    def give_rights(self) -> None:
        """Run the files for Nova's databases, whose tables are there by now."""
        self.run("nova-api.sql", "api")
        self.run("nova-cell.sql", "cell-cell1")
        self.run("nova-cell.sql", "cell-cell2")

    def run(self, file: str, database: str) -> None:
        """Run one of the files as its first lines say."""
        self._client(database, (SQL / self.kind / file).read_text())

    def say(self, database: str, statement: str) -> None:
        """Run one statement as an administrator."""
        self._client(database, f"{statement};\n")

    def used(self) -> set[Right]:
        """Which rights the user's statements have needed, on tables of whatever database."""
        if self.kind == "postgresql":
            lines = self._server.log.read_text().replace("\n\t", " ").splitlines()
            texts = [line for line in lines if line.startswith("@@droveway ")]
            statements = [text.split(": ", 2)[-1] for text in texts if " LOG: " in text]
        else:
            wanted = (
                "SELECT argument FROM mysql.general_log WHERE user_host LIKE 'droveway%' AND command_type = 'Query'"
            )
            rows = self._client("mysql", wanted, "--skip-column-names", "--batch", "--raw", "--init-command=SET @a=1")
            statements = re.split(r"\n(?=[A-Z]+[ \n])", rows)
        return {right for text in statements for right in _needed(" ".join(text.split()))}

    def _client(self, database: str, text: str, *options: str) -> str:
        if self.kind == "postgresql":
            where = sa.make_url(self._server.url(database))
            words = ["psql", "-v", "ON_ERROR_STOP=1", "-h", str(where.query["host"]), "-U", str(where.username)]
            environment = {**os.environ, "PGPASSWORD": str(where.password)}
            words += ["-d", database, "-f", "-"]
        else:
            words = ["mariadb", "--no-defaults", f"--socket={self._server.socket}", *options, database]
            environment = dict(os.environ)
        done = subprocess.run(words, input=text, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _needed(statement: str) -> Iterator[Right]:
    text = statement.replace('"', "").replace("`", "")
    for table in re.findall(r"\b(?:FROM|JOIN) (?:\w+\.)?(\w+)", text):
        yield "SELECT", table
    for verb, pattern in (("INSERT", r"INSERT INTO"), ("UPDATE", r"UPDATE"), ("DELETE", r"DELETE FROM")):
        if found := re.match(rf"{pattern} (\w+)", text):
            yield verb, found[1]


def given(kind: str) -> set[Right]:
    """The rights that the files give on tables of Nova's."""
    text = (SQL / kind / "nova-api.sql").read_text() + (SQL / kind / "nova-cell.sql").read_text()
    grants = re.findall(r"^GRANT ([A-Z, ]+) ON (\w+) TO droveway;$", text, re.MULTILINE)
    return {(verb, table) for verbs, table in grants for verb in verbs.split(", ")}


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(_CLOUD, "grants")


@pytest.fixture(params=["postgresql", "mariadb"], name="granted")
def fixture_granted(request: pytest.FixtureRequest) -> Iterator[Granted]:
    servers: dict[str, Any] = {"postgresql": postgres_server, "mariadb": mariadb_server}
    with servers[request.param].running_server() as server:
        yield Granted(request.param, server)


@pytest.fixture(name="site")
def fixture_site(
    rest: Snapshot, granted: Granted, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[Installation]:
    lab = rest.restore()
    with lab.cell_databases["cell1"].write() as session:
        for name in ("web", "idle"):
            _fill(session, name)
    made: Any = granted
    with installation(lab, tmp_path, zookeeper.hosts, made, reached=granted.reached) as site:
        granted.give_rights()
        images = "".join(f"{name} = {value}\n" for name, value in site.cloud.image_settings()["glance"].items())
        with site.configuration.open("a") as file:
            file.write(f"\n[cross_cell]\nallowed = true\n\n[glance]\n{images}")
        yield site
    for daemon in site.daemons:
        # Shown where a test failed, which is where it is wanted.
        sys.stdout.write(f"{daemon.name}:\n{daemon.text()}\n")
    lab.close()


def _fill(session: Session, name: str) -> None:
    """Give a server a row of each of those tables that a lab leaves empty."""
    server = session.scalars(sa.select(cell.Instance).where(cell.Instance.display_name == name)).one()
    group = cell.SecurityGroup(name=f"for-{name}", project_id=server.project_id, user_id=server.user_id)
    session.add_all(
        [
            group,
            cell.InstanceMetadata(instance_uuid=server.uuid, key="role", value="front"),
            cell.InstanceFault(instance_uuid=server.uuid, code=500, message="it failed once"),
            cell.Tag(resource_id=server.uuid, tag="front"),
        ]
    )
    session.flush()
    session.add(cell.SecurityGroupInstanceAssociation(instance_uuid=server.uuid, security_group_id=group.id))


def ends(site: Installation, server: str, *words: str) -> str:
    """Ask for the operation; where its move rests."""
    site.done("server", *words)
    with site.lab.journal.read() as session:
        move = next(row.id for row in moves.open_moves(session) if row.server_name == server)
    return site.await_rest_of(move)


def test_servers_are_moved_with_these_rights_and_none_of_them_is_unused(site: Installation, granted: Granted) -> None:
    assert "empty" not in site.done("db", "sync")
    assert site.told("db", "check") == []
    site.workers()
    site.conductor()
    for words, state in (
        (("resize", "web", "--flavor", "swapping"), "verifying"),
        (("revert", "web"), "reverted"),
        (("resize", "web", "--flavor", "swapping", "--to-cell", "cell2"), "verifying"),
        (("revert", "web"), "reverted"),
        (("migrate", "web", "--to-cell", "cell2"), "verifying"),
        (("confirm", "web"), "done"),
        (("shelve", "web"), "done"),
        (("unshelve", "web", "--to-cell", "cell1"), "done"),
    ):
        assert ends(site, "web", *words) == state, words
        assert_balanced(site.lab)
    site.done("host", "disable", "host2")
    site.done("host", "enable", "host2")
    operations.request_delete(site.lab, "idle")
    until(lambda: [row["name"] for row in site.told("server", "list")] == ["web"], "the end of the server", LONG)
    assert_balanced(site.lab)
    nova = {*ApiBase.metadata.tables, *CellBase.metadata.tables} - {*JournalBase.metadata.tables}
    used = {(verb, table) for verb, table in granted.used() if table in nova}
    assert used - given(granted.kind) == set()
    assert sorted(given(granted.kind) - used) == sorted(ONLY_SEEN | ELSEWHERE)


def test_with_one_right_less_a_move_fails_and_says_that_the_database_refused_it(
    site: Installation, granted: Granted
) -> None:
    granted.say("cell-cell1", "REVOKE INSERT ON migrations FROM droveway")
    site.workers()
    site.conductor()
    assert ends(site, "web", "resize", "web", "--flavor", "swapping") == "failed"
    (move,) = [row["id"] for row in site.told("move", "list")]
    assert "the database refused a statement (ProgrammingError 42" in site.told("move", "show", move)["error"]
    granted.give_rights()
    assert ends(site, "web", "resize", "web", "--flavor", "swapping") == "verifying"
    assert_balanced(site.lab)


def test_a_move_whose_servers_row_may_not_be_written_rests_and_goes_on_once_it_may(
    site: Installation, granted: Granted
) -> None:
    """PostgreSQL refuses to lock such a row, so that not even an undo can begin; MariaDB refuses the first write."""
    granted.say("cell-cell1", "REVOKE UPDATE ON instances FROM droveway")
    site.workers()
    site.conductor()
    site.done("server", "resize", "web", "--flavor", "swapping")
    (move,) = [row["id"] for row in site.told("move", "list")]
    rested, code = {"postgresql": ("needs-operator", 4), "mariadb": ("failed", 3)}[granted.kind]
    assert site.droveway("move", "wait", move)[0] == code
    shown = site.told("move", "show", move)
    assert shown["state"] == rested
    assert "the database refused a statement (ProgrammingError" in shown["error"]
    granted.give_rights()
    if rested == "needs-operator":
        site.done("move", "retry", move)
        assert site.await_rest_of(move) == "verifying"
    assert_balanced(site.lab)


def test_every_right_is_on_a_table_that_droveway_knows_and_every_table_may_be_read(granted: Granted) -> None:
    tables = {*ApiBase.metadata.tables, *CellBase.metadata.tables}
    assert {table for _, table in given(granted.kind)} == tables
    assert {table for verb, table in given(granted.kind) if verb == "SELECT"} == tables


@pytest.mark.usefixtures("site")
def test_the_user_may_change_nothing_else(granted: Granted) -> None:
    for database, table in (("cell-cell1", "compute_nodes"), ("api", "cell_mappings")):
        with contextlib.closing(Database(granted.reached(database))) as opened:
            for statement in ("CREATE TABLE other (id INT)", f"DELETE FROM {table}", f"DROP TABLE {table}"):
                with pytest.raises(sa.exc.DBAPIError, match=r"denied|must be owner"), opened.begin() as connection:
                    connection.execute(sa.text(statement))
