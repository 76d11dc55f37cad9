"""What listings know of the journal's tables by hand, so that they start fast, is as the tables are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from support.rigs.engine_rig import embedded_rig

from droveway.engines.conductor.taskflow import details
from droveway.persistence.database import Database, database_time, sqlite_url
from droveway.persistence.journal import debt_views, move_views, purge, stuck, tables
from droveway.persistence.journal.move_views import Wanted
from droveway.persistence.journal.states import ENDED, State

KNOWN = {**tables.JournalBase.metadata.tables, **details.FLOWS.metadata.tables}


def described(module: ModuleType) -> list[sa.TableClause]:
    return [each for each in vars(module).values() if type(each) is sa.TableClause]


@pytest.mark.parametrize("module", [move_views, purge], ids=lambda module: module.__name__.split(".")[-1])
def test_a_table_that_is_described_again_has_the_same_columns(module: ModuleType) -> None:
    described_again = described(module)
    assert described_again
    for view in described_again:
        table = KNOWN[view.name]
        typed = [column for column in view.columns if not isinstance(column.type, sa.types.NullType)]
        assert {column.name for column in view.columns} <= set(table.columns.keys())
        assert [column.name for column in typed if kind(column) is not kind(table.columns[column.name])] == []


def kind(column: sa.ColumnElement[object]) -> type:
    """What a value of the column is read as."""
    of = column.type
    return dict if isinstance(of, sa.JSON) else of.python_type


def test_a_debt_is_listed_with_its_move(tmp_path: Path) -> None:
    with embedded_rig(tmp_path) as rig:
        move = rig.submit(server="web")
        with rig.journal.write() as session:
            now = database_time(session)
            facts = {"step": "copy", "direction": "revert"}
            owed = tables.Debt(host="h1", move_id=move, action="remove_disks", details=facts, created_at=now)
            over = tables.Debt(host="h2", move_id=move, action="purge_kept", details={}, created_at=now, settled_at=now)
            session.add_all([owed, over])
        (debt,) = debt_views.listing(rig.journal)
        assert (debt.host, debt.server, debt.step, debt.is_undo, debt.due) == ("h1", "web", "copy", True, now)
        states = [each.state for each in debt_views.listing(rig.journal, move=move, ended=True)]
        assert states == [debt_views.OWED, debt_views.SETTLED]
        assert debt_views.listing(rig.journal, host="h2") == []


NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC).replace(tzinfo=None)


def ago(minutes: float) -> dt.datetime:
    return NOW - dt.timedelta(minutes=minutes)


@pytest.fixture(name="journal")
def fixture_journal(tmp_path: Path) -> Iterator[Database]:
    database = Database(sqlite_url(tmp_path / "journal.sqlite"))
    tables.JournalBase.metadata.create_all(database.engine)
    yield database
    database.close()


def add(journal: Database, name: str, **facts: Any) -> None:
    """A move with this id; one that is as old as another one has the lesser id."""
    names = {"server": f"id-of-{name}", "server_name": name, "source_cell": "c1", "source_host": "h1"}
    others = {"kind": "migrate", "state": State.DONE.value, "old_flavor": "s", "new_flavor": "s", "policy": "manual"}
    times = {"created_at": NOW, "updated_at": NOW}
    with journal.write() as session:
        session.add(tables.Move(id=name, **{**names, **others, **times, **facts}))


def listed(journal: Database, limit: int | None = None, **wanted: Any) -> list[str]:
    found = [move.id for move in move_views.listing(journal, Wanted(**wanted), limit=limit)]
    assert limit is not None or len(found) == move_views.count(journal, Wanted(**wanted))
    return found


def test_moves_are_listed_newest_first_up_to_the_limit(journal: Database) -> None:
    for name, age in (("old", 9), ("a", 5), ("b", 5), ("new", 1)):
        add(journal, name, created_at=ago(age))
    assert listed(journal) == ["new", "b", "a", "old"]
    assert listed(journal, limit=2) == ["new", "b"]


def test_pages_behind_a_marker_hold_every_move_once(journal: Database) -> None:
    for name, age in (("old", 9), ("a", 5), ("b", 5), ("c", 5), ("new", 1)):
        add(journal, name, created_at=ago(age))
    pages, marker = [], None
    while page := move_views.listing(journal, Wanted(older_than=marker), limit=2):
        pages.append([move.id for move in page])
        marker = page[-1]
    assert pages == [["new", "c"], ["b", "a"], ["old"]]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"host": "h2"}, ["to", "from", "bound"]),
        ({"cell": "c2"}, ["to", "from"]),
        ({"project": "p2"}, ["from"]),
        ({"states": ["queued", "failed"]}, ["from", "bound"]),
        ({"kinds": ["resize"]}, ["to"]),
        ({"host": "h2", "cell": "c2", "states": ["done"]}, ["to"]),
        ({"since": ago(3)}, ["to", "from", "bound"]),
        ({"before": ago(3)}, ["other"]),
        ({"since": ago(3), "before": ago(1)}, ["from", "bound"]),
    ],
)
def test_a_list_holds_the_moves_that_meet_every_condition(
    journal: Database, wanted: dict[str, Any], names: list[str]
) -> None:
    add(journal, "to", dest_host="h2", dest_cell="c2", kind="resize", created_at=ago(1))
    add(journal, "from", source_host="h2", source_cell="c2", project="p2", state="failed", created_at=ago(2))
    add(journal, "bound", target_host="h2", state="queued", created_at=ago(3))
    add(journal, "other", created_at=ago(4))
    assert listed(journal, **wanted) == names


def test_the_moves_of_a_server_are_found_under_each_name_that_it_had(journal: Database) -> None:
    add(journal, "1", server="s1", server_name="before")
    add(journal, "2", server="s1", server_name="since")
    add(journal, "3", server="s2", server_name="else")
    assert [listed(journal, server=name) for name in ("before", "since", "s1", "none")] == [["2", "1"]] * 3 + [[]]


def test_the_list_of_stuck_moves_has_those_that_there_is_a_reason_for(journal: Database) -> None:
    """The condition of the query agrees with the words, in every state and on both sides of each bound."""
    facts: list[dict[str, Any]] = [
        {},
        {"hold": True},
        {"waits_for": "host h1"},
        {"waits_for": ""},
        {"updated_at": ago(60)},
        {"updated_at": ago(60), "hold": True},
        {"updated_at": ago(60), "progress_at": ago(1)},
        {"updated_at": ago(60), "progress_at": ago(20)},
        {"updated_at": ago(14)},
        {"updated_at": ago(60), "deadline": ago(14)},
        {"updated_at": ago(60), "deadline": ago(16)},
        {"deadline": ago(-60)},
        {"deadline": ago(-60), "error_code": "overdue"},
        {"policy": "manual"},
        {"policy": "manual", "error_code": "overdue"},
    ]
    for state in State:
        for number, each in enumerate(facts):
            add(journal, f"{state.value}{number}", state=state.value, **each)
    reasons = {move.id: stuck.reason(move, NOW) for move in move_views.listing(journal, Wanted())}
    wanted = Wanted(stuck_before=NOW - dt.timedelta(seconds=stuck.BOUND))
    found = {move.id for move in move_views.listing(journal, wanted)}
    assert found == {name for name, reason in reasons.items() if reason}
    assert len(State) - len(ENDED) < len(found) < len(reasons)
