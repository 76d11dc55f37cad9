"""Claims, epochs, quarantine, and two conductors over one ZooKeeper."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rigs.engine_rig import CONFIRM, MIGRATE, Crash, Rig, embedded_rig, reference, until
from taskflow.exceptions import StorageFailure

from droveway.clients.zookeeper import TOMBSTONE, epoch_path, progress_path, result_path
from droveway.engines.conductor import fencing, progress
from droveway.engines.conductor.conductor import END_OF_FLOW
from droveway.engines.conductor.fencing import Quarantined
from droveway.engines.conductor.progress import ProgressNote
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.engines.operations import purging
from droveway.errors import Fenced, StepError
from droveway.flows.run import Context, MoveOptions
from droveway.flows.step import Step
from droveway.persistence.database import database_time
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.tables import Claim, Intent, Move, MoveFlow
from droveway.wire import commands


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def claim_of(rig: Rig, move: str) -> Claim:
    with rig.journal.read() as session:
        claim = session.get(Claim, move)
        assert claim is not None
        return claim


def test_epochs_are_one_rising_sequence_for_all_moves(rig: Rig) -> None:
    one, two = rig.submit(server="s1"), rig.submit(server="s2")
    taken = [fencing.claim(rig.journal, move, "me") for move in (one, two, one)]
    assert taken == [1, 2, 3]
    with rig.journal.write() as session, pytest.raises(Fenced):
        fencing.check(session, one, 1)
    with rig.journal.write() as session:
        assert fencing.check(session, one, 3).source_host == "h1"


@pytest.mark.parametrize("in_one", [True, False], ids=["one-statement", "two-statements"])
def test_a_step_begins_while_its_claim_stands_alone(rig: Rig, *, in_one: bool) -> None:
    move = rig.submit()
    rig.journal.engine.dialect.update_returning = in_one
    lost, epoch = (fencing.claim(rig.journal, move, "me") for _ in range(2))
    with rig.journal.begin() as connection:
        begun = fencing.update_claimed(connection, move, epoch, {"step": "claim"})
    with pytest.raises(Fenced), rig.journal.begin() as connection:
        fencing.update_claimed(connection, move, lost, {"step": "copy"})
    assert rig.move(move).step == "claim"
    assert begun.claimed == fencing.claimed(rig.journal, move)


def test_claims_side_by_side_never_share_an_epoch(rig: Rig) -> None:
    move = rig.submit()
    taken: list[int] = []
    threads = [
        threading.Thread(target=lambda: taken.append(fencing.claim(rig.journal, move, "me", quarantine_after=99)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]
    assert claim_of(rig, move).epoch == 6


def test_only_unclean_claims_without_progress_lead_to_quarantine(rig: Rig) -> None:
    move = rig.submit()
    for _ in range(4):
        fencing.claim(rig.journal, move, "me", quarantine_after=3)
        fencing.release(rig.journal, move, claim_of(rig, move).epoch)
    for _ in range(3):
        fencing.claim(rig.journal, move, "me", quarantine_after=3)
    with pytest.raises(Quarantined):
        fencing.claim(rig.journal, move, "me", quarantine_after=3)
    assert fencing.claim(rig.journal, move, "me", quarantine_after=3) > 0


def test_who_slept_behind_a_claim_that_was_refused_parks_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person has looked at the move meanwhile, and another conductor has it."""
    move = rig.submit()
    rig.post(move)
    host, claim = rig.host(), fencing.claim

    def slept(*_claimed: Any, **_options: Any) -> int:
        monkeypatch.undo()
        for _ in range(3):
            claim(rig.journal, move, "me", quarantine_after=3)
        try:
            return claim(rig.journal, move, "me", quarantine_after=3)
        finally:
            claim(rig.journal, move, "another one")

    monkeypatch.setattr(fencing, "claim", slept)
    assert host.turn() == [False]
    assert (rig.move(move).state, rig.move(move).error_code) == ("queued", None)


def tell(rig: Rig, move: str, epoch: int, done: int) -> None:
    """Keep what a host tells of a long step, as the holder of the claim does; a fresh conductor has kept nothing."""

    @contextlib.contextmanager
    def write() -> Iterator[Any]:
        with rig.journal.write() as session:
            fencing.check(session, move, epoch)
            yield session

    claimed = claim_of(rig, move).claimed_at
    with rig.journal.read() as session:
        until(lambda: database_time(session) > claimed)
    note = ProgressNote(move, lambda: commands.Progress(key="k", done=done, total=99, seconds=float(epoch)), write)
    note.update()


def test_a_copy_that_goes_on_is_never_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims expire in the middle of it, one after another; one in which it comes no farther counts as vain."""
    monkeypatch.setattr(progress, "FIRST_AFTER", 0.0)
    move = rig.submit()
    epoch = fencing.claim(rig.journal, move, "me", quarantine_after=2)
    for done in range(1, 7):
        tell(rig, move, epoch, done)
        epoch = fencing.claim(rig.journal, move, "me", quarantine_after=2)
        assert claim_of(rig, move).unclean == 0
    tell(rig, move, epoch, 6)
    fencing.claim(rig.journal, move, "me", quarantine_after=2)
    assert claim_of(rig, move).unclean == 1
    with pytest.raises(Quarantined):
        fencing.claim(rig.journal, move, "me", quarantine_after=2)


def test_a_queued_move_that_is_cancelled_while_it_is_claimed_never_begins(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rig.submit()
    rig.post(move)
    host, claim = rig.host(), fencing.claim

    def cancelled_before(*claimed: Any, **options: Any) -> int:
        monkeypatch.undo()
        with rig.journal.write() as session:
            requests.cancel(session, moves.get(session, move, lock=True), frozenset())
        return claim(*claimed, **options)

    monkeypatch.setattr(fencing, "claim", cancelled_before)
    assert host.turn() == [True]
    assert rig.move(move).state == "cancelled"
    assert rig.history(move) == []
    assert rig.cells.fences == {}
    assert claim_of(rig, move).released_at is not None
    present = host.coordination.get(epoch_path(move), sync=True)
    assert present is not None
    assert present[0] == TOMBSTONE


def test_a_move_that_kills_every_conductor_comes_to_rest_and_retry_tries_again(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)

    def kill(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("copy", "before"):
            raise Crash

    rig.probe = kill
    for _ in range(fencing.QUARANTINE_AFTER + 1):
        host = rig.host()
        with pytest.raises(Crash):
            host.turn()
        host.die()
    last = rig.host()
    assert last.turn() == [True]
    assert (rig.move(move).state, rig.move(move).error_code) == ("needs-operator", "quarantined")
    assert last.jobs() == []
    rig.probe = None
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.log.count("x claim") == 1


def test_the_mirror_only_rises_and_a_tombstone_is_the_end(rig: Rig) -> None:
    session = rig.session()
    assert fencing.mirror(session, "m", 4) == fencing.mirror(session, "m", 4)
    with pytest.raises(Fenced):
        fencing.mirror(session, "m", 3)
    assert fencing.mirror(session, "m", 9) == 1
    fencing.write_tombstone(session, "m", 4)
    assert session.get(epoch_path("m")) == (b"9", 1)
    fencing.write_tombstone(session, "m", 9)
    assert session.get(epoch_path("m")) == (TOMBSTONE, 2)
    with pytest.raises(Fenced):
        fencing.mirror(session, "m", 10)


def test_who_slept_while_the_move_was_purged_leaves_nothing_behind(rig: Rig) -> None:
    """e55: without its node nothing but the journal tells that a claim stands no more."""
    move, session = rig.submit(), rig.session()
    stale = fencing.claim(rig.journal, move, "stale")
    with pytest.raises(Fenced):
        fencing.mirror(session, move, stale - 1, journal=rig.journal)
    assert session.get(epoch_path(move)) is None
    kept = f"{move}{purging.KEPT}"
    fencing.mirror(session, kept, stale, journal=rig.journal, claimed=move)
    version = fencing.mirror(session, move, stale, journal=rig.journal)
    fencing.write_tombstone(session, move, stale)
    assert purging.remove_move_nodes(session, rig.journal) == 0
    with rig.journal.write() as writing:
        writing.execute(sa.delete(Claim))
        writing.execute(sa.update(Move).values(flow_uuid=None))
        writing.execute(sa.delete(MoveFlow))
        writing.execute(sa.delete(Move))
    assert purging.remove_move_nodes(session, rig.journal) == 1
    assert session.children(purging.MOVES) == [kept], "a fence that stands is no tombstone"
    for stands, claimed in ((move, ""), (kept, move)):
        with pytest.raises(Fenced):
            fencing.mirror(
                session, stands, stale if stands == move else stale - 1, journal=rig.journal, claimed=claimed
            )
    with pytest.raises(Fenced):
        session.create_guarded("/droveway/x", b"", guard=epoch_path(move), version=version)
    assert purging.remove_move_nodes(session, rig.journal, [move]) == 1
    assert session.children(purging.MOVES) == []


def test_only_the_claim_that_stands_opens_the_grave_of_a_move(rig: Rig) -> None:
    move, session = rig.submit(), rig.session()
    stale = fencing.claim(rig.journal, move, "stale")
    epoch = fencing.claim(rig.journal, move, "collector")
    fencing.clear_tombstone(rig.journal, session, move, epoch)
    assert session.get(epoch_path(move)) is None
    fencing.mirror(session, move, epoch)
    fencing.write_tombstone(session, move, epoch)
    with pytest.raises(Fenced):
        fencing.clear_tombstone(rig.journal, session, move, stale)
    present = session.get(epoch_path(move))
    assert present is not None
    assert present[0] == TOMBSTONE
    fencing.clear_tombstone(rig.journal, session, move, epoch)
    assert fencing.mirror(session, move, epoch) > present[1]


def test_a_step_is_given_what_was_recorded_before_its_boundary(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rig.submit()
    rig.post(move)
    given: list[tuple[str | None, Any]] = []

    def note(step: Step, _direction: str, _inputs: Any, _result: Any) -> Context:
        given.append((step.run_.row.step, step.run_.row.before))
        return context(step, "execute", {}, None)

    def record(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("claim", "after"):
            with rig.journal.write() as session:
                moves.get(session, move).before = {"vm_state": "active"}

    read: list[str] = []
    context = Step._context
    monkeypatch.setattr(Step, "_context", note)
    monkeypatch.setattr(fencing, "claimed", lambda _journal, move: read.append(move))
    rig.probe = record
    assert rig.host().turn() == [True]
    assert read == [], "each boundary knows it from the transaction that began its step"
    names = [name for name in MIGRATE.names() if name != "alternates"]
    recorded = {name: names.index(name) > names.index("claim") for name in names}
    assert given == [(name, {"vm_state": "active"} if recorded[name] else None) for name in names]


def test_a_step_that_finds_itself_fenced_is_no_failure_of_the_flow(rig: Rig) -> None:
    """A cell's fence may say it first, while the journal's claim still stands: nothing is undone for that."""
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", Fenced("a newer epoch stands in the cell"))
    assert rig.host().turn() == [False]
    assert [mark for mark in rig.world.log if mark.startswith("r ")] == []
    assert [row.error for row in rig.history(move) if row.step == "copy"] == [None]
    rig.host().turn()
    assert rig.move(move).state == "verifying"


@pytest.mark.parametrize("step", [name for name in MIGRATE.names() if name != "alternates"])
def test_the_conductor_that_wakes_up_after_another_finished_writes_nothing(rig: Rig, step: str) -> None:
    move = rig.submit()
    rig.post(move)
    asleep, wake = threading.Event(), threading.Event()

    def pause(_ctx: object) -> None:
        del rig.world.hooks[f"x {step}"]
        asleep.set()
        assert wake.wait(20)

    rig.world.hooks[f"x {step}"] = pause
    first, second = rig.host(), rig.host()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.extend(first.turn()))
    thread.start()
    assert asleep.wait(20)
    first.die()
    second.turn()
    assert rig.move(move).state == "verifying"
    before = (list(rig.world.log), set(rig.world.held), everything(rig))
    wake.set()
    thread.join(20)
    assert outcome == [False]
    assert (rig.world.log, rig.world.held, everything(rig)) == before
    assert rig.cells.fences == {}


def everything(rig: Rig) -> list[object]:
    """All rows that a conductor writes."""
    with rig.journal.engine.connect() as connection:
        tables = ("moves", "move_steps", "move_flows", "move_attempts", "claims", "flowdetails", "atomdetails")
        return [connection.exec_driver_sql(f"SELECT * FROM {table}").fetchall() for table in tables]


def test_a_claimant_whose_session_went_gives_up_before_it_runs_anything(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    first = rig.host()
    job = first.jobs()[0]
    first.board.claim(job, first.conductor.name)
    session = rig.session()
    session.delete(job.lock_path)
    assert first.conductor._dispatch_job(job) is False
    assert rig.world.log == []
    with rig.journal.read() as reading:
        assert reading.get(Claim, move) is None
    assert rig.host().turn() == [True]


def test_who_slept_right_before_its_claim_takes_nothing_from_who_has_the_move(rig: Rig) -> None:
    """It would fence him off in the middle of a step."""
    move = rig.submit()
    epoch = fencing.claim(rig.journal, move, "the other")
    with pytest.raises(Fenced, match="not this conductor's"):
        fencing.claim(rig.journal, move, "the sleeper", is_lost=lambda: True)
    assert claim_of(rig, move).epoch == epoch


def test_an_ended_move_has_a_tombstone_and_a_resting_one_has_not(rig: Rig) -> None:
    move, failed = rig.submit(server="s1"), rig.submit(server="s2")
    rig.post(move)
    host = rig.host()
    host.turn()
    rig.world.fail("x prepare", StepError("no"))
    rig.post(failed)
    host.turn()
    assert rig.move(failed).state == "failed"
    data, _version = host.coordination.get(epoch_path(failed)) or (b"", 0)
    assert data == TOMBSTONE
    data, _version = host.coordination.get(epoch_path(move)) or (b"", 0)
    assert int(data) == claim_of(rig, move).epoch


def test_cloud_calls_of_a_lost_claim_are_marked_late(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    first, second = rig.host(), rig.host()

    def call(ctx: object) -> None:
        del rig.world.hooks["x claim"]
        with ctx.run.intent("placement", "POST /allocations"):  # type: ignore[attr-defined]
            first.die()
            second.turn()

    rig.world.hooks["x claim"] = call
    job = first.jobs()[0]
    first.board.claim(job, first.conductor.name)
    assert first.conductor._dispatch_job(job) is False
    with rig.journal.read() as session:
        assert [intent.state for intent in session.query(Intent)] == ["late"]


def test_an_intent_is_done_once_its_call_has_returned(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)

    def call(ctx: object) -> None:
        with ctx.run.intent("placement", "POST"), rig.journal.read() as session:  # type: ignore[attr-defined]
            assert [intent.state for intent in session.query(Intent)] == ["open"]

    rig.world.hooks["x claim"] = call
    rig.host().turn()
    with rig.journal.read() as session:
        assert [(intent.state, intent.epoch) for intent in session.query(Intent)] == [("done", 1)]


def test_a_call_that_returned_is_done_though_its_step_is_left(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)

    def call(ctx: object) -> None:
        with ctx.run.intent("placement", "POST"):  # type: ignore[attr-defined]
            pass
        ctx.run.leave("the database is away")  # type: ignore[attr-defined]

    rig.world.hooks["x claim"] = call
    assert rig.host().turn() == [False]
    with rig.journal.read() as session:
        assert [intent.state for intent in session.query(Intent)] == ["done"]
    assert rig.move(move).state == "running"
    assert rig.world.log[-1] == "x claim"


def test_a_step_that_rests_for_an_operator_after_its_calls_has_them_done(rig: Rig) -> None:
    rig.options = MoveOptions(retry_for=0.0)
    move = rig.submit()
    rig.post(move)

    def call(ctx: object) -> None:
        for number in range(2):
            with ctx.run.intent("placement", f"POST {number}"):  # type: ignore[attr-defined]
                pass
        raise StepError("no answer", code="placement-overdue")

    rig.world.hooks["x finish"] = call
    rig.host().turn()
    assert (rig.move(move).state, rig.move(move).error_code) == ("needs-operator", "placement-overdue")
    with rig.journal.read() as session:
        assert [intent.state for intent in session.query(Intent)] == ["done", "done"]


def test_a_call_whose_return_cannot_be_stored_stays_open(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rig.submit()
    rig.post(move)

    def away(*_: object) -> None:
        raise StorageFailure("the journal is away")

    def call(ctx: object) -> None:
        with ctx.run.intent("placement", "POST"):  # type: ignore[attr-defined]
            pass
        with monkeypatch.context() as broken:
            broken.setattr(FlowBackend, "_check", away)
            ctx.run.leave("the database is away")  # type: ignore[attr-defined]

    rig.world.hooks["x claim"] = call
    rig.host().turn()
    with rig.journal.read() as session:
        assert [intent.state for intent in session.query(Intent)] == ["open"]
    assert rig.move(move).state == "running"


def test_a_stop_ends_the_pause_between_two_tries(rig: Rig) -> None:
    rig.options = MoveOptions(retry_for=3600, retry_pause=5.0)
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x finish", *[StepError("no answer")] * 10)
    host = rig.host()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.extend(host.turn()))
    thread.start()
    until(lambda: "x finish" in rig.world.log)
    host.conductor.stopping.request()
    thread.join(4)
    assert outcome == [False]
    assert claim_of(rig, move).released_at is not None


def test_the_end_of_a_flow_clears_what_came_late_for_the_flows_before(rig: Rig) -> None:
    """A worker that slept may answer, or tell how far it is, when its flow has ended."""
    move = rig.submit()
    rig.post(move)
    flow = rig.move(move).flow_uuid
    host = rig.host()
    host.turn()
    assert rig.move(move).state == "verifying"
    late = [result_path("h1", f"{flow}.copy.execute.1"), progress_path("h2", f"{flow}.copy.execute.1")]
    another = result_path("h1", "11111111-77aa-4a63-8d4e-2a0f2a0c9b04.copy.execute.1")
    for path in (*late, another):
        host.coordination.create(path, b"{}")
    with rig.journal.write() as session:
        moves.begin_flow(session, moves.get(session, move), reference(CONFIRM))
    rig.post(move)
    host.turn()
    assert rig.move(move).state == "done"
    assert [host.coordination.get(path) for path in late] == [None, None]
    assert host.coordination.get(another) is not None


def test_a_claim_that_is_lost_behind_the_end_of_its_flow_leaves_the_clearing_to_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ended it died before it cleared up; the next looked before that end, and lost its lock behind its claim."""
    move = rig.submit()
    rig.post(move)
    first, second, third = rig.host(), rig.host(), rig.host()

    def killed(_move: str, step: str, _direction: str, _phase: str) -> None:
        if step == END_OF_FLOW:
            raise Crash

    rig.probe = killed
    with pytest.raises(Crash):
        first.turn()
    first.die()
    rig.probe = None
    assert rig.cells.fences
    with monkeypatch.context() as lost:
        lost.setattr(second.conductor, "_is_due", lambda _posting: True)
        answers = iter([False, True])
        lost.setattr(second.conductor, "has_lost", lambda _job: next(answers))
        assert second.turn() == [False]
    assert claim_of(rig, move).released_at is None
    assert third.turn() == [True]
    assert rig.cells.fences == {}
    assert claim_of(rig, move).released_at is not None
