"""What only the journal knows of a move is mirrored beside it, and comes back into an older copy that is adopted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.rigs.engine_rig import Crash, Rig, embedded_rig, fault

from droveway.clients.zookeeper import record_path
from droveway.engines.conductor import recorded
from droveway.engines.conductor.recorded import InZooKeeper, Recorded, RecordMirror, Tried
from droveway.engines.operations import adoption
from droveway.lab.records import InFolder
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import Move, MoveAttempt, MoveStep


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def tried(number: int, host: str) -> Tried:
    return Tried(attempt=number, cell="c1", host=host, node=host, provider=f"rp-{host}", request={})


def mirror_of(rig: Rig, move: str) -> Recorded | None:
    node = rig.session().get(record_path(move))
    return None if node is None else msgspec.json.decode(node[0], type=Recorded)


def change(rig: Rig, move: str, **columns: Any) -> None:
    with rig.journal.write() as session:
        session.execute(sa.update(Move).where(Move.id == move).values(**columns))


def attempts(rig: Rig, move: str) -> list[tuple[int, str]]:
    with rig.journal.read() as session:
        rows = session.scalars(sa.select(MoveAttempt).where(MoveAttempt.move_id == move).order_by(MoveAttempt.attempt))
        return [(row.attempt, row.host) for row in rows]


def take_back(rig: Rig, move: str, known: Recorded) -> bool:
    with rig.journal.write() as session:
        return recorded.take_back(session, moves.get(session, move), known)


def test_each_destination_is_mirrored_before_anything_of_it_acts(rig: Rig) -> None:
    """It fails on the first, so that the flow goes to the next."""
    move, seen = rig.submit(), []
    rig.world.hooks["x claim"] = lambda _ctx: seen.append(mirror_of(rig, move))
    rig.world.fail("x copy", fault())
    rig.post(move)
    rig.host().turn()
    assert [[each.host for each in found.tried] for found in seen if found is not None] == [["h2"], ["h2", "h3"]]
    assert rig.move(move).state == "verifying"


def test_the_server_as_it_was_is_mirrored_before_the_next_step_acts(rig: Rig) -> None:
    move, seen = rig.submit(), []
    rig.world.hooks["x prepare"] = lambda _ctx: change(rig, move, before={"vm_state": "active"}, storage="copy")
    rig.world.hooks["x choose_destinations"] = lambda _ctx: seen.append(mirror_of(rig, move))
    rig.post(move)
    rig.host().turn()
    assert seen == [Recorded(before={"vm_state": "active"}, storage="copy", tried=[])]


def test_what_is_mirrored_already_is_not_written_again(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.hooks["x copy"] = lambda _ctx: (_ for _ in ()).throw(Crash())
    with pytest.raises(Crash):
        rig.host().turn()
    session = rig.session()
    found = session.get(record_path(move))
    rig.world.hooks.clear()
    for open_session in rig._open[:-1]:
        open_session.close()
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert found is not None
    assert session.get(record_path(move)) == found


def test_what_is_mirrored_is_read_at_once(rig: Rig) -> None:
    """One statement, and one more once the move has a destination."""
    move = rig.submit()
    change(rig, move, before={"vm_state": "active"})
    asked: list[str] = []
    mirror = RecordMirror(InZooKeeper(rig.session()), rig.journal)
    with rig.journal.read() as session:
        row = moves.get(session, move, with_before=True)
    event.listen(rig.journal.engine, "before_cursor_execute", lambda *facts: asked.append(facts[2]))
    mirror.note(row)
    assert len(asked) == 1
    assert mirror_of(rig, move) == Recorded(before={"vm_state": "active"}, tried=[])


@pytest.mark.parametrize("kind", ["zookeeper", "folder"])
def test_a_claim_that_slept_writes_nothing_older(rig: Rig, tmp_path: Path, kind: str) -> None:
    """Somebody else mirrored more between its reading of the journal and its write."""
    move = rig.submit()
    store = InZooKeeper(rig.session()) if kind == "zookeeper" else InFolder(tmp_path / "recorded")
    newer = msgspec.json.encode(Recorded(tried=[tried(1, "h2")]))

    class Slept:
        asked = 0

        def get(self, name: str) -> tuple[bytes, int] | None:
            found = store.get(name)
            self.asked += 1
            if self.asked == 1:
                assert store.put(name, newer, None)
                change(rig, move, attempt=1, dest_cell="c1", dest_host="h2")
                with rig.journal.write() as session:
                    columns = msgspec.structs.asdict(tried(1, "h2"))
                    session.add(MoveAttempt(move_id=move, created_at=rig.move(move).created_at, **columns))
            return found

        def put(self, name: str, data: bytes, version: int | None) -> bool:
            return store.put(name, data, version)

        def moves(self) -> list[str]:
            return store.moves()

    slept = Slept()
    change(rig, move, before={"vm_state": "active"})
    with rig.journal.read() as session:
        row = moves.get(session, move)
        assert row.before is not None
    RecordMirror(slept, rig.journal).note(row)
    kept = recorded.mirrored(store)[move]
    assert slept.asked == 2
    assert (kept.before, [each.host for each in kept.tried]) == ({"vm_state": "active"}, ["h2"])


def test_an_older_journal_gets_back_what_it_lacks(rig: Rig) -> None:
    move = rig.submit()
    known = Recorded(before={"vm_state": "active"}, storage="shared", tried=[tried(1, "h2"), tried(2, "h3")])
    assert take_back(rig, move, known)
    row = rig.move(move)
    assert (row.attempt, row.dest_cell, row.dest_host, row.storage) == (2, "c1", "h3", "shared")
    assert attempts(rig, move) == [(1, "h2"), (2, "h3")]
    with rig.journal.read() as session:
        assert session.scalar(sa.select(Move.before)) == {"vm_state": "active"}


def test_what_a_journal_has_stands(rig: Rig) -> None:
    """The mirror may be the older one, where ZooKeeper was wiped."""
    move = rig.submit()
    assert take_back(rig, move, Recorded(storage="copy", tried=[tried(1, "h2")]))
    change(rig, move, before={"vm_state": "stopped"})
    assert not take_back(rig, move, Recorded(before={}, storage="shared", tried=[tried(1, "h9")]))
    assert (rig.move(move).storage, attempts(rig, move)) == ("copy", [(1, "h2")])
    with rig.journal.read() as session:
        assert session.scalar(sa.select(Move.before)) == {"vm_state": "stopped"}


def test_that_a_server_was_stopped_in_the_middle_is_mirrored_and_taken_back(rig: Rig) -> None:
    move, session = rig.submit(), rig.session()
    running, stopped = {"vm_state": "active"}, {"vm_state": "stopped", "stopped": True}
    mirror = RecordMirror(InZooKeeper(session), rig.journal)
    for record in (running, stopped):
        change(rig, move, before=record)
        with rig.journal.read() as reading:
            row = moves.get(reading, move)
            assert row.before is not None
        mirror.note(row)
    known = recorded.mirrored(InZooKeeper(session))[move]
    assert known.before == stopped
    change(rig, move, before=running)
    assert not take_back(rig, move, known)
    with rig.journal.read() as reading:
        assert reading.scalar(sa.select(Move.before)) == stopped


def test_what_nobody_of_us_wrote_is_not_taken(rig: Rig) -> None:
    move = rig.submit()
    session = rig.session()
    assert session.create(record_path(move), b"{")
    assert recorded.mirrored(InZooKeeper(session)) == {}
    adoption.adopt(adoption.OfInstallation(session, rig.journal))
    assert rig.move(move).state == "needs-operator"


def test_an_adoption_takes_back_what_is_mirrored(rig: Rig) -> None:
    move = rig.submit()
    session = rig.session()
    assert InZooKeeper(session).put(move, msgspec.json.encode(Recorded(before={}, tried=[tried(1, "h2")])), None)
    adoption.adopt(adoption.OfInstallation(session, rig.journal))
    assert (rig.move(move).attempt, attempts(rig, move)) == (1, [(1, "h2")])


def test_a_labs_mirrors_go_with_their_moves(tmp_path: Path) -> None:
    store = InFolder(tmp_path / "recorded")
    assert store.moves() == []
    assert store.get("a") is None
    assert store.put("a", b"1", None)
    assert not store.put("a", b"2", None), "there is one"
    assert store.put("a", b"2", 0)
    assert store.put("b", b"3", None)
    assert (store.get("a"), store.moves()) == ((b"2", 0), ["a", "b"])
    store.forget(["a", "unknown"])
    assert store.moves() == ["b"]


def behind(rig: Rig, *, flow: str = "") -> str:
    """Make a move whose journal was adopted in its flow, unless in another ``flow``, and which has been to h2."""
    move = rig.submit()
    take_back(rig, move, Recorded(tried=[tried(1, "h2")]))
    with rig.journal.write() as session:
        row = moves.get(session, move)
        now = row.created_at
        for step, uuid in (("adopt", flow or row.flow_uuid), ("other", flow)):
            if uuid:
                session.add(
                    MoveStep(
                        move_id=move,
                        flow_uuid=uuid,
                        flow="",
                        step=step,
                        direction="execute",
                        attempt=1,
                        started_at=now,
                        ended_at=now,
                    )
                )
    rig.post(move)
    return move


def undone(rig: Rig) -> list[str]:
    return [mark for mark in rig.world.log if mark.startswith("r ")]


def test_the_undo_of_an_adopted_flow_covers_what_may_be_done_beyond_it(rig: Rig) -> None:
    rig.world.held.add("copy@h2")
    rig.world.fail("x claim", fault(), fault())
    move = behind(rig)
    rig.host().turn()
    assert undone(rig)[:2] == ["r copy", "r claim"]
    assert rig.world.held == set()
    assert rig.move(move).state == "failed"
    rows = [(row.step, row.direction) for row in rig.history(move)]
    assert ("copy", "revert") in rows
    assert ("copy", "execute") not in rows, "the history tells of no run that was not"


def test_the_undo_of_any_other_flow_covers_what_was_done(rig: Rig) -> None:
    rig.world.fail("x claim", fault(), fault())
    behind(rig, flow="0f0f0f0f-0000-4000-8000-000000000000")
    rig.host().turn()
    assert undone(rig) == ["r claim", "r claim", "r prepare"]


@pytest.mark.parametrize("at", ["r copy", "r claim"])
def test_whoever_is_killed_in_such_an_undo_goes_on_with_it(rig: Rig, at: str) -> None:
    rig.world.held.add("copy@h2")
    rig.world.fail("x claim", *[fault(), fault()])
    move = behind(rig)

    def die(_ctx: Any) -> None:
        raise Crash

    rig.world.hooks[at] = die
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    rig.world.hooks.clear()
    rig.post(move)
    rig.host().turn()
    assert rig.move(move).state == "failed"
    assert rig.world.held == set()
    assert undone(rig).count("r copy") == (2 if at == "r copy" else 1)


def test_a_start_that_may_have_been_asked_for_is_not_cancelled(rig: Rig) -> None:
    """The journal that was put back does not know whether it was, and a cancel would be taken for the proof of it."""
    move = behind(rig)
    rig.world.hooks["x copy"] = lambda _ctx: change(rig, move, cancel_requested=True)
    rig.host().turn()
    assert (rig.move(move).state, undone(rig)) == ("verifying", [])
