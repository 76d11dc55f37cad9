"""What the keeper asks about a guest's health: one question at a time, by whoever asks, and nothing left behind."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from support.rigs.plain_keeper import PlainKeeper

from droveway.clients.zookeeper import (
    Coordination,
    command_path,
    connect_embedded,
    embedded_store,
    epoch_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.admission import Limits
from droveway.engines.keeper.health import HealthChecks, Standard
from droveway.engines.keeper.keeper import read_snapshot
from droveway.engines.keeper.policies import EndWait
from droveway.flows.before import Before, as_json
from droveway.persistence.database import Database, database_time, sqlite_url
from droveway.persistence.journal import daemons, migrate, moves
from droveway.persistence.journal.tables import Claim, Move
from droveway.wire import codec, commands

EPOCH = 7
HEALTHY = commands.GuestHealth(running=True, starts=1, running_for=60.0, answers=True)


def record(*, stopped: bool) -> dict[str, Any]:
    guest = commands.GuestState(
        defined=True, running=True, starts=1, definition="", move="", disks=[], set_aside=False, connector={}
    )
    return as_json(
        Before(
            user_id="u",
            project_id="p",
            vm_state="stopped" if stopped else "active",
            power_state=1,
            availability_zone=None,
            node="host1",
            compute_id=1,
            image_ref="",
            boot_from_volume=False,
            launched_at=None,
            old_flavor={},
            new_flavor={},
            request_spec="",
            volumes=[],
            ports=[],
            guest=guest,
        )
    )


class Site:
    """A journal with a move that waits on host2, and a ZooKeeper."""

    def __init__(self, folder: Path) -> None:
        self.journal = Database(sqlite_url(folder / "journal.sqlite"))
        migrate.sync(self.journal)
        self.store = embedded_store()
        self.coordination: Coordination = connect_embedded(self.store)
        request = moves.Request(
            kind="migrate",
            server="s",
            server_name="web",
            cell="cell1",
            host="host1",
            old_flavor="f",
            new_flavor="f",
            policy="healthy",
        )
        with self.journal.write() as session:
            move = moves.submit(session, request, moves.FlowRef("migrate", 1, "d"))
            move.state, move.flow_uuid, move.dest_host, move.before = "verifying", None, "host2", record(stopped=False)
            session.add(Claim(move_id=move.id, epoch=EPOCH, owner="o", claimed_at=move.created_at))
            self.move = move.id

    def checks(self) -> HealthChecks:
        return HealthChecks(connect_embedded(self.store), self.journal, Standard())

    def collect(self, checks: HealthChecks) -> bool:
        seen = read_snapshot(self.journal, MoveBoard(self.coordination), self.coordination, Limits())
        return checks.collect([each.waiting for each in seen.moves if each.waiting], seen.now)

    def set(self, **columns: Any) -> None:
        with self.journal.write() as session:
            session.execute(sa.update(Move).values(**columns))

    def read(self) -> Move:
        with self.journal.read() as session:
            return moves.get(session, self.move)

    def nodes(self) -> list[str]:
        return [key for path in (command_path, result_path) for key in self.coordination.children(path("host2"))]

    def answer(self, epoch: int = EPOCH) -> None:
        (key,) = self.nodes()
        result = commands.Result(key=key, epoch=epoch, value=msgspec.to_builtins(HEALTHY))
        assert self.coordination.create(result_path("host2", key), codec.encode(result))

    def age(self, seconds: float) -> str:
        """Let the question that stands have been asked so long ago, and return its new key."""
        (key,) = self.nodes()
        node = self.coordination.get(command_path("host2", key))
        assert node is not None
        with self.journal.read() as session:
            now: dt.datetime = database_time(session)
        asked = int((now - dt.timedelta(seconds=seconds) - dt.datetime(1970, 1, 1)).total_seconds())  # noqa: DTZ001 - UTC
        self.coordination.delete(command_path("host2", key))
        old = f"{key.rpartition('.')[0]}.{asked}"
        assert self.coordination.create(command_path("host2", old), node[0])
        return old


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_any_keeper_takes_the_one_answer(site: Site) -> None:
    first, second = site.checks(), site.checks()
    first.check(site.move)
    second.check(site.move)
    (key,) = site.nodes()
    node = site.coordination.get(command_path("host2", key))
    assert node is not None
    command = codec.decode_command(node[0])
    assert (command.epoch, command.action, command.server) == (EPOCH, "check_guest", "s")
    assert codec.details_of(command) == commands.CheckGuest(probe_seconds=5.0)
    assert not site.collect(second)
    assert site.nodes() == [key]
    site.answer()
    # One that has just started goes on with what another one asked.
    assert site.collect(site.checks())
    assert site.nodes() == []
    assert site.read().health == "passed"


def test_an_answer_that_breaks_its_schema_is_a_failure_that_names_the_host(site: Site) -> None:
    checks = site.checks()
    checks.check(site.move)
    (key,) = site.nodes()
    result = commands.Result(key=key, epoch=EPOCH, value={"running": "yes"})
    assert site.coordination.create(result_path("host2", key), codec.encode(result))
    assert site.collect(checks)
    move = site.read()
    assert (site.nodes(), move.health) == ([], "failing")
    assert "host host2 gave no valid answer to check_guest" in (move.health_reason or "")


def test_an_answer_that_cannot_be_read_is_a_failure_that_names_the_host(site: Site) -> None:
    """Otherwise the move would wait past its deadline for a worker that answers so, and its row would not say why."""
    checks = site.checks()
    checks.check(site.move)
    (key,) = site.nodes()
    assert site.coordination.create(result_path("host2", key), b"no answer")
    assert site.collect(checks)
    move = site.read()
    assert (site.nodes(), move.health) == ([], "failing")
    assert "host host2 gave no valid answer to check_guest" in (move.health_reason or "")


def test_an_answer_under_an_older_claim_says_nothing(site: Site) -> None:
    checks = site.checks()
    checks.check(site.move)
    site.answer(EPOCH - 1)
    site.collect(checks)
    assert (site.nodes(), site.read().health) == ([], None)


def test_nobody_asks_once_the_move_was_claimed_anew(site: Site) -> None:
    assert site.coordination.create(epoch_path(site.move), str(EPOCH + 1).encode())
    site.checks().check(site.move)
    assert site.nodes() == []


@pytest.mark.parametrize("columns", [{"state": "confirming"}, {"state": "done"}, {"dest_host": "host3"}])
@pytest.mark.parametrize("answered", [False, True])
def test_a_question_that_nobody_needs_any_more_is_removed(site: Site, columns: dict[str, Any], answered: bool) -> None:
    asker = site.checks()
    asker.check(site.move)
    site.collect(asker)
    if answered:
        site.answer()
    site.set(**columns)
    site.collect(asker)
    assert (site.nodes(), site.read().health) == ([], None)


def test_what_a_killed_keeper_asked_is_found_on_every_host(site: Site) -> None:
    site.checks().check(site.move)
    site.set(state="done")
    site.collect(site.checks())
    assert site.nodes() == []


def test_no_answer_in_time_is_none(site: Site) -> None:
    checks = site.checks()
    checks.check(site.move)
    site.age(12)
    site.collect(checks)
    assert site.nodes() == []
    assert (site.read().health, site.read().health_reason) == (
        "failing",
        "host host2 did not say within 10 s how the guest is",
    )


@pytest.mark.parametrize("probe", [5.0, 20.0, 60.0])
@pytest.mark.parametrize("answered", [False, True])
def test_a_failing_answer_is_acted_on_however_long_an_agent_has_to_answer(
    site: Site, probe: float, answered: bool
) -> None:
    """A hung agent's answer comes when the agent's time is over, and a silent worker counts as failing after that."""
    standard = Standard(probe_timeout=probe)
    HealthChecks(site.coordination, site.journal, standard).check(site.move)
    key = site.age(probe + (1.0 if answered else 6.0))
    if answered:
        hung = msgspec.structs.replace(HEALTHY, answers=False, why="it hangs")
        result = commands.Result(key=key, epoch=EPOCH, value=msgspec.to_builtins(hung))
        assert site.coordination.create(result_path("host2", key), codec.encode(result))
    for host in ("host1", "host2"):
        assert site.coordination.create(worker_path(host), b"")
    deadline = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns hold it
    site.set(deadline=deadline)
    board = MoveBoard(site.coordination)
    keeper = PlainKeeper(
        site.coordination, site.journal, board, lambda kind: moves.FlowRef(kind, 1, "d"), standard=standard
    )
    assert keeper.round() == [EndWait(site.move, "revert", deadline)]


@pytest.mark.parametrize(
    ("knows", "uncheckable"), [(["check_health@1"], True), (["check_health@1", "check_guest@1"], False)]
)
def test_a_keeper_sees_which_worker_would_ask_in_another_way(site: Site, knows: list[str], uncheckable: bool) -> None:
    with site.journal.write() as session:
        told = daemons.DaemonStatus(name="host2", host="host2", pid=1, version="0.1", knows=tuple(knows))
        daemons.mirror(session, {"host2": told})
    seen = read_snapshot(site.journal, MoveBoard(site.coordination), site.coordination, Limits())
    why = {"host2": "its worker (0.1) does not know check_guest@1: upgrade it first"}
    assert dict(seen.uncheckable) == (why if uncheckable else {})
    if uncheckable:
        site.set(policy="deadline")
        assert not read_snapshot(site.journal, MoveBoard(site.coordination), site.coordination, Limits()).uncheckable


def test_a_stopped_server_needs_no_guest(site: Site) -> None:
    site.set(before=record(stopped=True))
    checks = site.checks()
    checks.check(site.move)
    (key,) = site.nodes()
    off = msgspec.structs.replace(HEALTHY, running=False, running_for=0.0, answers=None)
    result = commands.Result(key=key, epoch=EPOCH, value=msgspec.to_builtins(off))
    site.coordination.create(result_path("host2", key), codec.encode(result))
    site.collect(checks)
    assert (site.read().health, site.read().health_reason) == ("passed", "the server is stopped, as it was")
