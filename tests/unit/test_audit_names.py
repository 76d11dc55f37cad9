"""A finding and a plan name the one who owes, the cell that lost rows and a host that there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rows.audit_books import ENDED, SERVER, SMALL, attachment, books, findings, with_move, with_row

from droveway.audit import judge
from droveway.audit.heal.healing import Evidence, plan
from droveway.audit.records import DebtRow, MappingRow, PortView
from droveway.persistence.journal.states import State


def test_what_a_cell_owes_is_noted_with_the_name_of_the_cell() -> None:
    debt = DebtRow(id=1, host="", cell="cell2", move=ENDED, action="hide")
    (noted,) = judge(books(debts=(debt,))).noted
    assert noted.detail.startswith("cell cell2 still owes hide for the move ")


def test_rows_that_are_lost_are_told_of_the_cell_that_the_server_is_mapped_to() -> None:
    snapshot = books(State.DONE, servers=(), migrations=(), flows=(), begun=frozenset(), cells=("cell1", "cell2"))
    snapshot = with_move(replace(snapshot, mappings=(MappingRow(server=SERVER, cell="cell2", deleted=False),)))
    moves = tuple(replace(move, kind="cross_cell_resize", dest_cell="cell2", marked=True) for move in snapshot.moves)
    mends = plan(replace(snapshot, moves=moves), judge(replace(snapshot, moves=moves)), Evidence())
    told = {mend.why for mend in mends if "does not know how" in mend.why}
    assert told
    assert all("left alone: cell cell2 does not know how the move " in why for why in told)


def test_where_nobody_knows_which_database_was_put_back_none_is_named() -> None:
    snapshot = with_row(books(State.NEEDS_OPERATOR, cells=("cell1", "cell2")), host="dest")
    both: dict[str, Any] = {"kind": "cross_cell_resize", "dest_cell": "cell2", "error_code": "cell-put-back"}
    snapshot = with_move(snapshot, parked_from=State.RUNNING, **both)
    snapshot = replace(snapshot, allocations={SERVER: {"node-third": SMALL}})
    told = {mend.why for mend in plan(snapshot, judge(snapshot), Evidence()) if "does not know how" in mend.why}
    assert told
    assert all("left alone: a database does not know how the move " in why for why in told)


@pytest.mark.parametrize("kind", ["shelve", "unshelve"])
def test_no_command_names_a_host_of_a_server_that_is_on_none(kind: str) -> None:
    twice = PortView(id="port", server=SERVER, bindings={"source": "ACTIVE", "dest": "ACTIVE"})
    snapshot = with_row(books(ports=(twice,), attachments=(attachment("a-other", "third"),)), host=None)
    snapshot = with_move(snapshot, kind=kind)
    found = [*findings(snapshot, "binding"), *findings(snapshot, "attachment")]
    assert {each.kind for each in found} == {"binding", "attachment"}
    for each in found:
        assert "None" not in each.mend + each.detail
    assert any(each.mend == "droveway move show 22222222" for each in found if each.kind == "binding")
