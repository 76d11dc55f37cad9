"""The journal's moves: one per server, legal state changes, requests and the ends of flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.rows import journal_moves

from droveway.errors import Conflict, IllegalTransition, NotFound, Refused
from droveway.persistence.database import Database, database_time, sqlite_url
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.moves import FlowRef, Request
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import JournalBase, Move, MoveAttempt, MoveStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORWARD = FlowRef("migrate", 1, "d" * 64)
CONFIRM = FlowRef("confirm", 1, "c" * 64)
REVERT = FlowRef("revert", 1, "b" * 64)
ELSEWHERE = FlowRef("cross_cell_revert_elsewhere", 1, "a" * 64)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Database]:
    database = Database(sqlite_url(tmp_path / "journal.sqlite"))
    JournalBase.metadata.create_all(database.engine)
    yield database
    database.close()


def submit(journal: Database, server: str = "11111111-1111-4111-8111-111111111111", *, kind: str = "migrate") -> Move:
    request = Request(
        kind=kind, server=server, server_name="web", cell="cell1", host="host1", old_flavor="s", new_flavor="s"
    )
    with journal.write() as session:
        return moves.submit(session, request, FORWARD)


def set_state(journal: Database, move: Move, *states: State) -> Move:
    with journal.write() as session:
        row = moves.get(session, move.id)
        for state in states:
            moves.change_state(session, row, state)
        return row


def test_a_server_has_one_move_at_a_time(journal: Database) -> None:
    submit(journal)
    with pytest.raises(Refused, match="one move at a time"):
        submit(journal)
    with journal.read() as session:
        assert len(journal_moves.listing(session)) == 1


def test_an_ended_move_frees_its_server(journal: Database) -> None:
    first = submit(journal)
    ended = set_state(journal, first, State.RUNNING, State.FAILED)
    assert ended.active_server is None
    assert ended.ended_at is not None
    assert submit(journal).id != first.id


def test_each_change_of_state_is_dated_by_the_clock_of_the_database(journal: Database) -> None:
    move = submit(journal)
    with journal.read() as session:
        before = database_time(session)
    row = set_state(journal, move, State.RUNNING)
    assert (row.updated_at >= before, row.ended_at) == (True, None)


def test_an_illegal_transition_is_refused(journal: Database) -> None:
    move = submit(journal)
    with pytest.raises(IllegalTransition):
        set_state(journal, move, State.DONE)


def test_a_state_change_is_a_compare_and_swap(journal: Database) -> None:
    move = submit(journal)
    set_state(journal, move, State.RUNNING)
    with pytest.raises(Conflict), journal.write() as session:
        moves.change_state(session, session.merge(move, load=False), State.RUNNING)


def test_the_forward_flow_ends_verifying_with_a_deadline(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING)
    assert move.flow_uuid
    with journal.write() as session:
        moves.end_flow(session, move.id, move.flow_uuid, done=True)
        moves.end_flow(session, move.id, move.flow_uuid, done=True)
    with journal.read() as session:
        after = moves.get(session, move.id)
    assert (after.state, after.flow_uuid) == (State.VERIFYING, None)
    assert after.deadline is not None
    assert (after.deadline - after.updated_at).total_seconds() == 86400


def test_an_undone_flow_keeps_the_reason(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING, State.UNDOING)
    assert move.flow_uuid
    with journal.write() as session:
        session.add(
            MoveStep(
                move_id=move.id,
                flow_uuid=move.flow_uuid,
                flow="migrate",
                step="claim",
                direction="execute",
                started_at=move.created_at,
                error={"code": "no-capacity", "message": "host2 is full", "host": ""},
            )
        )
        session.flush()
        moves.end_flow(session, move.id, move.flow_uuid, done=False)
    with journal.read() as session:
        after = moves.get(session, move.id)
    assert (after.state, after.error_code, after.error) == (State.FAILED, "no-capacity", "host2 is full")


def test_confirm_needs_a_move_that_verifies(journal: Database) -> None:
    move = submit(journal)
    with pytest.raises(Refused, match="only a move that is verifying can be confirmed"), journal.write() as session:
        requests.end_wait(session, moves.get(session, move.id), CONFIRM)


@pytest.mark.parametrize("state", [State.RUNNING, State.NEEDS_OPERATOR, State.FAILED])
@pytest.mark.parametrize("kind", ["shelve", "unshelve", "cross_cell_unshelve"])
def test_a_move_that_never_waits_is_not_said_to_be_confirmed_or_reverted_later(
    journal: Database, kind: str, state: State
) -> None:
    """Nobody waits in vain for it to be verifying, such as when the host of an unshelve is down."""
    move = set_state(journal, submit(journal, kind=kind), *dict.fromkeys((State.RUNNING, state)))
    for flow, past in ((REVERT, "reverted"), (CONFIRM, "confirmed")):
        with pytest.raises(Refused) as refused, journal.write() as session:
            requests.end_wait(session, moves.get(session, move.id), flow)
        assert str(refused.value) == (
            f"move {move.id[:8]} of web is {state}, and a move of kind {kind} is never {past}, since it ends without a "
            f"wait: droveway move show {move.id[:8]} tells what can be done"
        )


def test_no_cancel_promises_a_revert_of_a_move_that_never_waits(journal: Database) -> None:
    move = set_state(journal, submit(journal, kind="unshelve"), State.RUNNING)
    with journal.write() as session:
        moves.get(session, move.id).step = "start_guest"
    with pytest.raises(Refused, match="past its point of no return") as refused, journal.write() as session:
        requests.cancel(session, moves.get(session, move.id), frozenset({"start_guest"}))
    assert str(refused.value).endswith(f"so it can only go on: droveway move show {move.id[:8]} tells how")


def test_two_confirms_file_one_flow(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING, State.VERIFYING)
    with journal.write() as session:
        requests.end_wait(session, moves.get(session, move.id), CONFIRM)
    with pytest.raises(Refused), journal.write() as session:
        requests.end_wait(session, moves.get(session, move.id), CONFIRM)


def test_cancel_is_refused_past_the_point_of_no_return(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING)
    with journal.write() as session:
        moves.get(session, move.id).step = "start_guest"
    with pytest.raises(Refused, match="point of no return"), journal.write() as session:
        requests.cancel(session, moves.get(session, move.id), frozenset({"start_guest"}))


def test_cancel_of_a_queued_move_ends_it_at_once(journal: Database) -> None:
    move = submit(journal)
    with journal.write() as session:
        requests.cancel(session, moves.get(session, move.id), frozenset())
    with journal.read() as session:
        assert moves.get(session, move.id).state == State.CANCELLED


DELETE = FlowRef("delete", 1, "e" * 64)


def end(journal: Database, move: Move, *, done: bool) -> Move:
    """The move's flow ends."""
    with journal.write() as session:
        flow = moves.get(session, move.id).flow_uuid
        assert flow
        moves.end_flow(session, move.id, flow, done=done)
    with journal.read() as session:
        return moves.get(session, move.id)


@pytest.mark.parametrize("policy", ["deadline", "auto", "healthy", "manual"])
def test_only_a_person_acts_after_a_revert_that_was_undone(journal: Database, policy: str) -> None:
    """After a confirm that was undone, the policy's time begins again."""
    move = set_state(journal, submit(journal), State.RUNNING)
    with journal.write() as session:
        moves.get(session, move.id).policy = policy
    end(journal, move, done=True)
    for flow, times in ((CONFIRM, () if policy == "manual" else (86400,)), (REVERT, ())):
        with journal.write() as session:
            requests.end_wait(session, moves.get(session, move.id), flow)
        waiting = end(journal, move, done=False)
        assert waiting.state == State.VERIFYING
        found = [(waiting.deadline - waiting.updated_at).total_seconds()] if waiting.deadline is not None else []
        assert found == list(times), flow


def wish_to_delete(journal: Database, move: Move) -> Move:
    with journal.write() as session:
        requests.delete(session, moves.get(session, move.id))
    with journal.read() as session:
        return moves.get(session, move.id)


def delete_now(journal: Database, move: Move) -> Move:
    """The keeper files the delete flow, twice; it ends."""
    with journal.write() as session:
        moves.begin_deletion(session, move.id, DELETE)
        moves.begin_deletion(session, move.id, DELETE)
    return end(journal, move, done=True)


def test_a_forward_move_whose_server_is_deleted_is_undone_deleted_and_cancelled(journal: Database) -> None:
    """R1-32."""
    move = set_state(journal, submit(journal), State.RUNNING)
    wish_to_delete(journal, move)
    deleting = end(journal, move, done=False)
    assert (deleting.state, deleting.flow_uuid, deleting.error_code) == (State.DELETING, None, "deleted")
    with journal.read() as session:
        assert moves.home(session, deleting) == "host1"
    ended = delete_now(journal, move)
    assert (ended.state, ended.error_code, ended.active_server) == (State.CANCELLED, "deleted", None)


@pytest.mark.parametrize("asked_first", [False, True])
def test_a_move_that_waits_is_confirmed_before_its_server_is_deleted(journal: Database, asked_first: bool) -> None:
    """R0-24: at once; again and again while the confirm is undone, and nothing else may be asked for."""
    move = set_state(journal, submit(journal), State.RUNNING)
    if asked_first:
        wish_to_delete(journal, move)
    waiting = end(journal, move, done=True)
    if not asked_first:
        waiting = wish_to_delete(journal, waiting)
    assert waiting.state == State.VERIFYING
    assert waiting.deadline == waiting.updated_at
    for done in (False, True):
        for refused in (
            lambda s, row: requests.end_wait(s, row, REVERT),
            lambda s, row: requests.cancel(s, row, set()),
        ):
            with pytest.raises(Refused, match="is being deleted"), journal.write() as session:
                refused(session, moves.get(session, move.id))
        with journal.write() as session:
            row = moves.get(session, move.id)
            row.dest_host = "host2"
            requests.end_wait(session, row, CONFIRM)
        waiting = end(journal, move, done=done)
        if not done:
            assert waiting.deadline is not None
            assert (waiting.deadline - waiting.updated_at).total_seconds() == moves.CONFIRM_AGAIN
    assert waiting.state == State.DELETING
    with journal.read() as session:
        assert moves.home(session, waiting) == "host2"
    assert delete_now(journal, move).state == State.DONE


@pytest.mark.parametrize(("done", "home"), [(True, "host4"), (False, "host2")], ids=["done", "undone"])
def test_after_a_revert_to_another_host_the_server_is_on_the_last_that_was_tried(
    journal: Database, home: str, *, done: bool
) -> None:
    """The delete asks that host, also where the server's rows are gone already and can name none."""
    move = end(journal, set_state(journal, submit(journal), State.RUNNING), done=True)
    with journal.write() as session:
        row = moves.get(session, move.id)
        row.dest_host, known = "host2", {"cell": "cell1", "node": "n", "provider": "p", "request": {}}
        known["created_at"] = row.created_at
        for number, host in ((1, "host2"), (-1, "host3"), (-2, "host4")):
            session.add(MoveAttempt(move_id=move.id, attempt=number, host=host, **known))
        requests.end_wait(session, row, ELSEWHERE)
    wish_to_delete(journal, move)
    waiting = end(journal, move, done=done)
    if not done:
        with journal.write() as session:
            requests.end_wait(session, moves.get(session, move.id), CONFIRM)
        waiting = end(journal, move, done=True)
    assert waiting.state == State.DELETING
    with journal.read() as session:
        assert moves.home(session, waiting) == home


def test_a_parked_delete_is_entered_again_when_it_is_asked_for_again(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING)
    for again in (False, True):
        with journal.write() as session:
            moves.park(session, move.id, "start-unknown", "nobody can say whether it runs")
        assert wish_to_delete(journal, move).state == (State.RUNNING if again else State.NEEDS_OPERATOR)
        if not again:
            with journal.write() as session:
                requests.retry(session, moves.get(session, move.id))


def test_retry_goes_back_to_where_the_move_was_parked(journal: Database) -> None:
    move = set_state(journal, submit(journal), State.RUNNING)
    with journal.write() as session:
        moves.park(session, move.id, "start-unknown", "nobody can say whether it runs")
    with journal.write() as session:
        row = moves.get(session, move.id)
        assert row.state == State.NEEDS_OPERATOR
        requests.retry(session, row)
        assert (row.state, row.error) == (State.RUNNING, None)


def test_a_move_is_found_by_the_first_letters_of_its_id(journal: Database) -> None:
    move = submit(journal)
    with journal.read() as session:
        assert moves.find(session, move.id[:6]).id == move.id
        with pytest.raises(NotFound):
            moves.find(session, "zzzz")
