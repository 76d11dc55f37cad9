"""What a host says is a stranger's word: bounded, harmless, and believed of that host alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from droveway import wire
from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines import incarnation
from droveway.errors import Refused
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import JournalBase

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
    error = wire.decode_result(data).error
    assert error is not None
    assert error["message"].startswith("\\x1b[2J\\x1b]0;pwned\\x07 move done, all is well")
    assert error["message"].isprintable()
    assert len(error["message"]) < 2 * wire.LONGEST_ERROR


@pytest.mark.parametrize("field", ["version", "hypervisor", "address"])
def test_a_registration_that_a_terminal_would_obey_is_refused(field: str) -> None:
    with pytest.raises(Refused):
        wire.decode(registration("host1", **{field: HOSTILE}), wire.Registration)


def test_a_registration_names_no_more_actions_than_there_can_be() -> None:
    with pytest.raises(Refused):
        wire.decode(registration("host1", actions=["x@1"] * (wire.MOST_ACTIONS + 1)), wire.Registration)


@pytest.mark.parametrize("data", [b'{"host": 1}', b"no json", registration("host2", epoch=2**62)])
def test_a_registration_that_is_none_keeps_no_conductor_from_starting(
    session: Coordination, journal: Database, data: bytes
) -> None:
    """Neither one that cannot be read, nor one that speaks for another host."""
    stand(session, "host1", data)
    incarnation.begin(session, journal)
    assert incarnation.workers(session) == []


def test_who_tells_of_a_later_journal_is_named(session: Coordination, journal: Database) -> None:
    stand(session, "host1", registration("host1", epoch=3))
    stand(session, "host2", registration("host2", epoch=2**62))
    with pytest.raises(incarnation.Restored, match=f"the worker of host host2 has seen {2**62}"):
        incarnation.begin(session, journal)
