"""Databases that fail under daemons: lost commits, deadlocks, long outages, cells on servers of different makes."""

from __future__ import annotations

import collections
import contextlib
import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pymysql
import pytest
import sqlalchemy as sa
from support.daemons.daemons import Installation, installation
from support.labs.small_lab import assert_balanced, file_flow, history, is_released, read_move, until
from support.labs.snapshot import Snapshot
from support.servers import mariadb_server, postgres_server, zookeeper_server
from support.servers.proxy import Loss, Proxy, running_proxy
from support.servers.spread import Server, Spread

from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.lab import cloud
from droveway.lab.session import Lab
from droveway.persistence.database import Database, absence
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Move

KINDS: Final = {"postgresql": postgres_server, "mariadb": mariadb_server}

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"

_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"

_CLOUD: Final = f"""
cells:
  cell1: {{hosts: {{host1: {_HOST}, host2: {_HOST}}}}}
  cell2: {{hosts: {{host3: {_HOST}, host4: {_HOST}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 1}}}}
servers:
  web: {{host: host1, {_SERVER}}}
  db: {{host: host3, {_SERVER}}}
"""

_WAITING: Final = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mariadb": "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'Innodb_row_lock_current_waits'",
}
"""How many transactions wait for a row that another one has."""


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(_CLOUD, "faults")


@pytest.fixture(scope="module", name="servers")
def fixture_servers() -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        yield {kind: stack.enter_context(module.running_server()) for kind, module in KINDS.items()}


@pytest.fixture(name="lab")
def fixture_lab(rest: Snapshot) -> Iterator[Lab]:
    lab = rest.restore()
    yield lab
    lab.close()


@pytest.fixture(name="kind", params=list(KINDS))
def fixture_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="proxied")
def fixture_proxied(
    kind: str, servers: dict[str, Server], lab: Lab, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[tuple[Installation, Proxy]]:
    """Daemons that reach all their databases through a proxy."""
    spread = Spread(servers[kind])
    with (
        running_proxy(servers[kind].socket) as proxy,
        installation(lab, tmp_path, zookeeper.hosts, spread, reached=spread.through(proxy)) as site,
    ):
        yield site, proxy
        proxy.heal()
        proxy.lose_none()


def errors_of(lab: Lab, move: str) -> list[object]:
    """What went wrong in the move's steps."""
    return [(row.step, row.direction, row.error) for row in history(lab, move) if row.error]


def assert_told_once(lab: Lab, move: str) -> None:
    """Each run of a step has one row, each has ended, and none failed."""
    rows = history(lab, move)
    assert [row.step for row in rows if row.ended_at is None] == []
    assert errors_of(lab, move) == []
    runs = collections.Counter((row.flow, row.step, row.direction, row.attempt) for row in rows)
    assert [run for run, count in runs.items() if count > 1] == []


@pytest.mark.parametrize("loss", ["before", "after"])
def test_commits_that_are_lost_lose_no_step(proxied: tuple[Installation, Proxy], loss: Loss) -> None:
    """The connection goes before COMMIT is heard, or after it was and before its answer."""
    site, proxy = proxied
    for host in ("host1", "host2"):
        site.worker(host)
    conductor = site.conductor()
    proxy.lose_commits({7, 22, 41}.__contains__, loss)
    move = file_flow(site.lab, "resize")
    end = site.await_rest(move)
    assert end == State.VERIFYING, errors_of(site.lab, move)
    assert proxy.lost == 3
    assert_told_once(site.lab, move)
    assert "Traceback" not in conductor.log.read_text(), conductor.text()
    assert_balanced(site.lab)


def test_a_deadlock_gives_the_step_up_and_never_fails_it(proxied: tuple[Installation, Proxy], kind: str) -> None:
    """Two transactions take the rows of a move in opposite order: the conductor's loses, and is made again."""
    site, _proxy = proxied
    for host in ("host1", "host2"):
        site.worker(host)
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    site.await_step(move, "claim")
    suffered = sum(_deadlock(site.lab, move, kind) for _turn in range(2))
    end = site.await_rest(move)
    assert end == State.VERIFYING, errors_of(site.lab, move)
    assert suffered > 0
    assert_told_once(site.lab, move)
    assert "Traceback" not in conductor.log.read_text(), conductor.text()
    assert_balanced(site.lab)


def _deadlock(lab: Lab, move: str, kind: str) -> bool:
    """Deadlock with the next transaction of the move's conductor; whether that one lost."""
    first = sa.select(Move.id).where(Move.id == move).with_for_update()
    second = sa.select(Claim.epoch).where(Claim.move_id == move).with_for_update()
    with lab.journal.engine.connect() as ours, lab.journal.engine.connect() as looking:
        # The lighter transaction of two is the one that MariaDB gives up.
        ours.execute(sa.update(Move).where(Move.id == move).values(reason="held by a test"))
        ours.execute(first)
        until(lambda: _waiting(looking, kind) or is_released(lab, move), "that the conductor waits")
        try:
            ours.execute(second)
        except sa.exc.OperationalError:
            ours.rollback()
            return False
        ours.rollback()
        return True


def _waiting(connection: sa.Connection, kind: str) -> bool:
    try:
        return int(connection.scalar(sa.text(_WAITING[kind]))) > 0
    finally:
        connection.rollback()


@pytest.mark.parametrize("step", ["switch_records"])
def test_a_server_that_is_away_for_longer_than_steps_try_again(proxied: tuple[Installation, Proxy], step: str) -> None:
    """An outage is no failure of a step, however long: none is parked or undone for it."""
    site, proxy = proxied
    for host in ("host1", "host2"):
        site.worker(host)
    conductor = site.conductor(OS_CONDUCTOR__RETRY_FOR="1")
    move = file_flow(site.lab, "resize")
    site.await_step(move, "switch_records")
    proxy.cut()
    until(lambda: "The keeper waits for ZooKeeper" in conductor.log.read_text(), "that the conductor notices")
    noticed = time.monotonic()
    until(lambda: time.monotonic() > noticed + 3, "three times what a step tries for")
    proxy.heal()
    end = site.await_rest(move)
    assert end == State.VERIFYING, errors_of(site.lab, move)
    assert_told_once(site.lab, move)
    assert_balanced(site.lab)


@pytest.mark.parametrize(("kind", "heard"), [("postgresql", True), ("mariadb", False)], indirect=["kind"])
def test_a_step_is_left_when_its_cells_database_falls_silent(
    kind: str, servers: dict[str, Server], lab: Lab, zookeeper: zookeeper_server.Server, tmp_path: Path, heard: bool
) -> None:
    """The server is there and says nothing: so is the next claim given up, and nothing is undone for it."""
    spread = Spread(servers[kind])
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(running_proxy(servers[kind].socket))

        def reached(database: str) -> str:
            return spread.through(proxy)(database) if database.startswith("cell-") else spread.url(database)

        site = stack.enter_context(installation(lab, tmp_path, zookeeper.hosts, spread, reached=reached))
        for host in ("host1", "host2"):
            site.worker(host)
        conductor = site.conductor(OS_CONDUCTOR__STEP_DEADLINE="1")
        proxy.fall_silent(b"UPDATE instances SET", heard=heard)
        move = file_flow(site.lab, "resize")
        for said in (
            r"step [a-z_]+ waited for a database until its deadline of 1 s had passed",
            "Flows that run here were given back and wait for the databases",
        ):
            until(lambda said=said: re.search(said, conductor.log.read_text()), said)
        with lab.journal.read() as session:
            assert moves.get(session, move).state == State.RUNNING
        if not heard:
            proxy.cut()
        proxy.heal()
        end = site.await_rest(move)
        assert end == State.VERIFYING, errors_of(site.lab, move)
        assert_told_once(site.lab, move)
        assert "Traceback" not in conductor.log.read_text(), conductor.text()
        assert_balanced(site.lab)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"], indirect=True)
def test_a_move_says_that_it_waits_for_the_api_database(
    kind: str, servers: dict[str, Server], lab: Lab, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> None:
    """Let its cell and the journal answer: it is claimed in vain until that database is back, then goes on."""
    spread = Spread(servers[kind])
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(running_proxy(servers[kind].socket))

        def reached(database: str) -> str:
            return spread.through(proxy)(database) if database == "api" else spread.url(database)

        site = stack.enter_context(installation(lab, tmp_path, zookeeper.hosts, spread, reached=reached))
        for host in ("host1", "host2"):
            site.worker(host)
        conductor = site.conductor(OS_CONDUCTOR__RETRY_FOR="1")
        move = file_flow(site.lab, "resize")
        site.await_step(move, "copy_disks")
        proxy.cut()
        until(lambda: read_move(lab, move).waits_for, "the move says what it waits for")
        said = read_move(lab, move).waits_for
        assert said.startswith("the API database, which does not answer (since ")
        before = epoch_of(lab, move)
        until(lambda: epoch_of(lab, move) > before + 1, "the next claims")
        assert read_move(lab, move).waits_for == said
        proxy.heal()
        end = site.await_rest(move)
        assert end == State.VERIFYING, errors_of(site.lab, move)
        assert read_move(lab, move).waits_for is None
        assert_told_once(site.lab, move)
        assert "Traceback" not in conductor.log.read_text(), conductor.text()
        assert_balanced(site.lab)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"], indirect=True)
def test_a_table_or_column_that_is_not_there_is_no_outage(kind: str, servers: dict[str, Server]) -> None:
    spread = Spread(servers[kind])
    spread.create("shape")
    found = Database(spread.url("shape"))
    with found.begin() as connection:
        connection.execute(sa.text("CREATE TABLE somewhere (a INTEGER)"))
    for statement in ("SELECT a FROM nowhere", "SELECT b FROM somewhere"):
        with pytest.raises(sa.exc.ProgrammingError) as met, found.reading() as connection:
            connection.execute(sa.text(statement))
        assert absence(met.value) is None
    found.close()


def test_a_right_that_is_missing_is_no_outage(servers: dict[str, Server]) -> None:
    """MariaDB's driver classes it as one; a step would be entered again and again."""
    server, spread = servers["mariadb"], Spread(servers["mariadb"])
    spread.create("rights")
    url = sa.make_url(spread.url("rights"))
    made = Database(spread.url("rights"))
    with made.begin() as connection:
        connection.execute(sa.text("CREATE TABLE somewhere (a INTEGER)"))
    made.close()
    root = pymysql.connect(unix_socket=str(server.socket), user=pwd.getpwuid(os.geteuid()).pw_name)
    with root, root.cursor() as cursor:
        cursor.execute("CREATE USER reader@localhost IDENTIFIED BY 'reader'")
        cursor.execute(f"GRANT SELECT ON `{url.database}`.* TO reader@localhost")
    found = Database(url.set(username="reader", password="reader").render_as_string(hide_password=False))
    with pytest.raises(sa.exc.ProgrammingError) as met, found.begin() as connection:
        connection.execute(sa.text("INSERT INTO somewhere VALUES (1)"))
    assert absence(met.value) is None
    found.close()


def epoch_of(lab: Lab, move: str) -> int:
    """Return the epoch of the move's last claim."""
    with lab.journal.read() as session:
        return int(session.scalar(sa.select(Claim.epoch).where(Claim.move_id == move)) or 0)


def test_databases_of_one_installation_lie_on_servers_of_both_makes(
    servers: dict[str, Server], lab: Lab, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> None:
    """The journal and one cell on PostgreSQL, the API database and the other cell on MariaDB; a crash in between."""
    spread = Spread(servers["postgresql"], api=servers["mariadb"], cell_cell2=servers["mariadb"])
    with installation(lab, tmp_path, zookeeper.hosts, spread) as site:
        site.workers()
        first = site.conductor("first")
        found = {server: submit(lab, MoveSpec(server=server, flavor="large")).id for server in ("web", "db")}
        for move in found.values():
            site.await_step(move, "copy_disks")
        first.kill()
        second = site.conductor("second")
        for move in found.values():
            assert site.await_rest(move) == State.VERIFYING, (errors_of(lab, move), second.text())
            with lab.journal.write() as session:
                requests.end_wait(session, moves.get(session, move, lock=True), registry.reference("confirm"))
        for move in found.values():
            assert site.await_rest(move) == State.DONE, (errors_of(lab, move), second.text())
            assert_told_once(lab, move)
        assert_balanced(lab)
        assert {database.dialect for database in lab.cell_databases.values()} == {"postgresql", "mysql"}
