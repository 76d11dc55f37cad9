"""Conductor and keeper with threads of their own: from a journal row to a resting move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.rigs.engine_rig import CONFIRM, MIGRATE, REMOTE, Rig, embedded_rig, reference, until
from support.rigs.plain_keeper import PlainKeeper
from taskflow import exceptions as taskflow_errors

from droveway.clients.zookeeper import BOARD, Coordination, worker_path
from droveway.engines.conductor import fencing
from droveway.engines.conductor.conductor import Conductor
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.keeper import Keeper
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import cell_waits, moves, requests
from droveway.persistence.journal.tables import MoveFlow
from droveway.persistence.nova.base import ApiBase

LONG = 60.0
"""Seconds that nothing here takes when it is woken."""


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


@pytest.fixture(name="running")
def fixture_running(rig: Rig) -> Iterator[Any]:
    started: list[Any] = []

    def start(**options: Any) -> tuple[Conductor, Keeper]:
        conductor = rig.conductor(**options)
        conductor.start()
        session = rig.session()
        keeper = PlainKeeper(session, rig.journal, conductor.board, lambda _kind: reference(CONFIRM), every=0.05)
        keeper.start()
        started.extend((keeper, conductor))
        return conductor, keeper

    yield start
    for part in started:
        part.stop()


def rests(rig: Rig, move: str, state: str) -> None:
    until(lambda: rig.move(move).state == state)


def test_a_row_in_the_journal_is_enough(rig: Rig, running: Any) -> None:
    conductor, _keeper = running()
    ids = [rig.submit(server=f"s{number}") for number in range(6)]
    for move in ids:
        rests(rig, move, "verifying")
    until(lambda: conductor.busy() == 0)
    assert conductor.board.posted() == {}


def test_a_wiped_board_is_rebuilt(rig: Rig, running: Any) -> None:
    go = threading.Event()
    rig.world.hooks["x prepare"] = lambda _ctx: go.wait(20)
    conductor, keeper = running(slots=1, reserved=1)
    ids = [rig.submit(server=f"s{number}") for number in range(3)]
    until(lambda: len(conductor.board.posted()) == 3)
    session = rig.session()
    session.delete(BOARD)
    session.create(BOARD, b"")
    keeper.wake()
    go.set()
    for move in ids:
        rests(rig, move, "verifying")


def test_urgent_flows_do_not_queue_behind_copies(rig: Rig, running: Any) -> None:
    go = threading.Event()
    running(slots=1, reserved=1)
    done = rig.submit(server="done")
    rests(rig, done, "verifying")
    rig.world.hooks["x copy"] = lambda _ctx: go.wait(20)
    rig.submit(server="s1")
    rig.submit(server="s2")
    until(lambda: rig.world.log.count("x copy") == 2)
    with rig.journal.write() as session:
        requests.end_wait(session, moves.get(session, done, lock=True), reference(CONFIRM))
    rests(rig, done, "done")
    assert rig.world.log.count("x copy") == 2  # the other copy waits for its slot
    go.set()


def with_policy_auto(rig: Rig, session: Coordination) -> str:
    """Submit a move from h1 to h2, whose workers are up."""
    for host in ("h1", "h2"):
        assert session.create(worker_path(host), b"", ephemeral=True)
    move = rig.submit()
    with rig.journal.write() as writing:
        row = moves.get(writing, move)
        row.policy, row.dest_host = "auto", "h2"
    return move


def test_auto_confirms_at_once(rig: Rig, running: Any) -> None:
    move = with_policy_auto(rig, rig.session())
    running()
    rests(rig, move, "done")


def test_stop_parks_and_another_conductor_goes_on(rig: Rig) -> None:
    conductor = rig.conductor()
    conductor.start()
    move = rig.submit()
    rig.post(move)
    reached, go = threading.Event(), threading.Event()

    def wait(_ctx: object) -> None:
        reached.set()
        assert go.wait(20)

    rig.world.hooks["x claim"] = wait
    assert reached.wait(20)
    assert conductor.busy() == 1
    stopping = threading.Thread(target=conductor.stop)
    stopping.start()
    go.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert rig.move(move).state == "running"
    assert rig.move(move).step == "copy"
    rig.world.hooks.clear()
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.log.count("x claim") == 1


def test_a_held_move_leaves_the_board_and_comes_back(rig: Rig, running: Any) -> None:
    conductor, _keeper = running(slots=1, reserved=1)
    go = threading.Event()
    rig.world.hooks["x prepare"] = lambda _ctx: go.wait(20)
    ids = {str(rig.move(move).flow_uuid): move for move in (rig.submit(server="s1"), rig.submit(server="s2"))}
    until(lambda: sorted(conductor.board.posted().values()) == [False, True])
    until(lambda: "x prepare" in rig.world.log)
    first, second = sorted(ids.values(), key=lambda move: rig.move(move).state, reverse=True)
    flow = str(rig.move(second).flow_uuid)
    with rig.journal.write() as session:
        requests.pause(session, moves.get(session, second, lock=True))
    until(lambda: flow not in conductor.board.posted())
    assert rig.move(first).state == "running"
    go.set()
    rests(rig, first, "verifying")
    assert rig.move(second).state == "queued"
    with rig.journal.write() as session:
        requests.resume(session, moves.get(session, second, lock=True))
    rests(rig, second, "verifying")


def test_only_what_leaves_the_board_is_news_to_the_keeper(rig: Rig) -> None:
    host, session = rig.host(), rig.session()
    keeper = PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM))
    rig.submit()
    assert len(keeper.round()) == 1
    assert not keeper._is_news()
    (job,) = host.jobs()
    host.board.claim(job, "conductor")
    assert not keeper._is_news()
    host.board.abandon(job, "conductor")
    assert keeper._is_news()
    assert not keeper._is_news()
    host.board.withdraw(job.uuid)
    assert keeper._is_news()


def test_a_wiped_board_is_news_that_needs_no_wait(rig: Rig) -> None:
    session, other = rig.session(), rig.session()
    keeper = PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM), every=LONG)
    move = rig.submit()
    keeper.start()
    until(lambda: MoveBoard(other).posted())
    other.delete(BOARD)
    until(lambda: rig.move(move).flow_uuid in MoveBoard(other).posted())
    keeper.stop()


def test_a_flow_that_somebody_files_is_noticed_between_two_rounds(rig: Rig) -> None:
    session = rig.session()
    board = MoveBoard(session)
    keeper = PlainKeeper(session, rig.journal, board, lambda _kind: reference(CONFIRM), every=LONG, probe=0.01)
    keeper.start()
    for number in range(3):
        move = rig.submit(server=f"s{number}")
        until(lambda move=move: rig.move(move).flow_uuid in board.posted())
    keeper.stop()


def test_what_the_keeper_files_itself_it_offers_at_once(rig: Rig) -> None:
    session = rig.session()
    move = with_policy_auto(rig, session)
    rig.post(move)
    rig.host().turn()
    rests(rig, move, "verifying")
    keeper = PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM), every=LONG)
    keeper.start()
    (offered,) = until(MoveBoard(session).posted)
    assert rig.move(move).flow_uuid == offered
    keeper.stop()


def test_the_delete_that_the_keeper_files_it_offers_at_once(rig: Rig) -> None:
    session, move = rig.session(), rig.submit()
    with rig.journal.write() as writing:
        deleted = moves.get(writing, move)
        deleted.state, deleted.flow_uuid = "deleting", None
    keeper = PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM), every=LONG)
    keeper.start()
    (offered,) = until(MoveBoard(session).posted)
    assert rig.move(move).flow_uuid == offered
    keeper.stop()


def test_a_round_of_the_keeper_is_one_short_read_of_the_journal(rig: Rig) -> None:
    session = rig.session()
    keeper = PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM))
    for number in range(3):
        rig.submit(server=f"s{number}")
    asked: list[str] = []
    event.listen(rig.journal.engine, "begin", lambda _connection: asked.append("begin"))
    event.listen(rig.journal.engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: asked.append(text))
    assert len(keeper.round()) == 3
    assert (asked.count("begin"), len(asked)) == (1, 7)


def test_who_waits_for_a_conductor_is_woken_when_its_last_flow_was_given_back(rig: Rig, running: Any) -> None:
    conductor, _keeper = running()
    move = rig.submit()
    began, rests = time.monotonic(), 0
    while conductor.busy() or rig.move(move).state != "verifying":
        conductor.rest(LONG)
        rests += 1
    assert time.monotonic() - began < LONG
    assert rests <= 1


@pytest.mark.parametrize("change", ["digest", "version"])
def test_a_flow_of_another_release_is_left_alone(rig: Rig, change: str) -> None:
    move = rig.submit()
    with rig.journal.write() as session:
        flow = session.get(MoveFlow, rig.move(move).flow_uuid)
        assert flow is not None
        setattr(flow, change, {"digest": "another", "version": 99}[change])
    rig.post(move)
    host = rig.host()
    [job] = host.jobs()
    with pytest.raises(taskflow_errors.UnclaimableJob):
        host.board.claim(job, "me")
    assert rig.move(move).state == "queued"
    assert host.coordination.get(job.lock_path) is None


def test_a_job_is_consumed_once_zookeeper_answers_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rig.submit()
    rig.post(move)
    host = rig.host()
    consume, failures = MoveBoard.consume, iter(range(2))

    def flaky(self: MoveBoard, job: Any, who: str) -> None:
        if next(failures, None) is not None:
            raise taskflow_errors.JobFailure("no answer")
        consume(self, job, who)

    monkeypatch.setattr(MoveBoard, "consume", flaky)
    assert host.turn() == [True]
    assert host.jobs() == []


def test_a_job_that_is_taken_away_meanwhile_leaves_no_claim(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the keeper takes one away whose flow has ended, at the very moment in which a conductor claims it."""
    move = rig.submit()
    rig.post(move)
    host = rig.host()
    consume = MoveBoard.consume

    def late(self: MoveBoard, job: Any, who: str) -> None:
        assert host.coordination.delete(job.path)
        consume(self, job, who)

    monkeypatch.setattr(MoveBoard, "consume", late)
    assert host.turn() == [True]
    assert host.jobs() == []
    assert host.coordination.children(BOARD) == []


def test_an_end_that_nobody_heard_of_is_cleared_up_after(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow's end was committed, and the journal went away before it said so: the claim tells what is to be done."""
    move = rig.submit()
    rig.post(move)
    store = FlowBackend.update_flow_details

    def unheard(self: FlowBackend, flow_detail: Any, ignore_missing: bool = False) -> Any:
        store(self, flow_detail, ignore_missing)
        if self.ended:
            self.ended = False
            raise taskflow_errors.StorageFailure("the journal went away")
        return flow_detail

    with monkeypatch.context() as patched:
        patched.setattr(FlowBackend, "update_flow_details", unheard)
        assert rig.host().turn() == [False]
    assert rig.move(move).state == "verifying"
    assert rig.cells.fences != {}
    with rig.journal.read() as session:
        assert [left.id for left, _flow in moves.unreleased_flows(session)] == [move]
    assert rig.host().turn() == [True]
    assert rig.cells.fences == {}
    with rig.journal.read() as session:
        assert moves.unreleased_flows(session) == []


def test_a_queued_move_that_is_cancelled_leaves_nothing_of_a_dead_conductor(rig: Rig) -> None:
    """It had claimed the move and raised its fences, and died before it began."""
    move = rig.submit()
    rig.post(move)
    first = rig.host()
    [job] = first.jobs()
    first.board.claim(job, first.conductor.name)
    rig.cells.raise_fence("c1", "s1", fencing.claim(rig.journal, move, "dead"))
    first.die()
    with rig.journal.write() as session:
        requests.cancel(session, moves.get(session, move), frozenset())
    with rig.journal.read() as session:
        assert [left.id for left, _flow in moves.unreleased_flows(session)] == [move]
    assert rig.host().turn() == [True]
    assert rig.cells.fences == {}
    with rig.journal.read() as session:
        assert moves.unreleased_flows(session) == []
        assert [flow.outcome for flow in session.query(MoveFlow)] == ["undone"]


def test_the_board_says_nothing_that_the_journal_does_not_know(rig: Rig) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)
    [job] = rig.host().jobs()
    assert set(job.details) == {"flow", "move", "kind", "version", "digest", "urgent", "filed"}
    assert job.posting.digest == REMOTE.digest() != MIGRATE.digest()


def test_a_fence_that_is_raised_too_late_is_taken_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conductor that slept between its claim and its fence: the flow may have ended elsewhere by then."""
    move = rig.submit()
    rig.post(move)
    raise_fence = rig.cells.raise_fence

    def late(cell: str, server: str, epoch: int) -> None:
        fencing.claim(rig.journal, move, "another")
        raise_fence(cell, server, epoch)

    monkeypatch.setattr(rig.cells, "raise_fence", late)
    rig.host().turn()
    assert rig.move(move).state == "running"
    assert rig.cells.fences == {}


def test_a_move_that_waited_for_the_api_database_goes_on_once_that_answers(rig: Rig, tmp_path: Path) -> None:
    """Ask it for a table of its own: one that only cells have is missing there for ever."""
    api = Database(sqlite_url(tmp_path / "api.sqlite"))
    ApiBase.metadata.create_all(api.engine)
    move = rig.submit(MIGRATE)
    with rig.journal.write() as session:
        row = moves.get(session, move, lock=True)
        row.state = "running"
        cell_waits.note_api(session, row)
    assert rig.move(move).waits_for.startswith("the API database, which does not answer (since ")
    rig.post(move)
    assert rig.host(api=api).turn() == [True]
    assert (rig.move(move).state, rig.move(move).waits_for) == ("verifying", None)
    api.close()


def test_a_move_says_that_it_waits_for_its_cells_database_until_that_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper gives its room away by that word."""

    def away(_cell: str, _server: str, _epoch: int) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception("connection refused"))

    move = rig.submit(MIGRATE)
    rig.post(move)
    with monkeypatch.context() as outage:
        outage.setattr(rig.cells, "raise_fence", away)
        assert rig.host().turn() == [False]
    waiting = rig.move(move)
    assert waiting.waits_since is not None
    since = f"{waiting.waits_since:%Y-%m-%d %H:%M:%S}Z"
    what = f"the database of cell c1, which does not answer (since {since})"
    assert (waiting.state, waiting.waits_for) == ("running", what)
    assert rig.host().turn() == [True]
    assert (rig.move(move).state, rig.move(move).waits_for) == ("verifying", None)


def test_a_move_whose_cell_refuses_to_be_written_rests_until_it_is_retried(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flow would be refused each time that a conductor took it up."""

    def refuse(_cell: str, _server: str, _epoch: int) -> None:
        raise sa.exc.ProgrammingError("SELECT 1", {}, Exception("permission denied"))

    move = rig.submit(MIGRATE)
    rig.post(move)
    with monkeypatch.context() as refusal:
        refusal.setattr(rig.cells, "raise_fence", refuse)
        assert rig.host().turn() == [True]
    parked = rig.move(move)
    assert (parked.state, parked.error_code) == ("needs-operator", "flow-stopped")
    assert str(parked.error).startswith("the flow cannot begin: the database refused a statement (ProgrammingError")
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move))
    rig.post(move)
    assert rig.host().turn() == [True]
    assert rig.move(move).state == "verifying"
