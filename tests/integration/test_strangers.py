"""A hostile worker with a valid certificate: whatever it writes where it may write, only its own server's move suffers.

Each lie is a point: generated, not listed.  It is judged by what the product did not compute: raw rows of the
neighbour, the log of what guests ran, and the words that are stored for operators.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from droveway import wire
from droveway.clients.zookeeper import (
    Coordination,
    connect_embedded,
    embedded_store,
    progress_path,
    worker_path,
)
from droveway.doctor import workers as doctor
from droveway.engines import incarnation
from droveway.engines.commands import Commands
from droveway.engines.roster import Roster
from droveway.errors import Refused
from droveway.persistence import daemons
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import EPOCH, Counter, JournalBase

HOST = "host2"

_WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["\x1b[2J\x1b]0;pwned\x07", "a\nb", "\x00", "x" * 20_000, "../../etc", "\u202eevil", "{}", "'; --"]
    ),
)
_NUMBERS = st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**70), 10**30])
_PLAIN = st.one_of(st.none(), st.booleans(), _NUMBERS, _WORDS, st.floats(allow_nan=False, allow_infinity=False))
_TREES = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3), max_leaves=6
)


class Tally:
    """Points, and those that held."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self.points = self.held = 0

    def run(self, tell: Callable[[], None]) -> None:
        """Tell every lie, and record how many held, whatever became of the last one."""
        try:
            tell()
        finally:
            self._record("two faults", ("strangers", self.points, self.held))


@pytest.fixture(name="tally")
def fixture_tally(record_property: Callable[[str, object], None]) -> Tally:
    return Tally(record_property)


def settings(examples: int) -> Any:
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[tuple[Coordination, Database]]:
    """A ZooKeeper and a journal that stands at epoch 9, with an honest host beside the hostile one."""
    session, journal = connect_embedded(embedded_store()), Database(sqlite_url(tmp_path / "journal.sqlite"))
    JournalBase.metadata.create_all(journal.engine)
    with journal.write() as rows:
        rows.merge(Counter(name=EPOCH, value=9))
    incarnation.begin(session, journal)
    honest = wire.Registration(host="host1", version="1", hypervisor="sandbox", actions=["a@1"], address="x", epoch=9)
    session.create(worker_path("host1"), wire.encode(honest))
    yield session, journal
    session.close()
    journal.close()


_REGISTRATIONS = st.fixed_dictionaries(
    {
        "host": st.sampled_from([HOST, "host1", "\x1b[2J"]) | _PLAIN,
        "version": _WORDS | _PLAIN,
        "hypervisor": _WORDS,
        "actions": st.lists(_WORDS, max_size=5) | _TREES,
        "address": _WORDS | st.just("unix:/run/docker.sock"),
    },
    optional={"epoch": _NUMBERS, "step": _NUMBERS, "pid": _NUMBERS, "boot": _WORDS, "same_host_cold_migrate": _PLAIN},
)


def written(found: Any) -> bytes:
    return found if isinstance(found, bytes) else json.dumps(found).encode()


def workers_rows(journal: Database) -> dict[str, tuple[object, ...]]:
    with journal.read() as rows:
        return {
            row.name: (row.pid, row.version, tuple(row.knows), row.address, row.gone_at)
            for row, _ in daemons.listing(rows, daemons.WORKER)
        }


def test_no_registration_harms_another_host_or_a_conductor(site: tuple[Coordination, Database], tally: Tally) -> None:
    session, journal = site
    Roster(session, journal, name="c", version="1").round()
    honest = workers_rows(journal)["host1"]

    @settings(60)
    @hypothesis.given(_REGISTRATIONS | _TREES | st.binary(max_size=60))
    def tell(found: Any) -> None:
        tally.points += 1
        session.delete(worker_path(HOST))
        session.create(worker_path(HOST), written(found))
        incarnation.begin(session, journal)
        Roster(session, journal, name="c", version="1").round()
        rows = workers_rows(journal)
        assert rows["host1"] == honest
        assert set(rows) <= {"host1", HOST}
        for text in (str(each) for row in rows.values() for each in row):
            assert text.isprintable()
        finding = doctor._registered(HOST, written(found), incarnation.given(session, journal)[0])
        assert finding.detail.isprintable()
        assert incarnation.given(session, journal) == (9, 9)
        tally.held += 1

    tally.run(tell)


_PROGRESS = st.fixed_dictionaries(
    {"key": _WORDS | st.just("k"), "done": _NUMBERS, "total": _NUMBERS}, optional={"kept": _NUMBERS, "seconds": _PLAIN}
)


def test_no_word_of_progress_is_believed_that_is_none(site: tuple[Coordination, Database], tally: Tally) -> None:
    session, _ = site
    commands = Commands(session, flow_uuid="f", epoch=9, guard="", version=0)
    path = progress_path(HOST, "k")

    @settings(40)
    @hypothesis.given(_PROGRESS | _TREES | st.binary(max_size=60))
    def tell(found: Any) -> None:
        tally.points += 1
        session.delete(path)
        session.create(path, written(found))
        told = commands.progress(HOST, "k")
        if told is not None:
            assert 0 <= told.done < 2**63
            assert 0 <= told.total < 2**63
            assert 0 <= told.kept < 2**63
            assert 0 <= told.seconds <= 1e9
        tally.held += 1

    tally.run(tell)


_PAGES = st.fixed_dictionaries(
    {
        "id": st.just("q") | _WORDS,
        "host": st.sampled_from([HOST, "host1"]) | _WORDS,
        "reading": st.just("r") | _WORDS,
        "number": st.just(0) | _NUMBERS,
        "pages": st.just(1) | _NUMBERS,
    },
    optional={
        "held": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["guest", "entry", "store", "connection", "x"])},
                optional={
                    "server": _WORDS, "name": _WORDS, "running": _PLAIN, "defined": st.booleans(), "vcpus": _NUMBERS,
                    "memory_mb": _NUMBERS, "move": _WORDS, "volume": _WORDS, "path": _WORDS, "id": _WORDS,
                    "directory": st.booleans(), "files": st.lists(_WORDS, max_size=3),
                },
            ),
            max_size=3,
        ) | _TREES,
        "error": _WORDS,
    },
)  # fmt: skip


def test_no_page_of_an_inquiry_is_taken_that_a_terminal_would_obey(tally: Tally) -> None:
    asked = wire.Inquiry(id="q", host=HOST, question="list_guests", seconds=1.0)

    @settings(60)
    @hypothesis.given(_PAGES | _TREES | st.binary(max_size=60))
    def tell(found: Any) -> None:
        tally.points += 1
        try:
            page = wire.decode_page(written(found), asked, 0)
        except Refused as error:
            said = wire.harmless(str(error))
        else:
            said = ""
            assert (page.id, page.host) == ("q", HOST)
            for text in _texts(msgspec.to_builtins(page)):
                assert not re.search(r"[\x00-\x1f\x7f-\x9f]", text)
                assert len(text) <= 2000
        assert said.isprintable()
        tally.held += 1

    tally.run(tell)


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(found, list):
        for value in found:
            yield from _texts(value)
