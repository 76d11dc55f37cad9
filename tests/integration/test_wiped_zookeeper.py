"""ZooKeeper is a work list: wiped, it is rebuilt from the journal, and every move goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.engine_rig import CONFIRM, MIGRATE, Rig, embedded_rig, reference, until
from support.rigs.plain_keeper import PlainKeeper

from droveway.clients.zookeeper import BOARD, ROOT
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.keeper import Keeper
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.states import State


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def make_keeper(rig: Rig) -> Keeper:
    session = rig.session()
    return PlainKeeper(session, rig.journal, MoveBoard(session), lambda _kind: reference(CONFIRM))


def wipe(rig: Rig) -> None:
    session = rig.session()
    assert session.children(BOARD) != [] or session.children(ROOT) != []
    session.delete(ROOT)
    assert session.children(ROOT) == []


def test_a_queued_move_is_posted_anew(rig: Rig) -> None:
    keeper = make_keeper(rig)
    move = rig.submit(MIGRATE)
    assert len(keeper.round()) == 1
    wipe(rig)
    assert len(keeper.round()) == 1
    assert rig.host().turn() == [True]
    assert rig.move(move).state == State.VERIFYING


def test_a_held_move_goes_on_where_it_was_when_it_is_resumed(rig: Rig) -> None:
    keeper = make_keeper(rig)
    move = rig.submit(MIGRATE)
    keeper.round()

    def hold(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("copy", "execute", "after"):
            with rig.journal.write() as session:
                requests.pause(session, moves.get(session, move))

    rig.probe = hold
    assert rig.host().turn() == [True]
    assert rig.world.log[-1] == "x copy"
    wipe(rig)
    assert keeper.round() == []

    rig.probe = None
    with rig.journal.write() as session:
        requests.resume(session, moves.get(session, move))
    assert len(keeper.round()) == 1
    rig.world.log.clear()
    assert rig.host().turn() == [True]
    assert rig.world.log == ["x start_guest", "x finish"]
    assert rig.move(move).state == State.VERIFYING


def test_a_conductor_that_ran_all_the_while_takes_what_is_posted_anew(rig: Rig) -> None:
    keeper = make_keeper(rig)
    conductor = rig.conductor()
    conductor.start()
    first = rig.submit(MIGRATE, server="s1")
    keeper.round()
    until(lambda: rig.move(first).state == State.VERIFYING and conductor.busy() == 0)
    wipe(rig)
    second = rig.submit(MIGRATE, server="s2")
    keeper.round()
    until(lambda: rig.move(second).state == State.VERIFYING)
    conductor.stop()
    assert rig.move(second).flow_uuid is None
