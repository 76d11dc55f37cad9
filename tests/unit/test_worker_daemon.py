"""The worker daemon: at most one effect a key, fenced, one command a server, nothing lost by a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.rigs.worker_rig import MIB, MOVE, PROBE, SERVER, Cloud, Killed, cloud

from droveway import log_context
from droveway.clients.zookeeper import Coordination, command_path, epoch_path, progress_path, result_path, worker_path
from droveway.errors import CoordinationLost, Fenced, Refused, StepError
from droveway.wire import codec, commands, queries
from droveway.workers import daemon
from droveway.workers.actions import dispatch
from droveway.workers.context import Context
from droveway.workers.daemon import JOURNAL, Worker
from droveway.workers.run import Run, answer, parse_key

DEADLINE = 20.0
FIND = commands.FindStorage(probe=PROBE)
STOP = commands.StopGuest(grace=5, restart=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(daemon, "POLL_EVERY", 0.2)
    with cloud(tmp_path) as made:
        made.make_server()
        yield made


@pytest.fixture
def started(site: Cloud) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(name: str = "alpha", **parts: Any) -> Worker:
        worker = site.worker(name, **parts)
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop()
        worker.coordination.close()


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until the condition gives something true, and return it."""
    ends = time.monotonic() + DEADLINE
    wakeup = threading.Event()
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        wakeup.wait(0.005)
    raise AssertionError("it never came true")


def post(site: Cloud, command: commands.Command) -> commands.Command:
    path = command_path(command.host, command.key)
    if not site.coordination.create(path, codec.encode(command)):
        site.coordination.put(path, codec.encode(command))
    return command


def result(site: Cloud, command: commands.Command) -> commands.Result:
    node = eventually(lambda: site.coordination.get(result_path(command.host, command.key)))
    return codec.decode_result(node[0])


class Stall:
    """Holds the action at one effect until it is let go."""

    def __init__(self, effect: str, direction: str = "execute") -> None:
        self.where = (direction, effect)
        self.reached, self.go = threading.Event(), threading.Event()
        self.seen: list[tuple[str, str]] = []

    def __call__(self, step: str, direction: str, phase: str, effect: str) -> None:
        self.seen.append((direction, effect))
        if (direction, effect) == self.where:
            self.reached.set()
            assert self.go.wait(DEADLINE)


def test_a_command_is_carried_out_and_answered(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    found = result(site, post(site, site.command("alpha", "describe_guest")))
    assert found.error is None
    assert msgspec.convert(found.value, type=commands.GuestState).defined


def test_the_registration_says_what_the_worker_can(site: Cloud, started: Callable[..., Worker]) -> None:
    worker = started()
    node = eventually(lambda: site.coordination.get(worker_path("alpha")))
    record = msgspec.json.decode(node[0], type=commands.Registration)
    assert (record.host, record.hypervisor, record.address) == ("alpha", "sandbox", worker.endpoint.address)
    assert record.actions == sorted(f"{name}@1" for name in (*commands.ACTIONS, *queries.QUERIES))
    worker.stop()
    assert site.coordination.get(worker_path("alpha")) is None


def test_a_new_session_replaces_the_registration_of_a_killed_one(site: Cloud, started: Callable[..., Worker]) -> None:
    ghost = site.worker("alpha")
    ghost.coordination.create(worker_path("alpha"), b"", ephemeral=True)
    worker = started()
    eventually(lambda: site.coordination.owner(worker_path("alpha")) == worker.coordination.session)
    assert ghost.coordination.session != worker.coordination.session
    ghost.coordination.close()
    assert eventually(lambda: site.coordination.get(worker_path("alpha")))


def test_a_registration_that_went_is_made_anew_at_once(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "POLL_EVERY", 10 * DEADLINE)
    started()
    for _ in range(2):
        eventually(lambda: site.coordination.get(worker_path("alpha")))
        site.coordination.delete(worker_path("alpha"))
    assert eventually(lambda: site.coordination.get(worker_path("alpha")))


def test_a_finished_key_is_answered_from_the_journal(site: Cloud, started: Callable[..., Worker]) -> None:
    effects: list[str] = []
    worker = started(probe=lambda *facts: effects.append(facts[3]))
    command = post(site, site.command("alpha", "set_aside"))
    first = result(site, command)
    once = list(effects)
    site.coordination.delete(result_path("alpha", command.key))
    assert result(site, command) == first
    worker.stop()
    site.coordination.delete(result_path("alpha", command.key))
    started(probe=lambda *facts: effects.append(facts[3]))
    assert result(site, command) == first
    assert effects == once


def test_a_command_is_read_and_answered_once(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not anew at each event of its host's folder, of which the commands of other servers make many."""
    monkeypatch.setattr(daemon, "POLL_EVERY", 10 * DEADLINE)
    stall = Stall("rename")
    worker = started(probe=stall)
    read, answered = [], []
    command_of, make = worker._command, worker.coordination.create_guarded

    def reading(key: str) -> Any:
        read.append(key)
        return command_of(key)

    def answering(path: str, *args: Any, **named: Any) -> bool:
        answered.append(path)
        return make(path, *args, **named)

    def wake() -> None:
        for _ in range(3):
            worker._wakeup.set()
            eventually(lambda: not worker._wakeup.is_set())

    monkeypatch.setattr(worker, "_command", reading)
    monkeypatch.setattr(worker.coordination, "create_guarded", answering)
    command = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    wake()
    stall.go.set()
    result(site, command)
    wake()
    assert read == [command.key]
    assert answered == [result_path("alpha", command.key)]


def test_a_failure_is_an_answer_too_and_stays(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    command = post(site, site.command("alpha", "check_set_aside"))
    error = result(site, command).error
    assert error is not None
    assert (error["code"], error["host"], error["fault"]) == ("missing", "alpha", "move")
    assert result(site, post(site, site.command("alpha", "set_aside"))).error is None
    site.coordination.delete(result_path("alpha", command.key))
    assert result(site, command).error == error


def test_a_begun_command_is_entered_again_by_the_next_worker(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = Stall("rename")
    worker = started(probe=stall)
    command = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    ask = Run.stop

    def stop(run: Run) -> None:
        ask(run)
        stall.go.set()

    # Released once it was asked to stop, and not before: else it might end first.
    monkeypatch.setattr(Run, "stop", stop)
    worker.stop()
    assert site.coordination.get(result_path("alpha", command.key)) is None
    assert not site.hosts["alpha"].directories.exists(SERVER) or stall.seen[-1] == ("execute", "rename")
    started()
    assert result(site, command).error is None
    assert site.hosts["alpha"].directories.exists(f"{SERVER}_resize")


def test_what_nobody_foresaw_is_logged_once_with_its_move_and_the_command_is_entered_again(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, met = Run._result, iter([LookupError("unforeseen")])

    def broken_once(self: Run) -> bytes:
        for error in met:
            raise error
        return whole(self)

    monkeypatch.setattr(Run, "_result", broken_once)
    caplog.handler.setFormatter(log_context.LabFormatter())
    started()
    command = post(site, site.command("alpha", "describe_guest"))
    assert result(site, command).error is None
    assert caplog.text.count("LookupError: unforeseen") == 1
    ids = f"[req-{command.key.partition('.')[0]} {command.move} {command.server}]"
    assert f"{ids} LookupError: unforeseen" in caplog.text


def test_bad_details_are_refused_before_anything_is_journaled(site: Cloud, started: Callable[..., Worker]) -> None:
    worker = started()
    command = msgspec.structs.replace(site.command("alpha", "stop_guest", STOP), details={"grace": "long"})
    error = result(site, post(site, command)).error
    assert error is not None
    assert error["code"] == "refused"
    assert "break their schema" in error["message"]
    assert worker._journal.begun() == []
    assert worker._journal.result(command.key) is None


def test_what_is_no_command_is_ignored_and_blocks_nothing(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    site.coordination.create(command_path("alpha", "0rubbish"), b"{")
    misplaced = site.command("beta", "describe_guest")
    site.coordination.create(command_path("alpha", misplaced.key), codec.encode(misplaced))
    assert result(site, post(site, site.command("alpha", "describe_guest"))).error is None
    assert site.coordination.get(result_path("alpha", misplaced.key)) is None


def test_a_stale_command_never_runs_until_it_is_adopted(site: Cloud, started: Callable[..., Worker]) -> None:
    effects: list[str] = []
    started(probe=lambda *facts: effects.append(facts[3]))
    site.set_epoch(2)
    stale = post(site, site.command("alpha", "set_aside", epoch=1))
    site.set_epoch(2, "another")
    fresh = msgspec.structs.replace(site.command("alpha", "describe_guest", epoch=2, move="another"), server="another")
    assert result(site, post(site, fresh)).error is None
    assert effects == []
    assert site.coordination.get(result_path("alpha", stale.key)) is None
    post(site, msgspec.structs.replace(stale, epoch=2))
    assert result(site, stale).epoch == 2
    assert site.hosts["alpha"].directories.exists(f"{SERVER}_resize")


def test_stale_commands_keep_no_other_of_their_server_from_its_turn(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where each takes longer to be refused than the others rest."""
    monkeypatch.setattr(daemon, "POLL_EVERY", 0.0)
    site.set_epoch(2)
    for attempt in range(1, 4):
        post(site, site.command("alpha", "set_aside", epoch=1, attempt=attempt))
    fresh = post(site, site.command("alpha", "describe_guest", epoch=2, attempt=5))
    started()
    assert result(site, fresh).error is None


def test_a_step_below_the_highest_that_was_done_is_refused(site: Cloud, started: Callable[..., Worker]) -> None:
    """Whoever asks has lost what came between; a debt goes by the number of the step that left it."""
    started()
    assert result(site, post(site, site.command("alpha", "set_aside", attempt=12))).error is None
    error = result(site, post(site, site.command("alpha", "set_aside", direction="revert", attempt=11))).error
    assert error is not None
    assert (error["code"], "step number 12 of move" in error["message"]) == ("restored", True)
    assert error["message"].endswith("droveway db adopt")
    assert site.hosts["alpha"].directories.exists(f"{SERVER}_resize")
    debt = site.command("alpha", "set_aside", direction="revert", attempt=11)
    debt = msgspec.structs.replace(debt, key=f"{debt.key}.debt-1")
    assert result(site, post(site, debt)).error is None
    assert not site.hosts["alpha"].directories.exists(f"{SERVER}_resize")


def test_an_epoch_below_the_highest_seen_is_refused(site: Cloud, started: Callable[..., Worker]) -> None:
    worker = started()
    site.set_epoch(5)
    assert result(site, post(site, site.command("alpha", "describe_guest", epoch=5))).error is None
    site.set_epoch(4)  # a restored journal knows no better
    stale = post(site, site.command("alpha", "set_aside", epoch=4))
    site.set_epoch(1, "another")
    other = site.command("alpha", "describe_guest", move="another")
    assert result(site, post(site, other)).error is None
    assert site.coordination.get(result_path("alpha", stale.key)) is None
    assert not worker._journal.raise_epoch(MOVE, 4)


def test_an_action_under_way_follows_the_conductor_that_adopts_it(site: Cloud, started: Callable[..., Worker]) -> None:
    stall = Stall("rename")
    started(probe=stall)
    command = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    site.set_epoch(2)
    post(site, msgspec.structs.replace(command, epoch=2))
    stall.go.set()
    assert result(site, command).epoch == 2
    assert stall.seen.count(("execute", "rename")) == 1


def test_an_action_under_way_stops_when_its_claim_is_lost(site: Cloud, started: Callable[..., Worker]) -> None:
    stall = Stall("rename")
    started(probe=stall)
    command = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    site.set_epoch(2)
    stall.go.set()
    other = site.command("alpha", "describe_guest", epoch=2)
    assert result(site, post(site, other)).error is None
    assert site.hosts["alpha"].directories.exists(SERVER)
    assert site.coordination.get(result_path("alpha", command.key)) is None
    post(site, msgspec.structs.replace(command, epoch=2))
    assert result(site, command).error is None


def test_a_command_taken_back_before_it_began_never_runs(site: Cloud, started: Callable[..., Worker]) -> None:
    stall = Stall("stop")
    started(probe=stall)
    running = post(site, site.command("alpha", "stop_guest", STOP))
    assert stall.reached.wait(DEADLINE)
    waiting = post(site, site.command("alpha", "set_aside"))
    site.coordination.delete(command_path("alpha", waiting.key))
    stall.go.set()
    assert result(site, running).error is None
    assert result(site, post(site, site.command("alpha", "describe_guest"))).error is None
    assert site.hosts["alpha"].directories.exists(SERVER)
    assert ("execute", "manifest") not in stall.seen


def test_one_server_has_one_command_at_a_time_and_another_server_does_not_wait(
    site: Cloud, started: Callable[..., Worker]
) -> None:
    stall = Stall("stop")
    started(probe=stall)
    running = post(site, site.command("alpha", "stop_guest", STOP))
    assert stall.reached.wait(DEADLINE)
    waiting = post(site, site.command("alpha", "describe_guest"))
    site.set_epoch(1, "another")
    other = msgspec.structs.replace(site.command("alpha", "describe_guest", move="another"), server="another")
    assert result(site, post(site, other)).error is None
    assert site.coordination.get(result_path("alpha", waiting.key)) is None
    stall.go.set()
    assert result(site, running).error is None
    assert result(site, waiting).error is None


def test_a_question_waits_for_no_other_command(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "MOST_AT_ONCE", 1)
    stall = Stall("rename")
    started(probe=stall)
    post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    question = post(site, site.command("alpha", "check_guest", commands.CheckGuest(probe_seconds=0)))
    assert result(site, question).error is None
    stall.go.set()


def test_an_undo_cancels_and_joins_its_execute(site: Cloud, started: Callable[..., Worker]) -> None:
    stall = Stall("manifest")
    worker = started(probe=stall)
    execute = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    site.coordination.delete(command_path("alpha", execute.key))  # as the conductor withdraws it
    undo = post(site, site.command("alpha", "set_aside", direction="revert"))
    eventually(worker._runs[SERVER]._context._cancelled.is_set)
    assert site.coordination.get(result_path("alpha", undo.key)) is None
    stall.go.set()
    assert result(site, undo).error is None
    assert stall.seen[1][0] == "revert"
    assert site.hosts["alpha"].directories.manifest(SERVER) is None
    known = worker._journal.result(execute.key)
    assert known is not None
    assert (codec.decode_result(known).error or {})["code"] == "cancelled"
    post(site, execute)
    assert (result(site, execute).error or {})["code"] == "cancelled"


def test_what_was_taken_back_goes_no_further_though_its_epoch_stands(
    site: Cloud, started: Callable[..., Worker]
) -> None:
    """The move went on without this host, under the same claim, and its undo is a debt that is asked for later."""
    stall = Stall("rename")
    worker = started(probe=stall)
    execute = post(site, site.command("alpha", "set_aside"))
    assert stall.reached.wait(DEADLINE)
    site.coordination.delete(command_path("alpha", execute.key))
    stall.go.set()
    eventually(lambda: worker._runs == {})
    assert not site.hosts["alpha"].directories.exists(f"{SERVER}_resize")
    assert worker._journal.result(execute.key) is None


@pytest.mark.parametrize("stamped", [False, True])
def test_an_answer_goes_only_where_its_command_stands(
    site: Cloud, monkeypatch: pytest.MonkeyPatch, stamped: bool
) -> None:
    """Taken back, or stamped by the next conductor, between the worker's look at it and its answer."""
    command = post(site, site.command("alpha", "describe_guest"))
    path = command_path("alpha", command.key)
    get = Coordination.get

    def meanwhile(self: Coordination, asked: str, *, sync: bool = False) -> tuple[bytes, int] | None:
        found = get(self, asked, sync=sync)
        if asked == path:
            monkeypatch.undo()
            assert site.coordination.put(path, b"{}") if stamped else site.coordination.delete(path)
        return found

    monkeypatch.setattr(Coordination, "get", meanwhile)
    answer(site.coordination, "alpha", command.key, b"done")
    assert site.coordination.children(result_path("alpha")) == ([command.key] if stamped else [])


def test_an_execute_that_comes_with_its_undo_never_runs(site: Cloud, started: Callable[..., Worker]) -> None:
    execute = post(site, site.command("alpha", "set_aside"))
    undo = post(site, site.command("alpha", "set_aside", direction="revert"))
    effects: list[str] = []
    started(probe=lambda *facts: effects.append(f"{facts[1]} {facts[3]}"))
    assert result(site, undo).error is None
    assert (result(site, execute).error or {})["code"] == "cancelled"
    assert not [effect for effect in effects if effect.startswith("execute")]


def test_the_next_attempt_of_a_step_runs_after_an_undo(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    for direction in ("execute", "revert", "execute"):
        done = result(site, post(site, site.command("alpha", "set_aside", direction=direction)))
        assert done.error is None
    assert site.hosts["alpha"].directories.exists(f"{SERVER}_resize")


def test_a_guest_is_not_started_without_a_live_session(site: Cloud) -> None:
    command = site.command("alpha", "start_guest", commands.StartGuest(power_on=True))
    context = Context(site.hosts["alpha"], command)
    site.coordination.client.expired = True
    try:
        with pytest.raises(CoordinationLost):
            dispatch.run(context, codec.details_of(command))
    finally:
        site.coordination.client.expired = False
    guest = site.hosts["alpha"].hypervisor.guest(SERVER)
    assert guest is not None
    assert guest.starts == 0


def test_a_killed_run_leaves_its_command_begun(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda facts: died.set())

    def kill(step: str, direction: str, phase: str, effect: str) -> None:
        if not died.is_set():
            raise Killed

    worker = started(probe=kill)
    command = post(site, site.command("alpha", "set_aside"))
    assert died.wait(DEADLINE)
    assert worker._journal.result(command.key) is None
    assert result(site, command).error is None


def test_progress_is_told_and_removed(site: Cloud) -> None:
    told: list[tuple[int, int]] = []
    command = site.command("alpha", "describe_guest")
    context = Context(
        site.hosts["alpha"], command, report=lambda progress: told.append((progress.done, progress.total))
    )
    for done in range(1000):
        context.progress(done, 1000)
    assert told[0] == (0, 1000)
    assert len(told) <= 2


def test_progress_of_a_copy_reaches_the_node_and_goes_with_the_answer(
    site: Cloud, started: Callable[..., Worker]
) -> None:
    seen: list[commands.Progress] = []

    def look(step: str, direction: str, phase: str, effect: str) -> None:
        if effect == "verify":
            for key in site.coordination.children(progress_path("beta")):
                node = site.coordination.get(progress_path("beta", key))
                assert node is not None
                seen.append(msgspec.json.decode(node[0], type=commands.Progress))

    started("alpha")
    started("beta", probe=look)
    aside = site.command("alpha", "set_aside")
    for command in (aside, site.command("alpha", "offer_disks", commands.OfferDisks(peer="beta"))):
        assert result(site, post(site, command)).error is None
    address = site.hosts["alpha"].transfer_address
    details = commands.CopyDisks(variant="pull", source="alpha", address=address, probe=PROBE)
    copy = post(site, site.command("beta", "copy_disks", details))
    found = result(site, copy)
    assert found.error is None
    (progress,) = seen
    assert (progress.key, progress.done > 0, progress.total < MIB) == (copy.key, True, True)
    eventually(lambda: not site.coordination.children(progress_path("beta")))


@pytest.mark.parametrize(("age", "left"), [(3600.0, 0), (-3600.0, 1)], ids=["purged", "wiped"])
def test_a_move_whose_node_is_gone_is_forgotten_unless_zookeeper_was_wiped(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, age: float, left: int
) -> None:
    """e55: what is younger than ZooKeeper's own folder may be missing there, and is not over for that."""
    worker = started()
    command = post(site, site.command("alpha", "set_aside"))
    result(site, command)
    eventually(lambda: not worker._runs)
    key = command.key
    monkeypatch.setattr(Coordination, "born", lambda _self, _path: time.time() - age)
    worker.forget_purged()
    assert worker._journal.result(key) is not None, "its node stands"
    site.coordination.delete(epoch_path(MOVE))
    worker.forget_purged()
    assert (worker._journal.result(key) is not None) == bool(left)


def test_two_workers_of_one_host_are_one_too_many(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    with pytest.raises(Refused, match="another worker of host alpha runs"):
        site.worker("alpha").start()


@pytest.mark.parametrize("damage", ["truncate", "empty", "rubbish", "foreign"])
def test_a_damaged_journal_is_named_in_one_sentence(site: Cloud, started: Callable[..., Worker], damage: str) -> None:
    worker = started()
    assert result(site, post(site, site.command("alpha", "describe_guest"))).error is None
    worker.stop()
    path = worker.root / JOURNAL
    data = path.read_bytes()
    harm = {
        "truncate": data[: len(data) // 2],
        "empty": b"",
        "rubbish": b"no database" * 1000,
        "foreign": data[:68] + b"\0\0\0\0" + data[72:],
    }
    path.write_bytes(harm[damage])
    with pytest.raises(Refused, match=r"the journal .* of host alpha is damaged \(.*\): restore it") as caught:
        site.worker("alpha").start()
    assert "\n" not in str(caught.value)


def test_stop_may_come_twice_and_before_start(site: Cloud, started: Callable[..., Worker]) -> None:
    site.worker("beta").stop()
    worker = started()
    worker.stop()
    worker.stop()
    assert site.coordination.get(worker_path("alpha")) is None


@pytest.mark.parametrize("key", ["", "a.b.execute", "a.b.execute.x", "a.b.execute.1.part.more"])
def test_a_key_of_another_shape_is_refused(key: str) -> None:
    with pytest.raises(Refused, match="no command's key"):
        parse_key(key)


def test_only_the_undo_of_the_same_step_supersedes() -> None:
    execute = parse_key("f.copy_disks.execute.7")
    assert parse_key("f.copy_disks.revert.8").supersedes(execute)
    assert parse_key("f.copy_disks.revert.8.withdraw").supersedes(parse_key("f.copy_disks.execute.7.offer"))
    others = ("f.copy_disks.revert.6", "f.set_aside.revert.8", "g.copy_disks.revert.8", "f.copy_disks.execute.8")
    assert not any(parse_key(other).supersedes(execute) for other in others)


def test_the_deadline_of_a_command_ends_its_action(site: Cloud) -> None:
    command = msgspec.structs.replace(site.command("alpha", "set_aside"), deadline=0.0)
    with pytest.raises(StepError, match="took longer than 0 s") as caught:
        dispatch.run(Context(site.hosts["alpha"], command), codec.details_of(command))
    assert caught.value.error_code == "deadline"


def test_a_move_that_was_never_claimed_is_fenced(site: Cloud) -> None:
    with pytest.raises(Fenced, match="not claimed"):
        site.run("alpha", "set_aside", move="unknown")
