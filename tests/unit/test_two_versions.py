"""A flow is run, undone and settled by the version of its graph that it began with, whichever is the newest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs import engine_rig
from support.rigs.engine_rig import MIGRATE, Crash, Rig, Toy, embedded_rig

from droveway.engines.operations import move_requests, settling
from droveway.errors import NotFound, StepError
from droveway.flows import registry
from droveway.persistence.journal import moves


class Sync(Toy):
    """The step that the second version has more."""


SECOND = dataclasses.replace(MIGRATE, version=2, tried=(Sync, *MIGRATE.tried))


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def stopped_at(rig: Rig, mark: str) -> str:
    """A flow of the first version whose conductor died at this run of a step."""

    def die(_ctx: Any) -> None:
        raise Crash

    move = rig.submit()
    rig.post(move)
    rig.world.hooks[mark] = die
    dying = rig.host()
    with pytest.raises(Crash):
        dying.turn()
    dying.die()
    rig.world.hooks.clear()
    rig.world.log.clear()
    return move


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be two versions, of which the second is the newest."""
    for graphs in (engine_rig.GRAPHS, registry.GRAPHS):
        monkeypatch.setitem(graphs, ("migrate", 1), MIGRATE)
        monkeypatch.setitem(graphs, ("migrate", 2), SECOND)
    assert registry.latest("migrate") is SECOND


def test_a_flow_of_the_first_version_goes_on_beside_the_second(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = stopped_at(rig, "x copy")
    plant(monkeypatch)
    later = rig.submit(SECOND, server="s2")
    rig.post(later)
    rig.host().turn()
    assert {rig.move(each).state for each in (move, later)} == {"verifying"}
    assert "sync" not in {row.step for row in rig.history(move)}
    assert "sync" in {row.step for row in rig.history(later)}


def test_a_flow_of_the_first_version_is_cancelled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = stopped_at(rig, "x copy")
    plant(monkeypatch)
    with rig.journal.write() as session:
        move_requests.cancel(session, moves.get(session, move, lock=True))
    rig.host().turn()
    assert rig.move(move).state == "cancelled"
    assert rig.world.held == set()
    assert "sync" not in {row.step for row in rig.history(move)}


@pytest.mark.parametrize(("done", "ran"), [(True, []), (False, ["x finish"])])
def test_a_flow_of_the_first_version_is_settled_and_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, done: bool, ran: list[str]
) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x finish", *[StepError("the shelf fell over") for _ in range(1000)])
    rig.host().turn()
    assert rig.move(move).state == "needs-operator"
    rig.world.failures.clear()
    rig.world.log.clear()
    plant(monkeypatch)
    with rig.journal.write() as session:
        settling.settle(session, move, "finish", done=done, who="ann", reason="looked at the shelf")
    rig.post(move)
    rig.host().turn()
    assert (rig.move(move).state, rig.world.log) == ("verifying", ran)


def test_no_cancel_is_taken_for_a_version_that_is_gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could say where its point of no return is; `upgrade check` has said that the release may not take over."""
    move = stopped_at(rig, "x copy")
    plant(monkeypatch)
    left = {key: graph for key, graph in registry.GRAPHS.items() if key != ("migrate", 1)}
    monkeypatch.setattr(registry, "GRAPHS", left)
    with pytest.raises(NotFound, match="this release does not know flow migrate@1"), rig.journal.write() as session:
        move_requests.cancel(session, moves.get(session, move, lock=True))
    assert not rig.move(move).cancel_requested


def test_the_point_of_no_return_is_that_of_its_own_version(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the first version is cancelled though the second one cannot be from there on."""
    move = stopped_at(rig, "x copy")
    early = dataclasses.replace(SECOND, no_return=Sync)
    monkeypatch.setitem(registry.GRAPHS, ("migrate", 2), early)
    monkeypatch.setitem(registry.GRAPHS, ("migrate", 1), MIGRATE)
    assert "copy" in registry.past_no_return("migrate", 2)
    with rig.journal.write() as session:
        move_requests.cancel(session, moves.get(session, move, lock=True))
    assert rig.move(move).cancel_requested
