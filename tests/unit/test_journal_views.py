"""What listings know of the journal's tables by hand, so that they start fast, is as the tables are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import sqlalchemy as sa
from support.rigs.engine_rig import embedded_rig

from droveway.engines.conductor.taskflow import details
from droveway.persistence.database import database_time
from droveway.persistence.journal import debt_views, move_views, purge, tables

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
