"""A journal that is put back from an older copy under daemons that run: nothing goes on until it is adopted."""

from __future__ import annotations

from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.daemons.daemons import Daemon, Installation
from support.labs.small_lab import assert_balanced, file_flow, history, read_move, small_cloud, until
from support.servers import mariadb_server, postgres_server

from droveway.clients.zookeeper import ROOT, epoch_path
from droveway.engines.conductor import incarnation
from droveway.lab import cloud
from droveway.persistence.database import Database
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Counter, Move
from droveway.persistence.restored import EPOCH

SERVERS: Final = {"postgresql": postgres_server, "mariadb": mariadb_server}
REFUSES: Final = "the journal was restored from an older copy"

Copy = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return small_cloud("host1", "host2")


def tables(journal: Database) -> sa.MetaData:
    """TaskFlow's tables too."""
    found = sa.MetaData()
    found.reflect(journal.engine)
    return found


def copy(journal: Database) -> Copy:
    """What a backup of the journal has."""
    with journal.read() as session:
        return {
            table.name: [dict(row) for row in session.execute(sa.select(table)).mappings()]
            for table in tables(journal).sorted_tables
        }


def restore(journal: Database, kept: Copy) -> None:
    """Put the copy in the place of what is there, at one instant."""
    found = tables(journal).sorted_tables
    with journal.begin() as connection:
        for table in reversed(found):
            connection.execute(table.delete())
        for table in found:
            if kept[table.name]:
                connection.execute(table.insert(), kept[table.name])


def await_refusal(conductor: Daemon) -> None:
    until(lambda: REFUSES in conductor.text(), "that the conductor refuses to run anything")


@pytest.mark.parametrize("site", ["sqlite", "postgresql"], indirect=True)
def test_a_restored_journal_runs_nothing_until_it_is_adopted(site: Installation) -> None:
    """Moves that it has as unfinished are parked; those of the server that comes after run above all that was seen."""
    workers = site.workers()
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    kept = copy(site.lab.journal)
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE
    restore(site.lab.journal, kept)
    await_refusal(conductor)
    asked = site.droveway("move", "confirm", move)[0]
    assert asked in (0, 2), "it may be asked, and is not done"
    code, _, said = site.droveway("conductor", "run")
    assert code == 2
    assert REFUSES in said.splitlines()[-1]
    assert "droveway db adopt" in said.splitlines()[-1]
    assert site.session.children(f"{ROOT}/board") == []
    code, said, complained = site.droveway("db", "adopt")
    assert (code, complained) == (0, ""), complained
    assert said.startswith("adopted; 1 unfinished move parked\n")
    row = read_move(site.lab, move)
    assert (row.state, row.error_code) == (State.NEEDS_OPERATOR, "restored")
    assert history(site.lab, move)[-1].step == "adopt"
    assert site.session.get(epoch_path(move)) is None, "as it had ended, no claim on it would ever be mirrored"
    # The daemons that were there all the time go on by themselves.
    until(lambda: "no longer: it answers again" in conductor.text(), "that the conductor goes on")
    for worker in workers.values():
        assert worker.process.poll() is None


def test_what_comes_after_the_adoption_runs_above_all_that_was_seen(site: Installation) -> None:
    site.workers()
    conductor = site.conductor()
    kept = copy(site.lab.journal)
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE
    mark = incarnation.read_mark(site.session)
    assert mark is not None
    restore(site.lab.journal, kept)
    assert site.droveway("db", "adopt")[:2] == (0, "adopted; 0 unfinished moves parked\n")
    after = incarnation.read_mark(site.session)
    assert after is not None
    assert after.epoch > mark.epoch
    assert after.incarnation != mark.incarnation
    code, said, complained = site.droveway("move", "create", "web", "--wait")
    assert code == 0, said + complained
    with site.lab.journal.read() as session:
        (second,) = session.scalars(sa.select(Move)).all()
    assert second.state == State.VERIFYING
    assert history(site.lab, second.id)[0].seq > 0
    assert_balanced(site.lab)
    assert "Traceback" not in conductor.log.read_text()


def test_workers_know_a_restored_journal_when_zookeeper_is_new(site: Installation) -> None:
    workers = site.workers()
    conductor = site.conductor()
    kept = copy(site.lab.journal)
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING
    conductor.stop()
    for worker in workers.values():
        worker.stop()
    site.session.delete(ROOT)
    restore(site.lab.journal, kept)
    site.workers()
    code, _, said = site.droveway("conductor", "run")
    assert code == 2
    assert "the worker of host" in said.splitlines()[-1]
    with site.lab.journal.read() as session:
        before = session.get(Counter, EPOCH)
    assert site.droveway("db", "adopt")[0] == 0
    with site.lab.journal.read() as session:
        assert session.get_one(Counter, EPOCH).value > (before.value if before else 0)
    site.conductor("second")


def test_another_installations_journal_is_refused(site: Installation) -> None:
    first = site.conductor("first")
    first.stop()
    with site.lab.journal.write() as session:
        session.execute(sa.update(Counter).where(Counter.name == "incarnation").values(value=7))
    code, _, said = site.droveway("conductor", "run")
    assert code == 2
    assert "the journal is another one than this ZooKeeper's daemons have used last" in said.splitlines()[-1]
