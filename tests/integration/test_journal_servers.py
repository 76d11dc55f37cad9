"""The journal on every database that it may be kept in: its schema, its times, and claims taken at the same moment."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.migration import MigrationContext
from support.rows import journal_policies
from support.servers import mariadb_server, postgres_server
from support.servers.proxy import running_proxy

from droveway.engines.conductor import fencing
from droveway.engines.operations import settling
from droveway.errors import Fenced, Refused
from droveway.flows import registry
from droveway.persistence import database
from droveway.persistence.database import Database, database_time, sqlite_url
from droveway.persistence.journal import debts, migrate, moves, past_moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Counter, JournalBase, Move, MoveStep

CONDUCTORS = 8

ASKS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
"""By the kernel's names: seconds of silence, seconds between two questions, how many, milliseconds of what was sent."""

CLAIMS = 10

REQUEST = moves.Request(
    kind="migrate", server="", server_name="web", cell="cell1", host="host1", old_flavor="small", new_flavor="small"
)

_names = (f"journal{number}" for number in itertools.count())


@pytest.fixture(scope="module", name="server", params=["sqlite", "postgresql", "mariadb"])
def fixture_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, object]]:
    if request.param == "sqlite":
        yield request.param, tmp_path_factory.mktemp("sqlite")
        return
    servers = {"postgresql": postgres_server, "mariadb": mariadb_server}
    with servers[request.param].running_server() as server:
        yield request.param, server


@pytest.fixture(name="empty")
def fixture_empty(server: tuple[str, Any]) -> Iterator[Database]:
    """A database that nothing was made in yet."""
    kind, where = server
    name = next(_names)
    if kind == "sqlite":
        found = Database(sqlite_url(where / f"{name}.sqlite"))
    else:
        where.create(name)
        found = Database(where.url(name))
    yield found
    found.close()


@pytest.fixture(name="journal")
def fixture_journal(empty: Database) -> Database:
    migrate.sync(empty)
    return empty


def submit(journal: Database, server: str) -> str:
    with journal.write() as session:
        return moves.submit(session, dataclasses.replace(REQUEST, server=server), registry.reference("migrate")).id


def test_the_migrations_make_the_schema_of_the_models_once(empty: Database) -> None:
    assert migrate.sync(empty) == (None, migrate.HEAD)
    assert migrate.sync(empty) == (migrate.HEAD, migrate.HEAD)
    migrate.check(empty)
    assert differences(empty) == []


def differences(journal: Database) -> list[Any]:
    """Tell where the journal's schema is another than that of the models."""
    ours = JournalBase.metadata
    with journal.engine.connect() as connection:
        # TaskFlow's tables are named by it: their own test has them.
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: kind != "table" or name in ours.tables}
        )
        return list(autogenerate.compare_metadata(context, ours))


def sync_killed_after(journal: Database, statements: int) -> None:
    """Sync the journal in a process that is killed after so many statements that change something."""
    ran = 0

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal ran
        ran += statement.lstrip().startswith(("CREATE", "ALTER", "DROP", "INSERT", "UPDATE"))
        if ran == statements:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(journal.engine, "after_cursor_execute", count)
    migrate.sync(journal)


def test_a_sync_that_was_killed_after_any_statement_is_ended_by_the_next_one(empty: Database) -> None:
    """MariaDB keeps what half a migration has done."""
    statements, kills = 1, 0
    while True:
        before = migrate.revision(empty)
        empty.close()
        syncing = multiprocessing.get_context("fork").Process(target=sync_killed_after, args=(empty, statements))
        syncing.start()
        syncing.join()
        if syncing.exitcode == 0:
            break
        assert syncing.exitcode == -signal.SIGKILL, f"after {kills} kills, the last one at {before}"
        kills += 1
        statements = statements + 1 if migrate.revision(empty) == before else 2
    migrate.check(empty)
    assert differences(empty) == []
    assert kills > len(JournalBase.metadata.tables)


def test_a_time_keeps_what_it_has_below_a_second(journal: Database) -> None:
    move = submit(journal, "web")
    moment = dt.datetime(2026, 11, 22, 23, 59, 59, 999_999)  # noqa: DTZ001 - the journal's times are naive
    with journal.write() as session:
        moves.get(session, move).deadline = moment
    with journal.read() as session:
        assert moves.get(session, move).deadline == moment
        assert abs(database_time(session) - dt.datetime.now(dt.UTC).replace(tzinfo=None)) < dt.timedelta(minutes=1)


def test_what_is_kept_falls_due_by_the_clock_of_the_database(journal: Database) -> None:
    """Below a second too: what is due now is, and what is due in a minute is not."""
    now, later = submit(journal, "now"), submit(journal, "later")
    with journal.write() as session:
        for move, seconds in ((now, 0), (later, 60)):
            debts.keep(session, move_id=move, host="host1", seconds=seconds, details={})
            claim = Claim(move_id=move, epoch=1, owner="anybody", claimed_at=database_time(session))
            claim.released_at = claim.claimed_at
            session.add(claim)
        session.execute(sa.update(Move).values(flow_uuid=None))
    with journal.read() as session:
        assert [debt.move_id for debt in debts.collectable(session)] == [now]


def test_a_step_begins_and_tells_of_the_move_while_its_claim_stands(journal: Database) -> None:
    """What comes with it is what a look behind it finds; a claim that was lost changes nothing."""
    move, other = submit(journal, "web"), submit(journal, "other")
    lost, epoch = (fencing.claim(journal, move, "me") for _ in range(2))
    for recorded in (other, move):
        with journal.write() as session:
            moves.get(session, recorded).before = {"host": "host1"}
        with journal.begin() as connection:
            found = fencing.update_claimed(connection, move, epoch, {"step": "claim", "step_number": 2})
        assert found.claimed == fencing.claimed(journal, move)
        assert found.claimed is not None
        assert found.claimed["recorded"] is (recorded == move)
    assert (found.state, found.source_host) == ("queued", "host1")
    assert (found.claimed["step"], found.claimed["step_number"], found.claimed["epoch"]) == ("claim", 2, epoch)
    with pytest.raises(Fenced), journal.begin() as connection:
        fencing.update_claimed(connection, move, lost, {"step": "copy"})
    assert fencing.claimed(journal, move) == found.claimed


def test_a_step_that_begins_while_its_claim_is_taken_waits_and_is_fenced_off(journal: Database) -> None:
    move = submit(journal, "web")
    epoch = fencing.claim(journal, move, "me")

    def begin() -> None:
        with journal.begin() as connection:
            fencing.update_claimed(connection, move, epoch, {"step": "copy"})

    with futures.ThreadPoolExecutor() as pool:
        with journal.begin() as connection:
            connection.execute(sa.update(Claim).where(Claim.move_id == move).values(epoch=epoch + 1))
            begun = pool.submit(begin)
            with pytest.raises(futures.TimeoutError):
                begun.result(timeout=0.5)
        with pytest.raises(Fenced):
            begun.result(timeout=60)
    with journal.read() as session:
        assert moves.get(session, move).step is None


def test_a_claim_waits_for_a_step_that_has_begun(journal: Database) -> None:
    move = submit(journal, "web")
    epoch = fencing.claim(journal, move, "me")
    with futures.ThreadPoolExecutor() as pool:
        with journal.begin() as connection:
            fencing.update_claimed(connection, move, epoch, {"step": "copy"})
            taken = pool.submit(fencing.claim, journal, move, "other")
            with pytest.raises(futures.TimeoutError):
                taken.result(timeout=0.5)
        assert taken.result(timeout=60) == epoch + 1


def test_a_server_has_one_move_however_many_ask_at_once(journal: Database) -> None:
    def ask(_number: int) -> str | None:
        try:
            return submit(journal, "web")
        except Refused:
            return None

    with futures.ThreadPoolExecutor(CONDUCTORS) as pool:
        told = list(pool.map(ask, range(CONDUCTORS)))
    assert sum(move is not None for move in told) == 1


@pytest.mark.parametrize("server", ["postgresql", "mariadb"], indirect=True)
def test_a_process_that_stands_still_keeps_no_row(journal: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives up the transaction of a conductor that is stopped in it; awake, the conductor learns that."""
    move = submit(journal, "web")
    monkeypatch.setattr(database, "IDLE_TRANSACTION", 1)
    url = journal.engine.url.render_as_string(hide_password=False)
    with contextlib.closing(Database(url)) as stopped, stopped.engine.connect() as connection:
        connection.execute(sa.update(Move).where(Move.id == move).values(reason="of the one that slept"))
        with journal.write() as session:
            assert moves.get(session, move, lock=True).reason is None
        with pytest.raises(sa.exc.OperationalError) as lost:
            connection.execute(sa.select(Move.id))
        assert database.absence(lost.value)
        assert lost.value.connection_invalidated
    with journal.read() as session:
        assert moves.get(session, move).reason is None


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_the_kernel_asks_whether_a_silent_postgresql_is_still_there(journal: Database, server: tuple[str, Any]) -> None:
    """Nobody tells that the machine of the server, or the way to it, is gone: by default that takes hours."""
    name = journal.engine.url.database
    with running_proxy(server[1].socket) as proxy:
        through = Database(server[1].url_through(proxy.port, name))
        with contextlib.closing(through), through.engine.connect() as connection:
            number = os.dup(connection.connection.driver_connection.fileno())
            with socket.socket(fileno=number) as seen:
                asks = [seen.getsockopt(socket.IPPROTO_TCP, option) for option in ASKS]
    idle, every, times, unheard = asks
    assert idle + every * times <= database.ANSWERS_WITHIN
    assert unheard == database.ANSWERS_WITHIN * 1000


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_silent_mariadb_is_given_up(
    journal: Database, server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, as its driver does it."""
    name = journal.engine.url.database
    told = database._GIVES_UP["pymysql"]
    assert told["read_timeout"] == told["write_timeout"] == database.ANSWERS_WITHIN
    monkeypatch.setitem(told, "read_timeout", 1)
    with running_proxy(server[1].socket) as proxy:
        through = Database(server[1].url_through(proxy.port, name))
        with contextlib.closing(through), through.engine.connect() as connection:
            proxy.stall()
            with pytest.raises(sa.exc.OperationalError) as lost:
                connection.execute(sa.select(Move.id))
            proxy.heal()
    assert database.absence(lost.value)


def test_claims_of_one_moment_follow_one_another(journal: Database) -> None:
    """Every claim has an epoch of its own, only the last one stands, and no writer is refused but by the fence."""
    found = [submit(journal, server) for server in ("web", "db")]
    fencing.release(journal, found[0], fencing.claim(journal, found[0], "first"))

    def claim(number: int) -> list[tuple[int, str]]:
        taken = []
        for turn in range(CLAIMS):
            move = found[(number + turn) % 2]
            epoch = fencing.claim(journal, move, f"conductor-{number}", quarantine_after=10**6)
            taken.append((epoch, move))
        return taken

    with futures.ThreadPoolExecutor(CONDUCTORS) as pool:
        taken = sorted(itertools.chain.from_iterable(pool.map(claim, range(CONDUCTORS))))
    epochs = [epoch for epoch, _move in taken]
    assert len(set(epochs)) == CONDUCTORS * CLAIMS
    last = {move: epoch for epoch, move in taken}
    with journal.read() as session:
        assert dict(session.execute(sa.select(Claim.move_id, Claim.epoch)).all()) == last
    for epoch, move in taken:
        with journal.write() as session:
            if epoch == last[move]:
                fencing.check(session, move, epoch)
            else:
                with pytest.raises(Fenced):
                    fencing.check(session, move, epoch)


@pytest.mark.parametrize("server", ["postgresql", "mariadb"], indirect=True)
def test_a_settlement_takes_its_epoch_before_the_claim_as_a_conductor_does(journal: Database) -> None:
    """Each would wait for the other's row otherwise, until the server breaks one of them off."""
    move = parked(journal, "claim")
    waits = threading.Event()

    def see(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(f"UPDATE {Counter.__tablename__}"):
            waits.set()

    def settle() -> None:
        with journal.write() as session:
            settling.settle(session, move, "claim", done=False, who="ann", reason="it was looked at")

    with futures.ThreadPoolExecutor() as pool:
        with journal.begin() as conductor:
            epoch = fencing.next_epoch(conductor)
            sa.event.listen(journal.engine, "before_cursor_execute", see)
            settled = pool.submit(settle)
            assert waits.wait(60)
            conductor.execute(sa.select(Claim.epoch).where(Claim.move_id == move).with_for_update())
        settled.result(timeout=60)
    with journal.read() as session:
        assert session.scalar(sa.select(Claim.epoch).where(Claim.move_id == move)) == epoch + 1


def parked(journal: Database, step: str) -> str:
    """A move that rests at this step, and whose claim was given back."""
    move = submit(journal, "web")
    fencing.release(journal, move, fencing.claim(journal, move, "me"))
    with journal.write() as session:
        row = moves.get(session, move)
        moves.change_state(session, row, State.RUNNING)
        flow = row.flow_uuid
        run = MoveStep(move_id=move, flow_uuid=flow, flow=row.kind, step=step, direction="execute")
        run.started_at = database_time(session)
        session.add(run)
        moves.park(session, move, "internal", "it failed")
    return move


def test_past_moves_are_read_newest_first_with_the_runs_that_are_asked_for(journal: Database) -> None:
    for name in ("first", "second", "third"):
        with journal.write() as session:
            move = moves.submit(
                session, dataclasses.replace(REQUEST, server=name), registry.latest("migrate").reference()
            )
            move.storage, move.dest_host = "copy", "host2"
            began = database_time(session)
            for step in ("claim", "copy_disks"):
                ended = began + dt.timedelta(seconds=1.5)
                session.add(
                    MoveStep(
                        move_id=move.id,
                        flow_uuid=move.flow_uuid,
                        flow="migrate",
                        step=step,
                        direction="execute",
                        started_at=began,
                        ended_at=ended,
                        result={"bytes": len(name)},
                    )
                )
    wanted = past_moves.Wanted(kinds=["migrate"], hosts=("host1", "host2"), storage="copy", by_image=False)
    found = past_moves.newest(journal, wanted, steps=["copy_disks"], limit=2)
    runs = [move.only("copy_disks") for move in found]
    assert [(run.seconds, run.result) for run in runs if run is not None] == [(1.5, {"bytes": 5}), (1.5, {"bytes": 6})]
    assert [move.only("claim") for move in found] == [None, None]
    assert past_moves.newest(journal, dataclasses.replace(wanted, by_image=True), steps=[], limit=2) == []


def test_policies_get_the_names_that_say_what_they_do(empty: Database) -> None:
    journal_policies.check(empty)
