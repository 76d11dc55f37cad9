"""An older claim that wakes up: at the fences of the journal, of cells, of ZooKeeper and of workers it does nothing.

Each is asked directly, at every point at which it may have fallen asleep.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rigs.engine_rig import Rig, embedded_rig
from support.rigs.worker_rig import MOVE, Cloud, cloud

from droveway import clocks
from droveway.clients.zookeeper import TOMBSTONE, Coordination, command_path, epoch_path
from droveway.engines.conductor import fencing
from droveway.errors import Fenced
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal.tables import Claim, Intent, Move
from droveway.persistence.nova.cell import CellBase, Instance, InstanceSystemMetadata
from droveway.persistence.nova.cells import FENCE_KEY, Cells
from droveway.wire import commands
from droveway.workers.fence import Fence

SERVER = "5d1b8d5e-3f6c-4c77-9d0c-0d7f3a6f2f10"
OLDER, NEWER = 5, 6


@pytest.fixture(name="cells")
def fixture_cells(tmp_path: Path) -> Iterator[Cells]:
    """One cell with one server."""
    database = Database(sqlite_url(tmp_path / "cell.sqlite"))
    CellBase.metadata.create_all(database.engine)
    with database.write() as session:
        session.add(Instance(uuid=SERVER, deleted=0, memory_mb=256))
    made = Cells({"cell1": database})
    yield made
    made.close()


def fences(cells: Cells) -> list[str | None]:
    with cells.database("cell1").read() as session:
        query = sa.select(InstanceSystemMetadata.value).where(InstanceSystemMetadata.key == FENCE_KEY)
        return list(session.scalars(query))


def memory(cells: Cells) -> int | None:
    with cells.database("cell1").read() as session:
        return session.scalar(sa.select(Instance.memory_mb))


def write(cells: Cells, epoch: int, memory_mb: int) -> None:
    with cells.transaction("cell1", SERVER, epoch) as session:
        session.execute(sa.update(Instance).values(memory_mb=memory_mb))


class TestCells:
    def test_before_it_raised_its_fence(self, cells: Cells) -> None:
        cells.raise_fence("cell1", SERVER, NEWER)
        with pytest.raises(Fenced, match="a newer epoch stands"):
            cells.raise_fence("cell1", SERVER, OLDER)
        assert fences(cells) == [str(NEWER)]

    def test_before_it_wrote(self, cells: Cells) -> None:
        cells.raise_fence("cell1", SERVER, OLDER)
        cells.raise_fence("cell1", SERVER, NEWER)
        with pytest.raises(Fenced, match=f"epoch {OLDER} no longer stands"):
            write(cells, OLDER, 1)
        assert memory(cells) == 256
        write(cells, NEWER, 512)
        assert memory(cells) == 512

    def test_of_a_cell_that_was_away_when_the_newer_one_began(self, cells: Cells) -> None:
        """Rule 6: who claims while the cell is away raises its fence there before anything else."""
        cells.raise_fence("cell1", SERVER, OLDER)
        claimed = cells.of_claim(SERVER, NEWER, {"cell1"})
        with claimed.database("cell1").read():
            assert fences(cells) == [str(NEWER)]
        with pytest.raises(Fenced):
            write(cells, OLDER, 1)
        write(claimed, NEWER, 512)
        assert memory(cells) == 512
        slept = cells.of_claim(SERVER, OLDER, {"cell1"})
        with pytest.raises(Fenced, match="a newer epoch stands"):
            slept.database("cell1")

    def test_a_cell_that_is_declared_down_is_not_asked(self, cells: Cells) -> None:
        """Though its database answers; its hosts count as declared down with it."""
        cells.raise_fence("cell1", SERVER, OLDER)
        claimed = cells.of_claim(SERVER, NEWER, {"cell1"}, {"cell1"})
        with pytest.raises(sa.exc.OperationalError, match="cell cell1 is declared down"):
            claimed.database("cell1")
        assert (cells.away(["cell1"]), claimed.away(["cell1"])) == ([], ["cell1"])
        assert claimed.is_declared_down("cell1", "host1")
        assert fences(cells) == [str(OLDER)]

    def test_before_it_dropped_its_fence(self, cells: Cells) -> None:
        cells.raise_fence("cell1", SERVER, OLDER)
        cells.raise_fence("cell1", SERVER, NEWER)
        cells.drop_fence("cell1", SERVER, OLDER)
        assert fences(cells) == [str(NEWER)]
        write(cells, NEWER, 512)

    def test_when_the_newer_one_has_ended(self, cells: Cells) -> None:
        """A fence that is not there fences everybody."""
        cells.raise_fence("cell1", SERVER, OLDER)
        cells.raise_fence("cell1", SERVER, NEWER)
        cells.drop_fence("cell1", SERVER, NEWER)
        with pytest.raises(Fenced):
            write(cells, OLDER, 1)
        assert (fences(cells), memory(cells)) == ([], 256)


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def _give_a_reason(rig: Rig, move: str, epoch: int) -> None:
    with rig.journal.write() as session:
        fencing.check(session, move, epoch)
        session.execute(sa.update(Move).values(reason="written by the older one"))


class TestJournal:
    def test_it_writes_nothing_and_gives_nothing_of_the_newer_one_back(self, rig: Rig) -> None:
        move = rig.submit()
        older, newer = (fencing.claim(rig.journal, move, who) for who in ("older", "newer"))
        with pytest.raises(Fenced):
            _give_a_reason(rig, move, older)
        fencing.release(rig.journal, move, older)
        with rig.journal.read() as session:
            claim = session.get_one(Claim, move)
            assert (claim.epoch, claim.owner, claim.released_at) == (newer, "newer", None)
            assert session.scalar(sa.select(Move.reason)) != "written by the older one"

    def test_it_calls_no_call_of_the_newer_one_late(self, rig: Rig) -> None:
        move = rig.submit()
        older, newer = (fencing.claim(rig.journal, move, who) for who in ("older", "newer"))
        with rig.journal.write() as session:
            known = {"move_id": move, "service": "network", "call": "bind", "created_at": clocks.now()}
            session.add_all(Intent(epoch=epoch, state="open", **known) for epoch in (older, newer))
        fencing.mark_late(rig.journal, move, older)
        with rig.journal.read() as session:
            states = dict(session.execute(sa.select(Intent.epoch, Intent.state)).tuples().all())
        assert states == {older: "late", newer: "open"}


def standing(session: Coordination, move: str) -> bytes | None:
    found = session.get(epoch_path(move), sync=True)
    return None if found is None else found[0]


class TestZooKeeper:
    def test_before_it_raised_the_epoch(self, rig: Rig) -> None:
        session = rig.session()
        fencing.mirror(session, MOVE, NEWER)
        with pytest.raises(Fenced, match=f"ZooKeeper has {NEWER}"):
            fencing.mirror(session, MOVE, OLDER)
        assert standing(session, MOVE) == str(NEWER).encode()

    def test_before_it_posted_a_command(self, rig: Rig) -> None:
        session, path = rig.session(), command_path("h1", "flow.stop_guest.execute.1")
        old = fencing.mirror(session, MOVE, OLDER)
        new = fencing.mirror(session, MOVE, NEWER)
        with pytest.raises(Fenced, match="a newer claim stands"):
            session.create_guarded(path, b"{}", guard=epoch_path(MOVE), version=old)
        assert session.get(path) is None
        assert session.create_guarded(path, b"{}", guard=epoch_path(MOVE), version=new)

    def test_before_it_buried_the_move(self, rig: Rig) -> None:
        session = rig.session()
        fencing.mirror(session, MOVE, OLDER)
        fencing.mirror(session, MOVE, NEWER)
        fencing.write_tombstone(session, MOVE, OLDER)
        assert standing(session, MOVE) == str(NEWER).encode()

    def test_when_the_newer_one_has_ended(self, rig: Rig) -> None:
        session = rig.session()
        old = fencing.mirror(session, MOVE, OLDER)
        fencing.mirror(session, MOVE, NEWER)
        fencing.write_tombstone(session, MOVE, NEWER)
        with pytest.raises(Fenced):
            fencing.mirror(session, MOVE, OLDER)
        with pytest.raises(Fenced):
            session.create_guarded(command_path("h1", "k"), b"{}", guard=epoch_path(MOVE), version=old)
        assert standing(session, MOVE) == TOMBSTONE

    def test_it_opens_no_grave(self, rig: Rig) -> None:
        move, session = rig.submit(), rig.session()
        older, newer = (fencing.claim(rig.journal, move, who) for who in ("older", "newer"))
        fencing.mirror(session, move, newer)
        fencing.write_tombstone(session, move, newer)
        with pytest.raises(Fenced):
            fencing.clear_tombstone(rig.journal, session, move, older)
        assert standing(session, move) == TOMBSTONE


class TestLocks:
    def test_a_job_that_it_had_locked_is_not_given_back_for_the_newer_one(self, rig: Rig) -> None:
        rig.post(rig.submit())
        first = rig.host()
        (job,) = first.jobs()
        first.board.claim(job, "older")
        held = first.coordination.session
        second = rig.host()
        first.die()
        (again,) = second.jobs()
        second.board.claim(again, "newer")
        owner = second.board.lock_owner(again)
        assert owner == second.coordination.session
        assert owner != held
        assert second.board.lock_owner(job) != held, "what the older one asks tells it that the lock is another's"


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        yield made


class TestWorkers:
    def test_a_command_of_an_older_claim_passes_no_fence(self, site: Cloud) -> None:
        command = site.command("alpha", "stop_guest", commands.StopGuest(grace=0, restart=False))
        host = site.hosts["alpha"]
        with site.asked(command):
            Fence(host.coordination, host.journal, command).check()
            site.set_epoch(command.epoch + 1)
            with pytest.raises(Fenced):
                Fence(host.coordination, host.journal, command).check()

    def test_nor_one_whose_epoch_is_below_what_the_host_has_seen(self, site: Cloud) -> None:
        """ZooKeeper was wiped and filled anew from a journal that was put back: the host remembers."""
        command = site.command("alpha", "stop_guest", commands.StopGuest(grace=0, restart=False))
        host = site.hosts["alpha"]
        assert host.journal.raise_epoch(command.move, command.epoch + 1)
        with site.asked(command), pytest.raises(Fenced, match="a higher epoch"):
            Fence(host.coordination, host.journal, command).check()
