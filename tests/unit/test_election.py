"""Keepers over one embedded ZooKeeper: one leads, and another as soon as it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.engine_rig import CONFIRM, Rig, embedded_rig, reference, until
from support.rigs.plain_keeper import PlainKeeper

from droveway.clients.zookeeper import ROOT, Coordination
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.election import LEADER, Election

LONG = 300.0


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


class Rounds(PlainKeeper):
    """Counts its rounds."""

    def __init__(self, rig: Rig) -> None:
        self.session = rig.session()
        super().__init__(
            self.session, rig.journal, MoveBoard(self.session), lambda _kind: reference(CONFIRM), every=LONG
        )
        self.rounds = 0

    def round(self) -> list[Any]:
        self.rounds += 1
        return super().round()


@pytest.fixture(name="keepers")
def fixture_keepers(rig: Rig) -> Iterator[tuple[Rounds, Rounds]]:
    first, second = Rounds(rig), Rounds(rig)
    first.start()
    until(lambda: first.rounds)
    second.start()
    yield first, second
    for keeper in (first, second):
        keeper.stop()


def leader(session: Coordination) -> int | None:
    return session.owner(LEADER)


def test_one_of_them_decides(rig: Rig, keepers: tuple[Rounds, Rounds]) -> None:
    first, second = keepers
    for number in range(3):
        before = first.rounds
        rig.submit(server=f"s{number}")
        first.wake()
        second.wake()
        until(lambda before=before: first.rounds > before)
    assert second.rounds == 0
    assert leader(second.session) == first.session.session


def test_who_stops_leaves_the_lead_to_the_next_at_once(rig: Rig, keepers: tuple[Rounds, Rounds]) -> None:
    first, second = keepers
    move = rig.submit()
    first.stop()
    until(lambda: rig.move(move).flow_uuid in MoveBoard(second.session).posted())
    until(lambda: second.rounds)
    assert leader(second.session) == second.session.session


def test_the_session_that_ends_takes_the_lead_with_it(rig: Rig, keepers: tuple[Rounds, Rounds]) -> None:
    first, second = keepers
    first.session.close()
    until(lambda: second.rounds)
    assert leader(second.session) == second.session.session
    move = rig.submit()
    second.wake()
    until(lambda: rig.move(move).flow_uuid in MoveBoard(second.session).posted())


def test_a_wiped_zookeeper_has_a_leader_again(rig: Rig, keepers: tuple[Rounds, Rounds]) -> None:
    first, second = keepers
    rig.session().delete(ROOT)
    found = until(lambda: leader(first.session))
    assert found in (first.session.session, second.session.session)
    move = rig.submit()
    for keeper in keepers:
        keeper.wake()
    until(lambda: rig.move(move).flow_uuid in MoveBoard(second.session).posted())


def test_it_is_asked_who_leads_when_there_is_news_only(rig: Rig) -> None:
    session = rig.session()
    election, wakeup = Election(session), threading.Event()
    election.start(wakeup.set)
    assert election.leads()
    assert wakeup.wait(20)
    assert election.leads()
    asked: list[str] = []
    session.create = lambda path, *_facts, **_options: bool(asked.append(path))  # type: ignore[method-assign]
    assert election.leads()
    assert asked == []
    rig.session().delete(LEADER)
    until(lambda: not election.leads())
    assert asked == [LEADER]
    election.stop()
