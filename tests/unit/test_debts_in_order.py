"""In which order debts are paid: what a host owes for one move builds on what it owes for it already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.rigs.engine_rig import FakeWorker, Rig, embedded_rig

from droveway.clients.zookeeper import worker_path
from droveway.engines.conductor import fencing
from droveway.engines.conductor.owed import Owed
from droveway.engines.keeper.debts import COLLECTS, Collector
from droveway.errors import StepError
from droveway.flows.before import Before
from droveway.persistence.journal import debts, moves
from droveway.persistence.journal.tables import Debt
from droveway.wire import codec, commands
from droveway.wire.levels import SINCE


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


@pytest.fixture(name="host")
def fixture_host(rig: Rig) -> Iterator[FakeWorker]:
    """A worker that does all that it is asked."""
    session = rig.session()
    worker = FakeWorker(session, "h2", lambda _command: {})
    known = [f"{name}@{commands.ACTION_VERSION}" for name in commands.ACTIONS]
    told = commands.Registration(host="h2", version="1", hypervisor="toy", actions=known, address="unix:/none")
    session.put(worker_path("h2"), codec.encode(told))
    yield worker
    worker.stop()


def rested(rig: Rig, server: str) -> str:
    """A move that rests, for which a conductor was at work."""
    move = rig.submit(server=server)
    fencing.release(rig.journal, move, fencing.claim(rig.journal, move, "conductor"))
    with rig.journal.write() as session:
        found = moves.get(session, move)
        found.state, found.flow_uuid = "verifying", None
    return move


def owe(rig: Rig, move: str, step: str, action: str = "set_aside", after: str = "") -> int:
    with rig.journal.read() as session:
        flow = session.scalars(moves.NEWEST_FLOW, {"move": move}).one().uuid
    owed = msgspec.to_builtins(Owed(flow=flow, step=step, sequence=1, details={}, deadline=5.0, after=after))
    with rig.journal.write() as session:
        debts.owe(session, move_id=move, host="h2", action=action, details=owed, waits=bool(after))
        return max(debt.id for debt in session.query(Debt))


def settled(rig: Rig) -> set[int]:
    with rig.journal.read() as session:
        return {debt.id for debt in session.query(Debt) if debt.settled_at is not None}


def collect(rig: Rig, **options: Any) -> None:
    Collector(rig.session(), rig.journal, every=1.0, **options).round()


def refuse(step: str) -> Any:
    def act(command: commands.Command) -> dict[str, Any]:
        if command.step == step:
            raise StepError("not now", code="test")
        return {}

    return act


def test_a_debt_that_fails_holds_back_the_hosts_later_ones_of_that_move_alone(rig: Rig, host: FakeWorker) -> None:
    one, other = rested(rig, "s1"), rested(rig, "s2")
    owe(rig, one, "first")
    of_other = owe(rig, other, "first_of_other")
    owe(rig, one, "later")
    host.act = refuse("first")
    collect(rig)
    assert [command.step for command in host.seen] == ["first", "first_of_other"]
    assert settled(rig) == {of_other}


def test_a_debt_that_may_not_be_asked_for_yet_holds_back_the_hosts_later_ones(rig: Rig, host: FakeWorker) -> None:
    """Operators hold the level down while workers of an earlier release are up."""
    newer = max(commands.ACTIONS, key=lambda name: SINCE[name])
    move = rested(rig, "s1")
    owe(rig, move, "first", newer)
    owe(rig, move, "later")
    collect(rig, level=SINCE[newer] - 1)
    assert (host.seen, settled(rig)) == ([], set())


@pytest.mark.parametrize("up", [False, True])
def test_a_debt_that_waits_for_another_host_holds_back_nothing(
    rig: Rig, host: FakeWorker, monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    """That host may never come back, and the move is to end all the same."""
    move = rested(rig, "s1")
    owe(rig, move, "first", after="h1")
    later = owe(rig, move, "later")
    if up:
        record: Any = Before
        monkeypatch.setattr("droveway.engines.keeper.debts.before", lambda _move: record)
        monkeypatch.setattr(Collector, "_why_kept", lambda *_facts, **_more: "host h1 does not hold the disks")
        told = commands.Registration(host="h1", version="1", hypervisor="toy", actions=[], address="unix:/none")
        rig.session().create(worker_path("h1"), codec.encode(told))
    collect(rig)
    assert [command.step for command in host.seen] == ["later"]
    assert settled(rig) == {later}


def test_a_collector_that_lost_its_session_leaves_the_node_of_the_next_one(rig: Rig, host: FakeWorker) -> None:
    owe(rig, rested(rig, "s1"), "first")
    next_one = rig.session()

    def act(_command: commands.Command) -> dict[str, Any]:
        if next_one.owner(COLLECTS) != next_one.session:
            # The first one's session ends, and its node with it.
            next_one.delete(COLLECTS)
            next_one.create(COLLECTS, b"", ephemeral=True)
        return {}

    host.act = act
    collect(rig)
    assert len(settled(rig)) == 1
    assert next_one.owner(COLLECTS) == next_one.session
