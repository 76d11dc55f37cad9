"""What the keeper decides, as a function of what it sees."""

from __future__ import annotations

import datetime as dt
from typing import Any

from droveway.engines.conductor.taskflow.board import Posting
from droveway.engines.keeper.admission import EVERYWHERE, Kind, Limits, Place
from droveway.engines.keeper.keeper import Action, Delete, Post, Seen, Snapshot, Withdraw, decide
from droveway.engines.keeper.policies import EndWait, Waiting
from droveway.persistence.journal.states import State

NOW = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - as the journal's columns hold it


def posting(name: str, *, urgent: bool = False, filed: str = "1") -> Posting:
    return Posting(flow=name, move=name, kind="migrate", version=1, digest="d", urgent=urgent, filed=filed)


def seen(name: str = "m", state: State = State.QUEUED, **facts: Any) -> Seen:
    known: dict[str, Any] = {"hold": False, "posting": None, "places": at()}
    return Seen(move=name, state=state, **(known | facts))


def at(*hosts: str) -> frozenset[Place]:
    return frozenset([EVERYWHERE, *(Place(Kind.HOST, host) for host in hosts)])


def decided(*moves: Seen, posted: dict[str, bool] | None = None, limit: int = 2, per_host: int = 0) -> list[Action]:
    return decide(
        Snapshot(moves, posted or {}, NOW, frozenset({"host1", "host2"})), Limits(running=limit, host=per_host)
    )


def test_what_may_run_is_posted_once() -> None:
    a = posting("a")
    assert decided(seen(posting=a)) == [Post(a)]
    assert decided(seen(posting=a), posted={"a": False}) == []
    assert decided(seen(posting=a), posted={"a": True}) == []


def test_the_oldest_are_admitted_up_to_the_limit() -> None:
    a, b, c = (posting(name, filed=filed) for name, filed in (("a", "3"), ("b", "1"), ("c", "2")))
    assert decided(seen(posting=a), seen(posting=b), seen(posting=c)) == [Post(b), Post(c)]
    assert decided(seen(posting=a), seen(posting=b), seen(posting=c), posted={"a": True}) == [Post(b)]


def test_urgent_flows_need_no_room() -> None:
    a, u = posting("a"), posting("u", urgent=True, filed="9")
    full = {"x": True, "y": True}
    others = (seen(posting=posting("x")), seen(posting=posting("y")))
    assert decided(*others, seen(posting=a), seen(state=State.CONFIRMING, posting=u), posted=full) == [Post(u)]


def test_what_has_begun_goes_on_before_what_is_queued() -> None:
    old, begun = posting("old", filed="1"), posting("begun", filed="2")
    assert decided(seen(posting=old), seen(state=State.RUNNING, posting=begun), limit=1) == [Post(begun)]


def test_what_nobody_can_run_takes_no_room_and_is_offered_again_once_somebody_can() -> None:
    """Not even when it was offered while somebody could; who has claimed it goes on."""
    foreign = [seen(f"f{n}", posting=posting(f"f{n}", filed="0"), runnable=False) for n in range(3)]
    a, b = posting("a"), posting("b", filed="2")
    others = seen(posting=a), seen(posting=b)
    assert decided(*foreign, *others) == [Post(a), Post(b)]
    assert decided(*foreign, *others, posted={"f0": False, "f1": True}, limit=1) == [Withdraw("f0"), Post(a)]
    assert decided(seen(posting=posting("f0"))) == [Post(posting("f0"))]
    begun = seen(state=State.RUNNING, posting=posting("f9"), runnable=False)
    assert decided(begun, *others, limit=1) == [Post(a)]


def test_a_host_takes_no_more_than_its_limit_and_others_go_on() -> None:
    a, b, c = (posting(name, filed=name) for name in "abc")
    crowd = seen(posting=a, places=at("h1", "h2")), seen(posting=b, places=at("h2")), seen(posting=c, places=at("h3"))
    assert decided(*crowd, limit=9, per_host=1) == [Post(a), Post(c)]
    assert decided(*crowd, limit=9, per_host=1, posted={"b": True}) == [Post(c)]
    urgent = seen(posting=posting("u", urgent=True), places=at("h1"), state=State.UNDOING)
    assert decided(urgent, *crowd, limit=9, per_host=1, posted={"u": True}) == [Post(a), Post(c)]


def test_what_an_end_leaves_behind_is_cleared_without_room() -> None:
    left = seen(posting=posting("left"), state=State.VERIFYING, cleared=False)
    busy = seen(posting=posting("x"))
    assert decided(busy, left, limit=1, posted={"x": True}) == [Post(posting("left"))]
    assert decided(busy, left, limit=1, posted={"left": True}) == [Post(posting("x"))]


def test_held_ended_and_unknown_flows_are_withdrawn_unless_claimed() -> None:
    a = posting("a")
    assert decided(seen(posting=a, hold=True), posted={"a": False, "gone": False}) == [
        Withdraw("a"),
        Withdraw("gone"),
    ]
    assert decided(seen(posting=a, hold=True), posted={"a": True}) == []


def test_nothing_is_done_for_a_move_that_needs_an_operator() -> None:
    a = posting("a")
    assert decided(seen(state=State.NEEDS_OPERATOR, posting=a)) == []
    assert decided(seen(state=State.NEEDS_OPERATOR, posting=a), posted={"a": False}) == [Withdraw("a")]


def test_the_policy_of_a_move_acts_unless_the_move_is_held() -> None:
    overdue = NOW - dt.timedelta(days=1)
    waiting = Waiting(move="m", policy="deadline", deadline=overdue, source="host1", destination="host2")
    assert decided(seen(state=State.VERIFYING, waiting=waiting)) == [EndWait("m", "confirm", overdue)]
    assert decided(seen(state=State.VERIFYING, waiting=waiting, hold=True)) == []
    assert decided(seen(state=State.RUNNING)) == []


def test_a_server_is_deleted_once_the_flows_of_its_move_have_ended() -> None:
    """R0-24, R1-32: its flow is filed once, and needs no room."""
    flow = posting("d", urgent=True)
    assert decided(seen(state=State.DELETING)) == [Delete("m")]
    assert decided(seen(state=State.DELETING, posting=flow), limit=0) == [Post(flow)]
    assert decided(seen(state=State.DELETING, posting=flow), posted={"d": True}) == []


def test_what_waits_for_the_database_of_its_cell_takes_no_room_and_stays_offered() -> None:
    """Whoever may run goes on; what waits is tried again meanwhile, and needs no room to be offered anew."""
    a = posting("a")
    begun = [seen(f"w{n}", state=State.RUNNING, posting=posting(f"w{n}"), waits_for_cell=True) for n in range(3)]
    assert decided(*begun, seen(posting=a), posted={"w0": False, "w1": False, "w2": False}, limit=1) == [Post(a)]
    assert decided(*begun, posted={"w0": False, "w1": False, "a": True}, limit=1) == [Post(posting("w2"))]
