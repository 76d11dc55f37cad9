"""A person says what became of the step at which a move rests; and a failed undo is taken up again."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from support.rigs.engine_rig import Crash, Rig, embedded_rig, fault

from droveway.clients.zookeeper import TOMBSTONE, epoch_path
from droveway.engines.conductor import fencing
from droveway.engines.conductor.taskflow import details, resting
from droveway.engines.operations import settling
from droveway.errors import Fenced, Refused, StepError
from droveway.flows.graph import Graph
from droveway.flows.steps.hosts import copying, host
from droveway.persistence.database import SqliteDialect, database_time
from droveway.persistence.journal import kinds, moves, requests
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveStep
from droveway.wire.values import Direction

LOST = [StepError("the shelf fell over") for _ in range(1000)]


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def parked(rig: Rig, mark: str) -> str:
    """A move that rests since this run of a step fails again and again."""
    move = rig.submit()
    rig.post(move)
    if mark.startswith("r "):
        rig.world.fail("x copy", StepError("the disk is full"))
    rig.world.fail(mark, *LOST)
    rig.host().turn()
    assert rig.move(move).state == "needs-operator"
    rig.world.failures.clear()
    rig.world.log.clear()
    return move


def settle(rig: Rig, move: str, step: str, *, done: bool, reason: str = "looked at the shelf") -> Move:
    with rig.journal.write() as session:
        return settling.settle(session, move, step, done=done, who="ann", reason=reason)


def go_on(rig: Rig, move: str) -> str:
    rig.post(move)
    rig.host().turn()
    return rig.move(move).state


def claim_of(rig: Rig, move: str) -> Claim:
    with rig.journal.read() as session:
        return session.scalars(sa.select(Claim).where(Claim.move_id == move)).one()


@pytest.mark.parametrize(("done", "ran"), [(True, []), (False, ["x finish"])])
def test_a_step_is_skipped_as_done_or_entered_anew(rig: Rig, *, done: bool, ran: list[str]) -> None:
    move = parked(rig, "x finish")
    settle(rig, move, "finish", done=done)
    assert go_on(rig, move) == "verifying"
    assert rig.world.log == ran


@pytest.mark.parametrize(("done", "ran"), [(True, ["r prepare"]), (False, ["r claim", "r prepare"])])
def test_an_undo_is_skipped_as_done_or_entered_anew(rig: Rig, *, done: bool, ran: list[str]) -> None:
    move = parked(rig, "r claim")
    settle(rig, move, "claim", done=done)
    assert go_on(rig, move) == "failed"
    assert rig.world.log == ran


@pytest.mark.parametrize(("done", "ran"), [(True, ["x finish"]), (False, ["x copy", "x start_guest", "x finish"])])
def test_a_step_that_killed_its_conductors_in_its_first_run_is_settled(rig: Rig, *, done: bool, ran: list[str]) -> None:
    """Of its first run only the history knows, and there it has not ended."""
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
    rig.host().turn()
    assert rig.move(move).state == "needs-operator"
    rig.probe = None
    rig.world.log.clear()
    settle(rig, move, "copy", done=done)
    assert go_on(rig, move) == "verifying"
    assert [mark for mark in rig.world.log if mark in ran] == ran
    assert ("x copy" in rig.world.log) is not done


FAILED = {"code": "internal", "message": "no", "host": ""}


@pytest.mark.parametrize(
    ("runs", "rests"),
    [
        ([("prepare", "execute", None, False)], ["prepare"]),
        ([("prepare", "execute", FAILED, True)], ["prepare"]),
        ([("prepare", "execute", None, True)], []),
        ([("prepare", "revert", FAILED, True)], []),
        ([("alternates", "execute", None, False)], []),
        ([("prepare", "execute", FAILED, True), ("adopt", "execute", FAILED, True)], []),
        ([("adopt", "execute", FAILED, True), ("prepare", "execute", FAILED, True)], ["prepare"]),
        ([("prepare", "execute", FAILED, True), ("somewhere", "execute", None, True)], ["prepare"]),
    ],
    ids=["open", "parked", "noted", "undo", "alternates", "adopted", "after-adoption", "noted-since"],
)
def test_a_flow_rests_at_the_first_run_that_has_not_ended_well(
    rig: Rig, runs: list[tuple[str, Direction, dict[str, str] | None, bool]], rests: list[str]
) -> None:
    move = rig.submit()
    flow = rig.move(move).flow_uuid
    with rig.journal.write() as session:
        now = database_time(session)
        for step, direction, error, ended in runs:
            row = MoveStep(move_id=move, flow_uuid=flow, flow="migrate", step=step, direction=direction)
            row.started_at, row.ended_at, row.error = now, now if ended else None, error
            session.add(row)
            session.flush()
    with rig.journal.read() as session:
        assert [each.step for each in resting.begun(session, flow)] == rests


def test_the_history_says_who_settled_what_and_why(rig: Rig) -> None:
    move = parked(rig, "x finish")
    settle(rig, move, "finish", done=True)
    row = rig.history(move)[-1]
    assert (row.step, row.direction, row.result, row.error) == (
        "finish",
        "execute",
        {"settled": "done", "by": "ann", "reason": "looked at the shelf"},
        None,
    )
    assert row.ended_at is not None
    assert all(each.ended_at is not None for each in rig.history(move))


@pytest.mark.parametrize(
    ("step", "reason", "why"),
    [
        ("copy", "seen", "does not rest at step copy but at finish"),
        ("nonsense", "seen", "does not rest at step nonsense but at finish"),
        ("finish", " ", "needs a reason"),
    ],
)
def test_what_cannot_be_settled_is_refused_and_changes_nothing(rig: Rig, step: str, reason: str, why: str) -> None:
    move = parked(rig, "x finish")
    before = len(rig.history(move))
    with pytest.raises(Refused, match=why):
        settle(rig, move, step, done=True, reason=reason)
    assert (rig.move(move).state, len(rig.history(move))) == ("needs-operator", before)


def test_a_move_that_runs_is_not_settled(rig: Rig) -> None:
    move = rig.submit()
    with pytest.raises(Refused, match="only a move that is needs-operator can be settled"):
        settle(rig, move, "prepare", done=True)


def test_a_step_is_not_settled_while_its_conductor_may_live(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that died between parking and giving the move back looks the same as one that is still at it."""

    def die(*_facts: object) -> None:
        raise Crash

    move = rig.submit()
    rig.post(move)
    rig.world.fail("x finish", *LOST)
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "release", die)
        died = rig.host()
        with pytest.raises(Crash):
            died.turn()
        died.die()
    assert rig.move(move).state == "needs-operator"
    with pytest.raises(Refused, match=f"droveway move retry {move[:8]}"):
        settle(rig, move, "finish", done=True)
    # What the sentence says mends it.
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))
    assert go_on(rig, move) == "needs-operator"
    settle(rig, move, "finish", done=True)


def test_whoever_had_the_move_before_is_fenced_off(rig: Rig) -> None:
    move = parked(rig, "x finish")
    before = claim_of(rig, move).epoch
    settle(rig, move, "finish", done=True)
    claim = claim_of(rig, move)
    assert claim.epoch > before
    assert claim.released_at is not None
    with rig.journal.write() as session, pytest.raises(Fenced):
        fencing.check(session, move, before)


def test_settling_is_one_transaction(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = parked(rig, "x finish")

    def states() -> list[str | None]:
        with rig.journal.read() as session:
            return [row.state for row in session.execute(sa.select(details.ATOMS).order_by(details.ATOMS.c.uuid))]

    before = states(), claim_of(rig, move).epoch, len(rig.history(move))

    def die(*_facts: object, **_others: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(moves, "flow_of", die)
        with pytest.raises(Crash):
            settle(rig, move, "finish", done=False)
    assert (states(), claim_of(rig, move).epoch, len(rig.history(move))) == before
    assert rig.move(move).state == "needs-operator"


@pytest.mark.parametrize(
    ("stored", "state", "clears_up"), [(True, "cancelled", True), (False, "needs-operator", False)]
)
def test_an_end_of_which_nobody_heard_keeps_the_claim(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, state: str, *, stored: bool, clears_up: bool
) -> None:
    """By it a conductor finds what is to be cleared up; a move that still rests is given back."""
    move = parked(rig, "x finish")
    rig.post(move)
    ends, lost = moves.leave, []

    def leave(*facts: Any) -> None:
        ends(*facts)
        lost.append(move)

    def commit(dialect: SqliteDialect, connection: Any) -> None:
        unheard = lost and lost.pop()
        if stored or not unheard:
            super(SqliteDialect, dialect).do_commit(connection)
        if unheard:
            raise sqlite3.OperationalError("the connection was lost")

    conf = SimpleNamespace(conductor=SimpleNamespace(step_deadline=60.0))
    site: Any = SimpleNamespace(journal=rig.journal, conf=conf)
    with monkeypatch.context() as patched:
        patched.setattr(settling, "_close_records", lambda *_facts: None)
        patched.setattr(moves, "leave", leave)
        patched.setattr(SqliteDialect, "do_commit", commit)
        with pytest.raises(exc.OperationalError):
            settling.leave(site, move, "finish", who="ann", reason="nobody mends it")
    assert rig.move(move).state == state
    with rig.journal.read() as session:
        assert [left.id for left, _flow in moves.unreleased_flows(session)] == [move] * clears_up
    assert (claim_of(rig, move).released_at is None) is clears_up
    if clears_up:
        host = rig.host()
        assert host.turn() == [True]
        assert claim_of(rig, move).released_at is not None
        node = rig.session().get(epoch_path(move))
        assert node is not None
        assert node[0] == TOMBSTONE


def leave(rig: Rig, monkeypatch: pytest.MonkeyPatch, move: str, step: str, meanwhile: Callable[[], object]) -> None:
    """Leave the move as it is; ``meanwhile`` runs once the move is claimed for that, before its end is written."""
    site: Any = SimpleNamespace(
        journal=rig.journal, conf=SimpleNamespace(conductor=SimpleNamespace(step_deadline=60.0))
    )
    with monkeypatch.context() as patched:
        patched.setattr(settling, "_close_records", lambda *_facts: meanwhile())
        settling.leave(site, move, step, who="ann", reason="nobody mends it")


def retry(rig: Rig, move: str) -> None:
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))


def test_a_move_is_not_retried_while_a_command_leaves_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step would run over rows that the command has closed."""
    move = parked(rig, "x finish")

    def meanwhile() -> None:
        with pytest.raises(Refused, match="while a command of operator ann settles it"):
            retry(rig, move)

    leave(rig, monkeypatch, move, "finish", meanwhile)
    assert rig.move(move).state == "cancelled"


def test_a_waiting_move_stays_with_the_command_that_leaves_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No confirm or revert begins meanwhile, and no conductor takes the command's claim for that of a dead one."""
    move = rig.submit()
    assert go_on(rig, move) == "verifying"

    def meanwhile() -> None:
        for kind in (kinds.CONFIRM, kinds.REVERT):
            with rig.journal.write() as session, pytest.raises(Refused, match="while a command of operator ann"):
                requests.end_wait(session, moves.get(session, move, lock=True), FlowRef(kind.name, 1, ""))
        with rig.journal.read() as session:
            assert moves.unreleased_flows(session) == []

    leave(rig, monkeypatch, move, settling.LAST, meanwhile)
    assert rig.move(move).state == "cancelled"
    with rig.journal.read() as session:
        assert [left.id for left, _flow in moves.unreleased_flows(session)] == [move]


def test_a_move_is_retried_once_the_command_that_left_it_counts_as_dead(rig: Rig) -> None:
    move = parked(rig, "x finish")
    fencing.claim(rig.journal, move, f"{OPERATOR}ann")
    with rig.journal.write() as session:
        began = database_time(session) - moves.OPERATOR_WRITES - dt.timedelta(seconds=1)
        session.execute(sa.update(Claim).values(claimed_at=began))
    retry(rig, move)
    assert go_on(rig, move) == "verifying"


def test_a_step_whose_result_is_read_later_is_not_settled_as_done(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host has found cannot be told for it; entering it anew is no lie."""

    class Finish(host.StartGuest):
        gives = "storage"

    graph = Graph(kinds.MIGRATE, 1, (Finish, host.SetAside, copying.CopyDisks), copying.CopyDisks)
    assert any("storage" in step.needs for step in graph.walk())
    move = parked(rig, "x finish")
    monkeypatch.setattr(settling.registry, "graph", lambda _kind, _version: graph)
    with pytest.raises(Refused, match=re.escape("needs the result of step finish")):
        settle(rig, move, "finish", done=True)
    settle(rig, move, "finish", done=False)


def test_a_failed_undo_is_retried(rig: Rig) -> None:
    """The undo that failed runs again, and those before it."""
    move = parked(rig, "r claim")
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))
    assert go_on(rig, move) == "failed"
    assert rig.world.log == ["r claim", "r prepare"]
    assert rig.world.held == set()


def test_a_retried_undo_that_fails_again_rests_again(rig: Rig) -> None:
    move = parked(rig, "r claim")
    rig.world.fail("r claim", *[fault("still full") for _ in range(1000)])
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))
    assert go_on(rig, move) == "needs-operator"
    assert set(rig.world.log) == {"r claim"}
    assert "prepare" in rig.world.held


@pytest.mark.parametrize("settled", [True, False])
def test_an_undo_that_taskflow_calls_failed_is_taken_up_again(rig: Rig, *, settled: bool) -> None:
    """Left as it is, TaskFlow would call the flow undone, and leave what the undo should have removed."""
    move = parked(rig, "r claim")
    with rig.journal.begin() as connection:
        failed = details.ATOMS.update().where(details.ATOMS.c.name == "claim").values(state="REVERT_FAILURE")
        assert connection.execute(failed).rowcount == 1
    if settled:
        settle(rig, move, "claim", done=True)
    else:
        with rig.journal.write() as session:
            requests.retry(session, moves.get(session, move, lock=True))
    assert go_on(rig, move) == "failed"
    assert rig.world.log == (["r prepare"] if settled else ["r claim", "r prepare"])
