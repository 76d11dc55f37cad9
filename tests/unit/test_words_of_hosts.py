"""What a host says is a stranger's word: bounded, harmless, and believed of that host alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, step_path, worker_path
from droveway.doctor import workers as doctor
from droveway.engines.conductor import incarnation, registrations
from droveway.engines.keeper.daemon_registry import DaemonRegistry
from droveway.engines.operations import adoption
from droveway.errors import Refused
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import daemons
from droveway.persistence.journal.tables import Counter, JournalBase
from droveway.persistence.restored import EPOCH, Restored
from droveway.wire import codec, commands
from droveway.wire.values import LONGEST_ERROR

HOSTILE = "\x1b[2J\x1b]0;pwned\x07 move done,\n all is well"


@pytest.fixture(name="session")
def fixture_session() -> Any:
    session = connect_embedded(embedded_store())
    yield session
    session.close()


@pytest.fixture(name="journal")
def fixture_journal(tmp_path: Path) -> Any:
    journal = Database(sqlite_url(tmp_path / "journal.sqlite"))
    JournalBase.metadata.create_all(journal.engine)
    yield journal
    journal.close()


def registration(host: str, **facts: Any) -> bytes:
    known = {"host": host, "version": "1", "hypervisor": "sandbox", "actions": [], "address": "unix:/x", **facts}
    return msgspec.json.encode(known)


def stand(session: Coordination, host: str, data: bytes) -> None:
    session.create(worker_path(host), data)


def test_an_error_comes_in_one_bounded_line_that_no_terminal_obeys() -> None:
    said = {"code": "fault", "message": HOSTILE + "x" * 100_000}
    data = msgspec.json.encode({"key": "f.s.execute.1", "epoch": 1, "error": said})
    error = codec.decode_result(data).error
    assert error is not None
    assert error["message"].startswith("\\x1b[2J\\x1b]0;pwned\\x07 move done, all is well")
    assert error["message"].isprintable()
    assert len(error["message"]) <= LONGEST_ERROR


@pytest.mark.parametrize("field", ["version", "hypervisor", "address"])
def test_a_registration_that_a_terminal_would_obey_is_refused(field: str) -> None:
    with pytest.raises(Refused):
        codec.decode(registration("host1", **{field: HOSTILE}), commands.Registration)


def test_a_registration_names_no_more_actions_than_there_can_be() -> None:
    with pytest.raises(Refused):
        codec.decode(registration("host1", actions=["x@1"] * (commands.MOST_ACTIONS + 1)), commands.Registration)


@pytest.mark.parametrize(
    "data", [b'{"host": 1}', b"no json", b"[1, 2]", b"", b"null", registration("host2", epoch=2**62)]
)
def test_a_registration_that_is_none_keeps_no_conductor_from_starting(
    session: Coordination, journal: Database, data: bytes
) -> None:
    """Neither one that cannot be read, nor one that speaks for another host."""
    stand(session, "host1", data)
    incarnation.begin(session, journal)
    assert registrations.workers(session) == {}


def stands_at(session: Coordination, journal: Database, epoch: int) -> None:
    """The journal and ZooKeeper's mark of it."""
    with journal.write() as rows:
        rows.merge(Counter(name=EPOCH, value=epoch))
    incarnation.begin(session, journal)


LIES = [4, 2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("lie", LIES)
def test_no_host_can_have_seen_what_was_given_to_none(session: Coordination, journal: Database, lie: int) -> None:
    """S4: one host's certificate keeps no conductor from starting, and no journal from being adopted."""
    stands_at(session, journal, 3)
    stand(session, "host1", registration("host1", epoch=3, step=7))
    stand(session, "host2", registration("host2", epoch=lie, step=lie))
    incarnation.begin(session, journal)
    most, own = incarnation.given(session, journal)
    assert (most, own) == (3, 3)
    assert [each.host for each in incarnation.believed(registrations.workers(session).values(), most)] == ["host1"]
    adoption.adopt(adoption.OfInstallation(session, journal))
    with journal.read() as rows:
        counter = rows.get(Counter, EPOCH)
        assert counter is not None
        assert counter.value == 4
    incarnation.begin(session, journal)


@pytest.mark.parametrize("lie", [2**31, 2**62, 2**63 - 1])
def test_a_wiped_zookeeper_lets_a_host_tell_no_more_than_a_journal_can_lack(
    session: Coordination, journal: Database, lie: int
) -> None:
    stand(session, "host2", registration("host2", epoch=lie, step=lie))
    incarnation.begin(session, journal)
    session.delete(incarnation.MARK)
    adoption.adopt(adoption.OfInstallation(session, journal))
    with journal.read() as rows:
        counter = rows.get(Counter, EPOCH)
        assert counter is not None
        assert counter.value == 1


def test_who_tells_of_a_later_journal_is_named_with_the_way_out(session: Coordination, journal: Database) -> None:
    """Where ZooKeeper was wiped, the workers are the only ones who know of a journal that was restored."""
    stand(session, "host1", registration("host1", epoch=3))
    stand(session, "host2", registration("host2", epoch=9, step=9))
    with pytest.raises(Restored, match=r"host host2 has seen 9.*--ignore-host host2"):
        incarnation.begin(session, journal)
    with pytest.raises(Restored, match="host host1 has seen 3"):
        incarnation.begin(session, journal, ignored=["host2"])
    incarnation.begin(session, journal, ignored=["host1", "host2"])
    session.delete(incarnation.MARK)
    adoption.adopt(adoption.OfInstallation(session, journal, ["host2"]))
    assert incarnation.given(session, journal) == (4, 4)


def test_an_older_journal_is_recognised_beside_a_host_that_lies(session: Coordination, journal: Database) -> None:
    stands_at(session, journal, 9)
    with journal.write() as rows:
        rows.merge(Counter(name=EPOCH, value=3))
    stand(session, "host2", registration("host2", epoch=2**62))
    with pytest.raises(Restored, match="ZooKeeper has seen 9"):
        incarnation.begin(session, journal)


@pytest.mark.parametrize("data", [b"", b"{", b"[1, 2]", b'{"epoch": 3}'])
def test_marks_that_nobody_of_us_wrote_let_nothing_run_and_are_adopted(
    session: Coordination, journal: Database, data: bytes
) -> None:
    """Their errors name the adoption as the way out, so it must be one."""
    stands_at(session, journal, 3)
    session.put(incarnation.MARK, data)
    session.create(step_path("m"), data)
    with pytest.raises(Restored, match=r"the node /droveway/journal holds no mark .* droveway db adopt"):
        incarnation.begin(session, journal)
    with pytest.raises(Restored):
        incarnation.raise_mark(session, 1, 4)
    adoption.adopt(adoption.OfInstallation(session, journal))
    incarnation.begin(session, journal)
    assert incarnation.given(session, journal) == (4, 4)


def test_a_host_that_lies_is_no_worker_that_is_up(session: Coordination, journal: Database) -> None:
    stands_at(session, journal, 3)
    registry = DaemonRegistry(session, journal, name="c", version="1")
    stand(session, "host1", registration("host1", epoch=3))
    stand(session, "host2", registration("host2", epoch=3))
    registry.round()
    assert up(journal) == {"host1": True, "host2": True}
    session.delete(worker_path("host2"))
    stand(session, "host2", registration("host2", epoch=2**62))
    registry.round()
    assert up(journal) == {"host1": True, "host2": False}


def test_an_epoch_that_was_given_meanwhile_is_no_lie(session: Coordination, journal: Database) -> None:
    stands_at(session, journal, 3)
    registry = DaemonRegistry(session, journal, name="c", version="1")
    stand(session, "host1", registration("host1", epoch=3))
    registry.round()
    with journal.write() as rows:
        rows.merge(Counter(name=EPOCH, value=5))
    session.delete(worker_path("host1"))
    stand(session, "host1", registration("host1", epoch=5))
    registry.round()
    assert up(journal) == {"host1": True}


def up(journal: Database) -> dict[str, bool]:
    with journal.read() as rows:
        return {row.name: there for row, there in daemons.listing(rows, daemons.WORKER)}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (registration("host2", epoch=2**62), f"has seen epoch {2**62}; none above 3 was given"),
        (registration("host1"), "says that it is the one of host host1"),
        (b"[" * 100_000, "cannot be read"),
        (registration("host2", version="\0"), "cannot be read"),
        (b'{"host": 1}', "cannot be read"),
    ],
)
def test_the_doctor_names_who_lies(session: Coordination, journal: Database, data: bytes, said: str) -> None:
    stands_at(session, journal, 3)
    most = incarnation.given(session, journal)[0]
    finding = doctor._registered("host2", data, most)
    assert finding.code == "worker-untrue"
    assert said in finding.detail
    assert finding.detail.isprintable()
