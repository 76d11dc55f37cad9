"""Host commands from the conductor's side: keys, adoption, answers, withdrawal, hosts that are away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.engine_rig import (
    GRAPHS,
    REMOTE,
    Crash,
    FakeWorker,
    Finish,
    OnHost,
    Prepare,
    Rig,
    embedded_rig,
    until,
)
from support.rigs.valid_answers import VALID

from droveway.clients.zookeeper import command_path, epoch_path, progress_path, result_path, worker_path
from droveway.engines.conductor import fencing
from droveway.engines.conductor.host_channel import Fence, HostChannel, Unreachable
from droveway.errors import Fenced, StepError
from droveway.flows.graph import Graph
from droveway.persistence.journal import kinds, moves, requests
from droveway.wire import codec, commands


class StartOnHost(OnHost):
    """The point of no return, carried out by a worker."""


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


@pytest.fixture(name="worker")
def fixture_worker(rig: Rig) -> Iterator[Callable[[Callable[[commands.Command], dict[str, Any]]], FakeWorker]]:
    workers: list[FakeWorker] = []

    def make(act: Callable[[commands.Command], dict[str, Any]], host: str = "h1") -> FakeWorker:
        workers.append(FakeWorker(rig.session(), host, act))
        return workers[-1]

    yield make
    for worker in workers:
        worker.stop()


KEY = "f.s.execute.1"


def command(*, epoch: int = 1, action: str = "connect") -> commands.Command:
    """A command of nobody's flow to host h1."""
    return commands.Command(
        key=KEY,
        host="h1",
        move="m",
        server="s",
        epoch=epoch,
        step="s",
        action=action,
        direction="execute",
        details={},
        deadline=9.0,
    )


def leftovers(rig: Rig, host: str = "h1") -> list[str]:
    session = rig.session()
    return [name for folder in (command_path, result_path, progress_path) for name in session.children(folder(host))]


def test_a_command_is_answered_and_nothing_of_it_is_left(rig: Rig, worker: Any) -> None:
    hand = worker(lambda _command: {"nobody": "knows this"})
    move = rig.submit(REMOTE)
    flow = rig.move(move).flow_uuid
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    row = next(row for row in rig.history(move) if row.step == "on_host")
    assert row.result == VALID["set_aside"]
    assert row.host == "h1"
    assert [command.key for command in hand.seen] == [f"{flow}.on_host.execute.{row.seq}"]
    assert hand.seen[0].epoch == row.epoch
    assert leftovers(rig) == []


def test_an_answer_is_taken_before_anything_else_is_looked_at(rig: Rig) -> None:
    session = rig.session()

    class Answered(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return session.create(result_path("h1", KEY), codec.encode(commands.Result(key=KEY, epoch=1)))

    session.create("/guard", b"")
    channel, asked = HostChannel(session), command()
    answer = channel.post(asked, Fence("/guard", 0))
    wait = {"deadline": 9.0, "away": 9.0, "wakeup": Answered()}
    result = channel.wait(asked, answer, check=lambda: pytest.fail("the answer was there"), **wait)
    assert result.error is None


def test_a_command_takes_few_calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One to see that it has no answer, one to post it, one to read the answer, one to remove both."""
    session, host = rig.session(), rig.session()
    session.create("/guard", b"")
    session.create(worker_path("h1"), b"")
    for folder in (command_path("h1"), result_path("h1")):
        session.create(folder, b"")
    channel = HostChannel(session)
    session.shared_watch(worker_path("h1")).look()
    calls: list[str] = []

    def count(name: str) -> None:
        method = getattr(session.client, name)
        monkeypatch.setattr(
            session.client, name, lambda *args, **named: (calls.append(name), method(*args, **named))[1]
        )

    for name in ("exists", "get", "delete", "sync", "transaction"):
        count(name)

    class Answered(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            host.create(result_path("h1", KEY), codec.encode(commands.Result(key=KEY, epoch=1)))
            return super().wait(5)

    asked = command()
    answer = channel.post(asked, Fence("/guard", 0))
    channel.wait(asked, answer, check=lambda: None, deadline=9, away=9, wakeup=Answered())
    channel.remove_answered([("h1", KEY)])
    assert leftovers(rig) == []
    assert calls == ["exists", "transaction", "get", "transaction"]


def test_the_answer_after_a_refused_one_is_told_of_too(rig: Rig) -> None:
    """A watch that has fired is armed again before the next wait."""
    session, host = rig.session(), rig.session()
    session.create("/guard", b"")
    session.create(worker_path("h1"), b"")
    given = iter([b"no json", codec.encode(commands.Result(key=KEY, epoch=1))])
    heard = []

    class Answered(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            host.create(result_path("h1", KEY), next(given))
            heard.append(super().wait(5))
            return True

    channel = HostChannel(session)
    answer = channel.post(command(), Fence("/guard", 0))
    channel.wait(command(), answer, check=lambda: None, deadline=60, away=60, wakeup=Answered())
    assert heard == [True, True]


def test_a_worker_that_goes_while_it_is_waited_for_is_noticed(rig: Rig) -> None:
    """One watch tells all who wait for the host; the next wait knows without asking that it is away."""
    session = rig.session()
    session.create("/guard", b"")
    session.create(worker_path("h1"), b"")
    channel = HostChannel(session)
    session.shared_watch(worker_path("h1")).look()
    answer = channel.post(command(), Fence("/guard", 0))
    rig.session().delete(worker_path("h1"))
    with pytest.raises(Unreachable):
        channel.wait(command(), answer, check=lambda: None, deadline=9, away=0.05, wakeup=threading.Event())


def test_a_host_whose_answers_stay_unreadable_is_not_waited_for_until_the_deadline(rig: Rig) -> None:
    """Each is taken away, for its worker to answer again; after some of them the command has failed."""
    session = rig.session()
    path = result_path("h1", KEY)

    class Garbled(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return session.create(path, b"no json")

    session.create("/guard", b"")
    channel, asked = HostChannel(session), command()
    answer = channel.post(asked, Fence("/guard", 0))
    session.create(worker_path("h1"), b"")
    result = channel.wait(asked, answer, check=lambda: None, deadline=9e9, away=9e9, wakeup=Garbled())
    assert result.error is not None
    assert (result.error["code"], result.error["host"]) == ("bad-answer", "h1")


def test_a_host_that_is_away_fails_the_step_in_time(rig: Rig) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)
    rig.host().turn()
    after = rig.move(move)
    # The undo is a command of the same host, which cannot be reached either: it waits, and then a person has to look.
    assert (after.state, after.parked_from) == ("needs-operator", "undoing")
    first = next(row for row in rig.history(move) if row.step == "on_host")
    assert first.error is not None
    assert first.error["code"] == "host-unreachable"


def test_an_undo_withdraws_its_execute_first(rig: Rig, worker: Any) -> None:
    orders: list[str] = []

    def act(command: commands.Command) -> dict[str, Any]:
        orders.append(command.direction)
        names = hand.coordination.children(command_path("h1"))
        assert [name for name in names if f".{command.direction}." not in name] == []
        if command.direction == "execute":
            raise StepError("cannot", code="no-space", host="h1")
        return {}

    hand = worker(act)
    move = rig.submit(REMOTE)
    rig.post(move)
    rig.host().turn()
    assert (rig.move(move).state, rig.move(move).error_code) == ("failed", "no-space")
    assert orders == ["execute", "revert"]
    assert leftovers(rig) == []


def test_an_undo_that_failed_on_the_host_is_asked_again_under_a_new_key(rig: Rig, worker: Any) -> None:
    answers = iter([StepError("x"), StepError("busy", host="h1"), {}])

    def act(_command: commands.Command) -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, StepError):
            raise answer
        return answer

    hand = worker(act)
    move = rig.submit(REMOTE)
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "failed"
    keys = [command.key for command in hand.seen]
    assert len(set(keys)) == 3
    undo = [row for row in rig.history(move) if (row.step, row.direction) == ("on_host", "revert")]
    assert [row.error and row.error["message"] for row in undo] == ["busy", None]
    assert leftovers(rig) == []


def test_a_conductor_that_resumes_adopts_the_command_and_it_runs_once(rig: Rig, worker: Any) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)

    def crash(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("on_host", "during"):
            raise Crash

    rig.probe = crash
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    session = rig.session()
    [key] = session.children(command_path("h1"))
    posted = codec.decode_command(session.get(command_path("h1", key))[0])  # type: ignore[index]
    rig.probe = None
    second = rig.host()
    thread = threading.Thread(target=second.turn)
    thread.start()

    def stamped() -> int:
        return codec.decode_command(session.get(command_path("h1", key))[0]).epoch  # type: ignore[index]

    until(lambda: stamped() > posted.epoch)
    hand = worker(lambda _command: {})
    thread.join()
    assert rig.move(move).state == "verifying"
    assert [command.key for command in hand.seen] == [key]


def test_an_answer_that_came_while_nobody_waited_is_found(rig: Rig, worker: Any) -> None:
    hand = worker(lambda _command: {"n": 1})
    move = rig.submit(REMOTE)
    rig.post(move)
    session = rig.session()

    def crash(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("on_host", "during"):
            until(lambda: session.children(result_path("h1")))
            raise Crash

    rig.probe = crash
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    rig.probe = None
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert len(hand.seen) == 1
    assert leftovers(rig) == []


@pytest.mark.parametrize("ask", ["stop", "hold"])
def test_stop_and_hold_leave_a_waiting_step_at_once_and_the_host_goes_on(rig: Rig, worker: Any, ask: str) -> None:
    go = threading.Event()
    hand = worker(lambda _command: {"waited": go.wait(20)})
    move = rig.submit(REMOTE)
    rig.post(move)
    first = rig.host()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.extend(first.turn()))
    thread.start()
    until(lambda: hand.seen)
    if ask == "stop":
        first.conductor.stopping.request()
    else:
        with rig.journal.write() as session:
            requests.pause(session, moves.get(session, move, lock=True))
    thread.join(10)
    assert outcome == [ask == "hold"]
    assert rig.move(move).step == "on_host"
    go.set()
    if ask == "hold":
        with rig.journal.write() as session:
            requests.resume(session, moves.get(session, move, lock=True))
        rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert len(hand.seen) == 1


def test_a_cancel_withdraws_the_command_and_undoes(rig: Rig, worker: Any) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)
    host = rig.host()
    thread = threading.Thread(target=host.turn)
    session = rig.session()
    thread.start()
    until(lambda: session.children(command_path("h1")))
    with rig.journal.write() as writing:
        requests.cancel(writing, moves.get(writing, move, lock=True), frozenset({"start_guest"}))
    hand = worker(lambda _command: {})
    thread.join(20)
    assert rig.move(move).state == "cancelled"
    assert [command.direction for command in hand.seen][-1] == "revert"
    assert rig.world.held == set()
    assert leftovers(rig) == []


def test_a_stale_conductor_posts_adopts_and_takes_nothing(rig: Rig) -> None:
    session = rig.session()
    older = Fence(epoch_path("m"), fencing.mirror(session, "m", 3))
    newer = Fence(epoch_path("m"), fencing.mirror(session, "m", 5))
    old, new = command(epoch=3, action="set_aside"), command(epoch=5, action="set_aside")
    channel = HostChannel(session)
    with pytest.raises(Fenced):
        channel.post(old, older)
    assert session.children(command_path("h1")) == []
    channel.post(new, newer)
    with pytest.raises(Fenced):
        channel.post(old, older)
    assert codec.decode_command(session.get(command_path("h1", KEY))[0]).epoch == 5  # type: ignore[index]
    session.create(result_path("h1", KEY), codec.encode(commands.Result(key=KEY, epoch=5)))

    def check() -> None:
        raise Fenced("the journal has epoch 5")

    answer = session.watch_leaf(result_path("h1", KEY))
    with pytest.raises(Fenced):
        channel.wait(old, answer, deadline=1, away=1, check=check, wakeup=threading.Event())
    assert channel.wait(new, answer, deadline=1, away=1, check=lambda: None, wakeup=threading.Event()).epoch == 5
    assert leftovers(rig) == [KEY, KEY]
    channel.remove("h1", KEY)
    assert leftovers(rig) == []


START = Graph(kind_record=kinds.RESIZE, version=2, steps=(Prepare, StartOnHost), no_return=StartOnHost, after=(Finish,))


@pytest.mark.parametrize("ask", ["delete", "cancel"])
def test_at_the_point_of_no_return_nothing_is_cancelled_once_it_was_asked_for(
    rig: Rig, worker: Any, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    monkeypatch.setitem(GRAPHS, ("resize", 2), START)
    move = rig.submit(START)
    rig.post(move)
    go = threading.Event()
    hand = worker(lambda _command: {"waited": go.wait(20)})
    thread = threading.Thread(target=rig.host().turn)
    thread.start()
    until(lambda: hand.seen)
    with rig.journal.write() as session:
        row = moves.get(session, move, lock=True)
        row.delete_requested, row.cancel_requested = ask == "delete", ask == "cancel"
    thread.join(1.2)  # meanwhile it looks at the move twice
    assert thread.is_alive()
    go.set()
    thread.join(20)
    assert rig.move(move).state == "verifying"
    assert [command.direction for command in hand.seen] == ["execute"]


def test_at_the_point_of_no_return_a_host_that_is_away_proves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAPHS, ("resize", 2), START)
    move = rig.submit(START)
    rig.post(move)
    rig.host().turn()
    parked = rig.move(move)
    assert (parked.state, parked.parked_from, parked.error_code) == ("needs-operator", "running", "host-unreachable")
    assert rig.world.held == {"prepare"}


def test_a_resumed_start_that_was_asked_for_is_not_cancelled(
    rig: Rig, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAPHS, ("resize", 2), START)
    move = rig.submit(START)
    rig.post(move)

    def crash(_move: str, _step: str, _direction: str, phase: str) -> None:
        if phase == "during":
            raise Crash

    rig.probe = crash
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    rig.probe = None
    with rig.journal.write() as session:
        requests.delete(session, moves.get(session, move, lock=True))
    hand = worker(lambda _command: {})
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert len(hand.seen) == 1
