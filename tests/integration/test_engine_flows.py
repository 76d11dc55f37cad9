"""Whole flows over toy graphs of real steps: ends, undos, alternates, parking, crashes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.rigs.engine_rig import MIGRATE, Crash, Prepare, Rig, embedded_rig, fault

from droveway.errors import StepError
from droveway.persistence.journal import moves, requests


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def retry(rig: Rig, move: str) -> None:
    """What `move retry` asks for, carried out."""
    with rig.journal.write() as session:
        requests.retry(session, moves.get(session, move, lock=True))
    rig.post(move)
    rig.host().turn()


def test_a_flow_runs_to_its_end_and_leaves_nothing_but_its_history(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    host = rig.host()
    assert host.turn() == [True]
    after = rig.move(move)
    assert (after.state, after.flow_uuid, after.dest_host, after.step_count) == ("verifying", None, "h2", 7)
    assert after.deadline is not None
    assert rig.world.log == [
        "x prepare",
        "x choose_destinations",
        "x claim",
        "x copy",
        "x start_guest",
        "x finish",
    ]
    rows = rig.history(move)
    assert [row.step for row in rows] == MIGRATE.names()
    assert all(row.ended_at is not None and row.error is None for row in rows)
    assert rows[4].host == "h2"
    assert rows[3].result == {"step": "claim"}
    assert host.jobs() == []
    assert rig.cells.fences == {}


def test_a_destinations_fault_tries_the_next_alternate(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", fault())
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.held == {"prepare", "claim@h3", "copy@h3", "start_guest", "finish"}
    assert [(row.step, row.direction, row.attempt) for row in rig.history(move)][2:8] == [
        ("alternates", "execute", 0),
        ("claim", "execute", 1),
        ("copy", "execute", 1),
        ("copy", "revert", 1),
        ("claim", "revert", 1),
        ("alternates", "execute", 1),
    ]


def test_exhausted_alternates_undo_everything(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", fault("h2 is full"), fault("h3 is full"))
    host = rig.host()
    host.turn()
    after = rig.move(move)
    assert (after.state, after.error_code, after.error) == ("failed", "full", "h3 is full")
    assert rig.world.held == set()
    assert host.jobs() == []
    assert rig.cells.fences == {}


def test_another_error_undoes_at_once(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", RuntimeError("odd"))
    rig.host().turn()
    after = rig.move(move)
    assert (after.state, after.error_code) == ("failed", "internal")
    assert rig.world.held == set()
    assert rig.world.log.count("x copy") == 1


def test_a_cancel_undoes(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)

    def cancel(_ctx: object) -> None:
        with rig.journal.write() as session:
            requests.cancel(session, moves.get(session, move, lock=True), frozenset({"start_guest", "finish"}))

    rig.world.hooks["x claim"] = cancel
    rig.host().turn()
    assert rig.move(move).state == "cancelled"
    assert rig.world.held == set()
    assert "x copy" not in rig.world.log


def test_a_hold_parks_at_the_next_boundary_and_resume_enters_just_that_step(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)

    def hold(_ctx: object) -> None:
        with rig.journal.write() as session:
            requests.pause(session, moves.get(session, move, lock=True))

    rig.world.hooks["x claim"] = hold
    host = rig.host()
    assert host.turn() == [True]
    held = rig.move(move)
    assert (held.state, held.step, held.hold) == ("running", "copy", True)
    assert host.jobs() == []
    before = [row.seq for row in rig.history(move)]
    with rig.journal.write() as session:
        requests.resume(session, moves.get(session, move, lock=True))
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.log.count("x claim") == 1
    assert [row.seq for row in rig.history(move)][: len(before)] == before
    assert len(rig.history(move)) == 7


def test_beyond_no_return_a_step_parks_and_retry_enters_it_with_a_new_row(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x finish", *[StepError("no answer")] * 1000)
    host = rig.host()
    assert host.turn() == [True]
    parked = rig.move(move)
    assert (parked.state, parked.parked_from, parked.error) == ("needs-operator", "running", "no answer")
    assert host.jobs() == []
    rig.world.failures.clear()
    retry(rig, move)
    assert rig.move(move).state == "verifying"
    finish = [row for row in rig.history(move) if row.step == "finish"]
    assert [row.error is None for row in finish] == [False, True]
    assert rig.world.log.count("x start_guest") == 1
    assert not any(mark.startswith("r ") for mark in rig.world.log)


def test_an_undo_that_cannot_go_on_parks_and_retry_undoes_the_rest(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x start_guest", StepError("refused", code="not-begun"))
    rig.world.fail("r copy", *[StepError("away")] * 1000)
    rig.host().turn()
    parked = rig.move(move)
    assert (parked.state, parked.parked_from, parked.error_code) == ("needs-operator", "undoing", "step-failed")
    rig.world.failures.clear()
    retry(rig, move)
    after = rig.move(move)
    assert (after.state, after.error) == ("failed", "refused")
    assert rig.world.held == set()


def test_a_result_that_cannot_be_stored_parks_and_retry_runs_its_step_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rig.submit()
    rig.post(move)
    with monkeypatch.context() as broken:
        broken.setattr(Prepare, "perform", lambda *_: {"step": object()})
        assert rig.host().turn() == [True]
    parked = rig.move(move)
    assert (parked.state, parked.error_code) == ("needs-operator", "flow-stopped")
    assert "the database layer refused a statement (StatementError)" in str(parked.error)
    retry(rig, move)
    assert rig.move(move).state == "verifying"
    rows = [row for row in rig.history(move) if row.step == "prepare"]
    assert [(row.error and row.error["code"], row.result) for row in rows] == [
        ("retried", None),
        (None, {"step": "prepare"}),
    ]


Setup = Callable[[Rig], None]


def crash_at(number: int) -> Callable[..., None]:
    """A probe that ends the process at its ``number``th call."""
    calls = itertools.count()

    def probe(*_facts: str) -> None:
        if next(calls) == number:
            raise Crash

    return probe


def _plain(_rig: Rig) -> None:
    """Nothing fails."""


def _once(rig: Rig) -> None:
    rig.world.fail("x copy", fault())


def _exhausted(rig: Rig) -> None:
    rig.world.fail("x start_guest", fault(), fault())


@pytest.mark.parametrize(("setup", "stride"), [(_plain, 1), (_once, 2), (_exhausted, 3)])
def test_a_crash_at_any_point_ends_as_the_run_without_it(rig: Rig, setup: Setup, stride: int) -> None:
    points: list[tuple[str, str, str]] = []
    rig.probe = lambda _move, step, direction, phase: points.append((step, direction, phase))
    move = _begin(rig, setup, "plain")
    rig.host().turn()
    wanted = (rig.world.held, rig.move(move).state)
    assert len(points) > 15
    for number, point in list(enumerate(points))[::stride]:
        move = _begin(rig, setup, f"s{number}")
        rig.probe = crash_at(number)
        first = rig.host()
        with pytest.raises(Crash):
            first.turn()
        first.die()
        second = rig.host()
        second.turn()
        assert (rig.world.held, rig.move(move).state) == wanted, point
        assert second.jobs() == []
        assert all(row.ended_at is not None for row in rig.history(move)), point
        assert rig.cells.fences == {}
        second.die()


def _begin(rig: Rig, setup: Setup, server: str) -> str:
    rig.world.clear()
    move = rig.submit(server=server)
    rig.post(move)
    setup(rig)
    return move
