"""What the keeper reads of a queue, and what it admits of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.rigs.engine_rig import CONFIRM, Rig, embedded_rig, reference
from support.rigs.plain_keeper import PlainKeeper
from support.rows.long_queue import fill

from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.admission import Limits
from droveway.engines.keeper.keeper import Keeper, Post, read_snapshot
from droveway.engines.keeper.queue import foreign, waits_for
from droveway.persistence.journal import daemons, freezes
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move, MoveFlow

RACKS = {"h1": {"r1"}, "h2": {"r1"}, "h3": {"r2"}}


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def make_keeper(rig: Rig, limits: Limits) -> Keeper:
    session = rig.session()
    board = MoveBoard(session)
    return PlainKeeper(
        session, rig.journal, board, lambda _kind: reference(CONFIRM), limits=limits, racks=lambda: RACKS
    )


def ask(rig: Rig, *sources: str, **columns: Any) -> list[str]:
    """Ask for a move from each of these hosts; their ids."""
    made = [rig.submit(server=f"s{number}-{source}-{columns}") for number, source in enumerate(sources)]
    with rig.journal.write() as session:
        for move, source in zip(made, sources, strict=True):
            session.execute(sa.update(Move).where(Move.id == move).values(source_host=source, **columns))
    return made


def offered(keeper: Keeper) -> list[str]:
    return [action.posting.move for action in keeper.round() if isinstance(action, Post)]


def test_one_round_finds_what_may_run_behind_a_crowd_that_has_to_wait(rig: Rig) -> None:
    crowd = ask(rig, *["h1"] * 40)
    behind = ask(rig, "h2", "h3", "h2")
    keeper = make_keeper(rig, Limits(running=4, host=1))
    assert offered(keeper) == [crowd[0], behind[0], behind[1]]
    assert offered(keeper) == []


@pytest.mark.parametrize("limits", [Limits(running=4, host=1), Limits(running=4, rack=1)])
def test_a_crowd_that_has_to_wait_is_not_read(rig: Rig, limits: Limits) -> None:
    first, *_crowd = ask(rig, *["h1"] * 40)
    keeper = make_keeper(rig, limits)
    assert offered(keeper) == [first]
    (behind,) = ask(rig, "h3")
    read: list[str] = []
    event.listen(rig.journal.engine, "before_cursor_execute", lambda *facts: read.append(facts[2]))
    assert offered(keeper) == [behind]
    assert len([text for text in read if "LIMIT" in text]) == 2, "the oldest, and a page of what may run"


def conductor(rig: Rig, *knows: str, name: str = "c") -> None:
    """A conductor that is up and knows these graphs."""
    with rig.journal.write() as session:
        daemons.beat(session, daemons.DaemonStatus(name=name, host="h", pid=1, version="1", knows=knows))


def test_what_no_conductor_can_run_takes_no_room_in_the_queue_and_says_so(rig: Rig) -> None:
    crowd, (behind,) = ask(rig, *["h1"] * 30), ask(rig, "h4")
    with rig.journal.write() as session:
        session.execute(sa.update(MoveFlow).where(MoveFlow.move_id.in_(crowd)).values(version=7, digest="later"))
        flow = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == behind)).one()
        known = daemons.exactly(flow.kind, flow.version, flow.digest)
    keeper, limits = make_keeper(rig, Limits(running=1)), Limits(running=1)
    conductor(rig, f"{flow.kind}@{flow.version}", known)
    assert offered(keeper) == [behind]
    told = waits_for(rig.journal, crowd[0], limits, RACKS)
    assert told is not None
    assert told.startswith(f"a conductor that knows {flow.kind}@7 as it was filed")
    with rig.journal.write() as session:
        session.execute(sa.update(Move).where(Move.id == behind).values(state="failed", flow_uuid=None))
    assert offered(keeper) == []
    # A conductor of a release that tells no digests is believed by the name alone.
    conductor(rig, f"{flow.kind}@7", name="later")
    assert offered(keeper) == [crowd[0]]
    assert "a conductor that knows" not in (waits_for(rig.journal, crowd[1], limits, RACKS) or "")


def test_a_flow_that_has_begun_and_that_nobody_knows_any_more_keeps_no_room(rig: Rig) -> None:
    begun, waits = ask(rig, "h1", "h2")
    with rig.journal.write() as session:
        session.execute(sa.update(Move).where(Move.id == begun).values(state="running"))
        session.execute(sa.update(MoveFlow).where(MoveFlow.move_id == begun).values(digest="other"))
        flow = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == waits)).one()
    keeper = make_keeper(rig, Limits(running=1))
    conductor(rig, f"{flow.kind}@{flow.version}", daemons.exactly(flow.kind, flow.version, flow.digest))
    assert offered(keeper) == [waits]
    assert "a conductor that knows" in (foreign(rig.journal, begun) or "")
    assert foreign(rig.journal, waits) is None


CELL_AWAY = "the database of cell c1, which does not answer"


def begin(rig: Rig, moves: list[str], **columns: Any) -> None:
    """Let these moves have begun, and wait for their cell's database."""
    with rig.journal.write() as session:
        given = {"state": "running", "waits_for": CELL_AWAY, **columns}
        session.execute(sa.update(Move).where(Move.id.in_(moves)).values(**given))


def test_moves_that_wait_for_their_cells_database_give_their_room_to_those_of_other_cells(rig: Rig) -> None:
    """Of the queue what is of that cell is passed, and says so; nothing of it is offered in vain."""
    begun, crowd, other = ask(rig, "h1", "h1"), ask(rig, *["h2"] * 30), ask(rig, "h3", "h3", source_cell="c2")
    keeper, limits = make_keeper(rig, Limits(running=2)), Limits(running=2)
    assert offered(keeper) == begun
    assert offered(keeper) == []
    begin(rig, begun)
    assert waits_for(rig.journal, crowd[0], limits, RACKS) == (
        "the database of cell c1, for which moves that have begun wait too"
    )
    assert "the database" not in (waits_for(rig.journal, other[0], limits, RACKS) or "")
    assert offered(keeper) == other
    assert offered(keeper) == []
    begin(rig, begun, waits_for=None)
    assert offered(keeper) == [], "they have their room again, beside those that took it"
    for gone in (begun, other):
        begin(rig, gone, state="failed", waits_for=None, flow_uuid=None)
    assert offered(keeper) == crowd[:2]


def test_a_move_that_waits_for_its_target_cell_keeps_nothing_of_its_source_cell(rig: Rig) -> None:
    """What is to be passed in the queue is of the cell that does not answer."""
    begun, queued = ask(rig, "h1"), ask(rig, "h2")
    of_target = ask(rig, "h3", source_cell="c2")
    keeper = make_keeper(rig, Limits(running=2))
    with rig.journal.write() as session:
        waits = {"state": "running", "waits_for": "the database of cell c2, which does not answer (since now)"}
        session.execute(sa.update(Move).where(Move.id.in_(begun)).values(**waits))
    assert offered(keeper) == [*begun, *queued]
    assert of_target[0] not in offered(keeper)


@pytest.mark.parametrize("columns", [{"hold": True}, {"state": "needs-operator"}])
def test_nobody_waits_for_a_cell_because_of_a_move_that_nobody_tries(rig: Rig, columns: dict[str, Any]) -> None:
    begun, queued = ask(rig, "h1"), ask(rig, "h2")
    begin(rig, begun, **columns)
    assert offered(make_keeper(rig, Limits(running=1))) == queued


def test_who_has_claimed_it_has_its_room(rig: Rig) -> None:
    begun = ask(rig, "h1")
    keeper = make_keeper(rig, Limits(running=1))
    assert offered(keeper) == begun
    host = rig.host()
    (job,) = host.jobs()
    host.board.claim(job, "c")
    begin(rig, begun)
    ask(rig, "h3", source_cell="c2")
    assert offered(keeper) == []


def test_a_move_whose_target_is_frozen_is_not_offered(rig: Rig) -> None:
    """So that nobody is surprised on a host that is worked on: the source alone is not all that a freeze is about."""
    waits, (goes,) = ask(rig, "h1", target_host="h2"), ask(rig, "h3")
    with rig.journal.write() as session:
        freezes.freeze(session, "host", "h2", who="me", reason=None)
    keeper = make_keeper(rig, Limits(running=4))
    assert offered(keeper) == [goes]
    with rig.journal.write() as session:
        freezes.thaw(session, "host", "h2")
    assert offered(keeper) == waits


def test_a_rack_and_a_cell_have_limits_of_their_own(rig: Rig) -> None:
    first, _second, third = ask(rig, "h1", "h2", "h3")
    assert offered(make_keeper(rig, Limits(rack=1))) == [first, third]
    (elsewhere,) = ask(rig, "h4", source_cell="c2")
    assert offered(make_keeper(rig, Limits(cell=2))) == [elsewhere]


def test_a_move_to_a_host_that_is_full_waits_whoever_asked_later(rig: Rig) -> None:
    (runs,) = ask(rig, "h2")
    waits, later = (*ask(rig, "h1", target_host="h2"), *ask(rig, "h1"))
    (other,) = ask(rig, "h3")
    keeper = make_keeper(rig, Limits(host=1))
    assert offered(keeper) == [runs, other]
    assert offered(keeper) == [], "there is room on h1, which is kept"
    with rig.journal.write() as session:
        session.execute(sa.update(Move).where(Move.id == runs).values(state="failed", flow_uuid=None))
    assert offered(keeper) == [waits]
    assert later not in offered(keeper)


def test_what_is_read_does_not_grow_with_the_queue(rig: Rig) -> None:
    """Of 2,000 moves in the queue the keeper reads those that it could admit, of those that wait for a person none."""
    for state in (State.QUEUED, State.VERIFYING, State.DONE):
        fill(rig.journal, 2000, state)
    session = rig.session()
    board = MoveBoard(session)
    assert len(read_snapshot(rig.journal, board, session, Limits(running=5)).moves) == 5
    plans: list[str] = []

    def explain(connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if text.startswith("SELECT moves.id"):
            asked = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters)
            plans.extend(row[3] for row in asked)

    event.listen(rig.journal.engine, "before_cursor_execute", explain)
    read_snapshot(rig.journal, board, session, Limits(running=5))
    assert [plan for plan in plans if plan.startswith(("SCAN m", "SCAN c"))] == []
    assert [plan for plan in plans if plan.startswith("SEARCH")][:2] == [
        "SEARCH moves USING INDEX ix_moves_queue (state=?)",
        "SEARCH move_flows USING INDEX sqlite_autoindex_move_flows_1 (uuid=?) LEFT-JOIN",
    ]


def test_a_queue_of_held_moves_lets_others_pass(rig: Rig) -> None:
    ask(rig, *["h1"] * 20, hold=True)
    (free,) = ask(rig, "h1")
    assert offered(make_keeper(rig, Limits(running=2))) == [free]


def test_a_queued_move_says_what_it_waits_for(rig: Rig) -> None:
    ran, first, waits = ask(rig, "h1", "h1", "h1")
    (elsewhere,) = ask(rig, "h3")
    (held,) = ask(rig, "h3", hold=True)
    with rig.journal.write() as session:
        session.execute(sa.update(Move).where(Move.id == ran).values(state="running"))

    def told(move: str, limits: Limits) -> str | None:
        return waits_for(rig.journal, move, limits, RACKS)

    assert told(waits, Limits(running=9, host=2)) == (
        "room on host h1: 2 run from or to it at a time ([keeper] per_host), and 1 of those that wait were asked for "
        "before it"
    )
    assert str(told(waits, Limits(running=2, host=9))).startswith(
        "its turn: 2 run at a time ([keeper] max_running), and 1"
    )
    assert str(told(first, Limits(rack=1))).startswith(
        "room in rack r1: 1 run from or to it at a time ([keeper] per_rack)"
    )
    assert str(told(first, Limits(cell=1))).startswith("room in cell c1: 1 ")
    for move in (first, elsewhere):
        assert str(told(move, Limits(running=9, host=2))).startswith("a conductor: ")
    assert told(held, Limits()) is None
    assert told(ran, Limits()) is None
