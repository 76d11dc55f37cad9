"""What a confirm policy does, as a function of what is known; R2-10: no move waits for a person for ever."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from droveway.cli.view import spans
from droveway.engines.keeper import policies
from droveway.engines.keeper.health import Standard, judge
from droveway.engines.keeper.policies import CHECK_EVERY, FRESH, CheckHealth, EndWait, PolicyAction, Wait, Waiting
from droveway.engines.operations import move_requests
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import migrate, moves
from droveway.persistence.journal.policies import Health, note_wait, record_health
from droveway.persistence.journal.tables import Claim, Move
from droveway.wire import commands

NOW = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - as the journal's columns hold it
SECOND = dt.timedelta(seconds=1)
SOON, PAST = NOW + 60 * SECOND, NOW - dt.timedelta(days=1)
UP = frozenset({"host1", "host2"})
CHECK = CheckHealth("m")
LATE = (
    "the worker of host host2 has not said since the deadline whether the guest is healthy: it is asked again, and its "
    "log tells more"
)


def acts(policy: str, deadline: dt.datetime | None, up: frozenset[str] = UP, **facts: Any) -> list[PolicyAction]:
    waiting = Waiting(move="m", policy=policy, deadline=deadline, source="host1", destination="host2", **facts)
    return policies.act(waiting, up, NOW)


def end_wait(kind: Any, deadline: dt.datetime, *, for_delete: bool = False) -> list[PolicyAction]:
    return [EndWait("m", kind, deadline, for_delete=for_delete)]


@pytest.mark.parametrize("policy", ["deadline", "auto"])
def test_a_deadline_confirms_once_it_has_come(policy: str) -> None:
    assert acts(policy, SOON) == []
    assert acts(policy, None) == []
    assert acts(policy, NOW) == end_wait("confirm", NOW)
    assert acts(policy, PAST) == end_wait("confirm", PAST)


@pytest.mark.parametrize("away", ["host1", "host2"])
@pytest.mark.parametrize("policy", ["deadline", "auto"])
def test_a_confirm_that_is_due_waits_for_both_hosts_and_says_so_once(policy: str, away: str) -> None:
    (wait,) = acts(policy, PAST, UP - {away})
    assert isinstance(wait, Wait)
    assert wait.why is not None
    assert wait.why.startswith(f"the worker of host {away} is away, and its copy ")
    assert acts(policy, PAST, UP - {away}, waits_for=wait.why) == []
    assert acts(policy, PAST, UP, waits_for=wait.why) == end_wait("confirm", PAST)


@pytest.mark.parametrize("policy", ["deadline", "auto", "healthy", "manual"])
def test_no_policy_acts_on_a_move_without_a_deadline(policy: str) -> None:
    """Such a move's revert was undone, and a person decides; no command waits for that."""
    assert acts(policy, None, health=Health.PASSED, asked=NOW) == []
    waiting = Waiting(move="m", policy=policy, deadline=None, source="host1", destination="host2")
    assert policies.hosts(waiting, NOW) == set()
    move = Move(state="verifying", hold=False, policy=policy, deadline=None, delete_requested=False)
    assert not move_requests.can_go_on(move, NOW)


def test_a_server_that_is_to_be_deleted_is_confirmed_first_whatever_its_policy() -> None:
    for policy in ("healthy", "manual"):
        assert acts(policy, PAST, frozenset({"host1"}), deleting=True) == end_wait("confirm", PAST, for_delete=True)
        assert acts(policy, SOON, deleting=True) == []


@pytest.mark.parametrize("policy", ["deadline", "auto", "healthy", "manual"])
def test_no_confirm_of_a_server_that_is_to_be_deleted_is_filed_while_its_source_is_away(policy: str) -> None:
    """Each would fail, and the next one would be filed at once."""
    (wait,) = acts(policy, PAST, frozenset({"host2"}), deleting=True)
    assert isinstance(wait, Wait)
    assert wait.why is not None
    assert wait.why.startswith("the worker of host host1 is away")
    assert acts(policy, PAST, frozenset({"host2"}), deleting=True, waits_for=wait.why) == []
    assert acts(policy, PAST, frozenset({"host1"}), deleting=True, waits_for=wait.why) == end_wait(
        "confirm", PAST, for_delete=True
    )


def test_manual_waits_for_a_person_whatever_stands_in_the_journal() -> None:
    for deadline in (None, PAST):
        assert acts("manual", deadline) == []
        waits = Move(state="verifying", hold=False, policy="manual", deadline=deadline, delete_requested=False)
        assert not move_requests.can_go_on(waits, NOW)


def test_a_move_past_its_deadline_says_that_it_waits_for_an_answer_about_its_guest() -> None:
    """Whatever the last answer was: one from before the deadline does not count."""
    late = NOW - FRESH
    for told in ({}, {"health": Health.FAILING, "asked": late - SECOND}):
        facts: dict[str, Any] = {"answers_within": 60 * SECOND, **told}
        assert acts("healthy", late + SECOND, **facts) == [CHECK]
        assert acts("healthy", late, **facts) == [CHECK, Wait("m", LATE)]
        assert acts("healthy", late, waits_for=LATE, **facts) == [CHECK]
        move = Move(state="verifying", hold=False, policy="healthy", deadline=late, delete_requested=False)
        move.source_host, move.dest_host, move.waits_for = "host1", "host2", LATE
        assert move_requests.can_go_on(move, NOW)


def test_what_a_policy_may_not_do_is_shown_and_waited_for_by_no_command() -> None:
    why = "server web is ERROR"
    assert acts("deadline", PAST, refused=why) == [*end_wait("confirm", PAST), Wait("m", why)]
    assert acts("deadline", PAST, refused=why, waits_for=why) == end_wait("confirm", PAST)
    assert acts("healthy", SOON, health=Health.FAILING, asked=NOW, refused=why, waits_for=why) == []
    move = Move(state="verifying", hold=False, policy="deadline", deadline=PAST, delete_requested=False)
    move.source_host = "host1"
    assert move_requests.can_go_on(move, NOW)
    move.waits_for = why
    assert not move_requests.can_go_on(move, NOW)
    move.waits_for = "the worker of host host1 is away, and its copy is needed: start it"
    assert move_requests.can_go_on(move, NOW)


@pytest.mark.parametrize("policy", ["deadline", "healthy"])
def test_a_deadline_that_came_by_a_jump_of_the_clock_is_none_yet(policy: str) -> None:
    failing: dict[str, Any] = {"health": Health.FAILING, "asked": NOW} if policy == "healthy" else {}
    assert acts(policy, PAST, early=True, **failing) == []
    assert acts(policy, PAST, **failing) != []


def test_only_what_is_waited_for_by_a_clock_has_a_beginning() -> None:
    assert policies.since("deadline", NOW, 60, deleting=False) == NOW - 60 * SECOND
    assert policies.since("healthy", NOW, 60, deleting=False) == NOW - 60 * SECOND
    assert policies.since("deadline", NOW, 60, deleting=True) is None
    assert policies.since("auto", NOW, 60, deleting=False) is None
    assert policies.since("manual", None, 60, deleting=False) is None


def test_a_delete_that_has_said_what_it_waits_for_is_not_waited_for() -> None:
    """Whoever asked for it is told, and does not wait for a host that somebody has to start."""
    going = Move(
        state="verifying", hold=False, policy="deadline", deadline=PAST, delete_requested=True, source_host="host1"
    )
    assert move_requests.can_go_on(going, NOW, {"host1"})
    going.waits_for = "the worker of host host1 is away"
    assert move_requests.can_go_on(going, NOW)
    assert not move_requests.can_go_on(going, NOW, {"host1"})


@pytest.mark.parametrize("host", ["host1", "host2"])
def test_a_confirm_that_waits_for_a_host_is_waited_for_by_no_command(host: str) -> None:
    move = Move(state="verifying", hold=False, policy="deadline", deadline=PAST, delete_requested=False)
    move.source_host, move.dest_host, move.waits_for = "host1", "host2", f"the worker of host {host} is away"
    assert move_requests.can_go_on(move, NOW)
    assert not move_requests.can_go_on(move, NOW, {host})


def test_a_healthy_guest_is_confirmed_before_and_after_its_deadline() -> None:
    for deadline in (SOON, PAST):
        assert acts("healthy", deadline, health=Health.PASSED, asked=NOW) == end_wait("confirm", deadline)


def test_a_guest_that_is_not_healthy_is_reverted_at_its_deadline_and_not_before() -> None:
    assert acts("healthy", SOON, health=Health.FAILING, asked=NOW) == []
    assert acts("healthy", NOW, health=Health.FAILING, asked=NOW) == end_wait("revert", NOW)
    # What it was just before says nothing of what it is at the deadline.
    assert acts("healthy", NOW, health=Health.FAILING, asked=NOW - SECOND) == [CHECK]


def test_a_guest_is_asked_again_after_a_while() -> None:
    assert acts("healthy", SOON) == [CHECK]
    assert acts("healthy", PAST) == [CHECK, Wait("m", LATE)]
    assert acts("healthy", SOON, health=Health.FAILING, asked=NOW - CHECK_EVERY) == [CHECK]


@pytest.mark.parametrize("health", Health)
def test_an_old_answer_is_not_acted_on(health: Health) -> None:
    old = NOW - FRESH - SECOND
    assert acts("healthy", PAST - SECOND, health=health, asked=old, waits_for=LATE) == [CHECK]


@pytest.mark.parametrize("health", [None, *Health])
def test_nothing_is_decided_while_the_destination_cannot_be_asked(health: Health | None) -> None:
    (wait,) = acts("healthy", PAST, frozenset({"host1"}), health=health, asked=NOW)
    assert isinstance(wait, Wait)
    assert wait.why is not None
    assert "host2 is away" in wait.why
    assert acts("healthy", PAST, frozenset({"host1"}), waits_for=wait.why) == []
    assert acts("healthy", PAST, waits_for=wait.why) == [CHECK, Wait("m", LATE)]


@pytest.mark.parametrize("health", [None, *Health])
@pytest.mark.parametrize("deadline", [SOON, PAST])
def test_neither_confirm_nor_revert_begins_without_the_source(health: Health | None, deadline: dt.datetime) -> None:
    (wait,) = acts("healthy", deadline, frozenset({"host2"}), health=health, asked=NOW)
    assert isinstance(wait, Wait)
    assert wait.why is not None
    assert "host1 is away" in wait.why
    assert acts("healthy", deadline, waits_for=wait.why) == [CHECK, Wait("m", LATE if deadline == PAST else None)]


@pytest.mark.parametrize("health", [None, *Health])
@pytest.mark.parametrize("deadline", [SOON, PAST])
def test_a_worker_that_asks_in_another_way_is_not_asked(health: Health | None, deadline: dt.datetime) -> None:
    """Rule 10: one of an older release types into the guest's serial line."""
    waiting = Waiting(
        move="m", policy="healthy", deadline=deadline, source="host1", destination="host2", health=health, asked=NOW
    )
    why = "host host2 cannot be asked whether the guest is healthy: upgrade it"
    assert policies.act(waiting, UP, NOW, {"host2": "upgrade it"}) == [Wait("m", why)]
    asked = policies.act(waiting, UP, NOW, {"host3": "upgrade it"})
    assert Wait("m", why) not in asked


def test_a_host_that_was_declared_down_is_not_waited_for() -> None:
    """A source owes its part; a server on a dead host is confirmed by no policy, and the way back is named."""
    waiting = Waiting(move="m", policy="deadline", deadline=PAST, source="host1", destination="host2")
    gone = frozenset({"host1"})
    assert policies.act(waiting, UP - gone, NOW, gone=gone) == end_wait("confirm", PAST)
    gone = frozenset({"host2"})
    (wait,) = policies.act(waiting, UP - gone, NOW, gone=gone)
    assert isinstance(wait, Wait)
    assert "droveway move revert m brings it back from its disks on host1" in str(wait.why)
    deleting = dataclasses.replace(waiting, deleting=True)
    assert policies.act(deleting, UP - gone, NOW, gone=gone) == end_wait_deleted(PAST)


def test_with_both_hosts_dead_a_policy_waits_for_a_persons_confirm() -> None:
    waiting = Waiting(move="m", policy="deadline", deadline=PAST, source="host1", destination="host2")
    (wait,) = policies.act(waiting, frozenset(), NOW, gone=UP)
    assert isinstance(wait, Wait)
    assert "revert" not in str(wait.why)
    assert "droveway move confirm m leaves the server where it is" in str(wait.why)
    deleting = dataclasses.replace(waiting, deleting=True)
    assert policies.act(deleting, frozenset(), NOW, gone=UP) == end_wait_deleted(PAST)


def end_wait_deleted(deadline: dt.datetime) -> list[PolicyAction]:
    return [EndWait("m", "confirm", deadline, for_delete=True)]


def test_only_hosts_that_matter_are_looked_at() -> None:
    waiting = Waiting(move="m", policy="deadline", deadline=SOON, source="host1", destination="host2")
    assert policies.hosts(waiting, NOW) == set()
    assert policies.hosts(waiting, SOON) == UP
    assert policies.hosts(Waiting(**(vars(waiting) | {"policy": "healthy"})), NOW) == UP


def answer(**facts: Any) -> commands.Result:
    known: dict[str, Any] = {"running": True, "starts": 1, "running_for": 31.0, "answers": True}
    return commands.Result(key="k", epoch=1, value=msgspec.to_builtins(commands.GuestHealth(**(known | facts))))


@pytest.mark.parametrize(
    ("facts", "meant_to_run", "health", "said"),
    [
        ({}, True, Health.PASSED, "for 31 s and answers"),
        ({"answers": None}, True, Health.PASSED, "has no agent to ask"),
        ({"answers": False, "why": "it is mute"}, True, Health.FAILING, "fails its probe: it is mute"),
        ({"running_for": 29.0}, True, Health.FAILING, "29 s of 30 s"),
        ({"running": False, "answers": None}, True, Health.FAILING, "does not run"),
        ({"running": False, "answers": None}, False, Health.PASSED, "stopped, as it was"),
        ({"running_for": 1.0}, False, Health.FAILING, "1 s of 30 s"),
    ],
)
def test_what_an_answer_means(facts: dict[str, Any], meant_to_run: bool, health: Health, said: str) -> None:
    found, reason = judge(answer(**facts), Standard(healthy_after=30.0), meant_to_run=meant_to_run)
    assert found is health
    assert said in reason


def test_an_answer_that_is_an_error_is_no_health() -> None:
    error = {"code": "missing", "message": "host2 has no guest", "host": "host2"}
    result = commands.Result(key="k", epoch=1, error=error)
    assert judge(result, Standard(), meant_to_run=True) == (Health.FAILING, "host2 has no guest")


@dataclasses.dataclass
class Stored:
    """A journal with a move that waits for verification, last claimed under epoch 7."""

    journal: Database
    move: str

    def read(self) -> Move:
        with self.journal.read() as session:
            return moves.get(session, self.move)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    journal = Database(sqlite_url(tmp_path / "journal.sqlite"))
    migrate.sync(journal)
    request = moves.Request(
        kind="migrate", server="s", server_name="web", cell="cell1", host="host1", old_flavor="f", new_flavor="f"
    )
    with journal.write() as session:
        move = moves.submit(session, request, moves.FlowRef("migrate", 1, "d"))
        move.state, move.flow_uuid = "verifying", None
        session.add(Claim(move_id=move.id, epoch=7, owner="o", claimed_at=NOW))
    return Stored(journal, move.id)


def test_the_newest_answer_under_the_present_claim_is_kept(stored: Stored) -> None:
    with stored.journal.write() as session:
        assert not record_health(session, stored.move, Health.PASSED, "old claim", asked=NOW, epoch=6)
        assert record_health(session, stored.move, Health.FAILING, "off", asked=NOW, epoch=7)
        assert not record_health(session, stored.move, Health.PASSED, "late", asked=NOW - SECOND, epoch=7)
    move = stored.read()
    assert (move.health, move.health_reason, move.health_asked) == ("failing", "off", NOW)


def test_nothing_is_noted_on_a_move_that_waits_no_longer(stored: Stored) -> None:
    with stored.journal.write() as session:
        assert note_wait(session, stored.move, "host2")
        session.execute(sa.update(Move).values(state="confirming"))
        assert not note_wait(session, stored.move, None)
        assert not record_health(session, stored.move, Health.PASSED, "late", asked=NOW, epoch=7)
    move = stored.read()
    assert (move.waits_for, move.health) == ("host2", None)


def test_a_deadline_is_within_a_year() -> None:
    assert spans.seconds("5m") == 300
    assert spans.seconds("365d") == spans.LONGEST
    with pytest.raises(argparse.ArgumentTypeError, match="at most 365d"):
        spans.seconds("366d")
