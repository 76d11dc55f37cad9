"""Whether a release can go on with the flows that have begun: it names those of older graphs, and what it lacks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import second_version

from droveway.doctor import flows
from droveway.doctor.findings import FINE, Examined
from droveway.flows import registry
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal.tables import JournalBase, Move, MoveFlow

FIRST = registry.latest("resize").version
NEXT = FIRST + 1
MOVE = "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"
NOW = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - the databases' times have no zone


@pytest.fixture(name="journal")
def fixture_journal(tmp_path: Path) -> Iterator[Database]:
    made = Database(sqlite_url(tmp_path / "journal"))
    JournalBase.metadata.create_all(made.engine)
    with made.write() as session:
        columns = {"kind": "resize", "server": "web", "server_name": "web", "state": "running", "policy": "manual"}
        columns |= {"old_flavor": "small", "new_flavor": "large", "source_cell": "cell1", "source_host": "host1"}
        session.add(Move(id=MOVE, created_at=NOW, updated_at=NOW, **columns))
    yield made
    made.close()


def begin(journal: Database, kind: str, version: int, *, ended: bool = False, digest: str = "") -> None:
    """Let a flow of this graph have begun."""
    with journal.write() as session:
        number = session.query(MoveFlow).count()
        session.add(
            MoveFlow(
                uuid=f"flow-{number}",
                move_id=MOVE,
                kind=kind,
                version=version,
                digest=digest or registry.graph(kind, version).digest(),
                created_at=NOW,
                ended_at=NOW if ended else None,
            )
        )


def end_all(journal: Database) -> None:
    with journal.write() as session:
        session.query(MoveFlow).update({"ended_at": NOW})


def found(journal: Database) -> list[tuple[str, str, str]]:
    examined: Any = SimpleNamespace(site=SimpleNamespace(journal=journal))
    return [(each.code, each.subject, each.detail) for each in flows.check(cast("Examined", examined))]


def test_flows_of_the_newest_graphs_are_only_counted(journal: Database) -> None:
    begin(journal, "resize", FIRST)
    begin(journal, "confirm", registry.latest("confirm").version)
    begin(journal, "confirm", 1, ended=True)
    assert found(journal) == [(FINE, "flows", "this release can go on with all 2 running flows")]


def test_live_flows_of_an_older_graph_are_named(journal: Database) -> None:
    begin(journal, "resize", FIRST)
    begin(journal, "resize", FIRST)
    with second_version.planted("resize"):
        begin(journal, "resize", NEXT)
        older, counted = found(journal)
        code, subject, detail = older
        assert (code, subject) == (FINE, f"resize@{FIRST}")
        assert detail == (
            f"running flows of resize@{FIRST}: 2; the newest graph is resize@{NEXT}, and once these flows have ended, "
            f"a release without resize@{FIRST} can take over"
        )
        assert counted == (FINE, "flows", "this release can go on with all 3 running flows")
        end_all(journal)
        assert found(journal) == [(FINE, "flows", "this release can go on with all 0 running flows")]


def test_a_release_without_the_older_graph_may_not_take_over_until_its_flows_have_ended(journal: Database) -> None:
    begin(journal, "resize", FIRST)
    with second_version.planted("resize"):
        second_version.forget_older("resize")
        lacks = (
            "flow-unknown",
            f"resize@{FIRST}",
            f"running flows of resize@{FIRST}: 1; this release does not have that graph",
        )
        assert found(journal) == [lacks]
        end_all(journal)
        assert [code for code, _, _ in found(journal)] == [FINE]


def test_a_graph_that_was_changed_is_not_the_one_that_flows_began_with(journal: Database) -> None:
    begin(journal, "resize", FIRST, digest="of another order")
    assert [code for code, _, _ in found(journal)] == ["flow-unknown"]
