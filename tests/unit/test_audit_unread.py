"""An audit that could not read a cell says so, and finds nothing that only that cell could explain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rows.audit_books import ENDED, MOVE, SERVER, SMALL, books, findings, guest, view

from droveway.audit import Snapshot, judge, run, sources
from droveway.audit.heal.healing import Evidence, plan
from droveway.audit.records import DebtRow, PortView, UnreadCell
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal.states import State
from droveway.persistence.nova.cells import Cells

AWAY = UnreadCell(name="cell2", why="it does not answer", down="")
WRONG = (PortView(id="port", server=SERVER, bindings={"dest": "ACTIVE"}),)


def unread(name: str = "cell2", state: State = State.FAILED, **changes: Any) -> Snapshot:
    """The books of cell1, without the rows of the cell of this name."""
    lost = {"cells": (), "servers": (), "migrations": (), "nodes": ()} if name == "cell1" else {}
    away = {"unread_cells": (replace(AWAY, name=name),)}
    rest = {"flows": (), "begun": frozenset()} if state is not State.RUNNING else {}
    return books(state, **(lost | away | rest | changes))


@pytest.mark.parametrize("state", [State.FAILED, State.RUNNING, State.VERIFYING])
def test_a_cell_that_could_not_be_read_is_the_only_finding_about_what_it_has(state: State) -> None:
    report = judge(unread("cell1", state))
    assert [(each.kind, each.subject) for each in report.findings] == [("cell", "cell1")]
    (found,) = report.findings
    assert (found.detail.endswith("it does not answer"), found.mend) == (True, "droveway cell show cell1")
    assert report.counted["cells"] == 0


def test_a_cell_that_is_declared_down_is_noted_only() -> None:
    report = judge(unread("cell1", unread_cells=(replace(AWAY, name="cell1", down="declared down by me: fire"),)))
    assert report.clean
    assert [each.kind for each in report.noted] == ["cell"]
    assert "declared down by me: fire" in report.noted[0].detail


def test_what_is_wrong_in_a_cell_that_answers_is_found() -> None:
    assert [each.kind for each in judge(unread(ports=WRONG)).findings if each.kind in ("binding", "cell")] == [
        "binding",
        "cell",
    ]


def test_what_a_move_from_or_to_the_cell_may_explain_is_no_finding() -> None:
    snapshot = unread(ports=WRONG)
    moves = tuple(replace(move, dest_cell="cell2") if move.id == ENDED else move for move in snapshot.moves)
    assert [each.kind for each in judge(replace(snapshot, moves=moves)).findings] == ["cell"]


def test_a_consumer_that_nobody_knows_may_be_a_server_of_the_cell() -> None:
    held = {"55555555-5555-4555-8555-555555555555": {"node-source": SMALL}}
    assert len(findings(unread(allocations=held, unread_cells=()), "allocation")) == 2
    assert [each.server for each in findings(unread(allocations=held), "allocation")] == [SERVER]


def test_a_guest_that_runs_twice_is_found_whosever_it_is() -> None:
    both = tuple(view(host, guest(running=True)) for host in ("source", "dest"))
    assert [each.host for each in findings(unread("cell1", hosts=both), "guest")] == ["dest,source"]


def test_nothing_is_healed_while_a_cell_could_not_be_read() -> None:
    debts = (DebtRow(id=1, host="third", move=MOVE, action="copy_disks", written_off=True),)
    held = {SERVER: {"node-source": SMALL}, ENDED: {"node-source": SMALL}}
    for snapshot, does in ((unread(unread_cells=(), allocations=held), True), (unread(allocations=held), False)):
        mends = plan(replace(snapshot, debts=debts), judge(snapshot), Evidence())
        assert any(mend.does for mend in mends) is does
        assert all("cell cell2 could not be read" in mend.why for mend in mends if not does)


def test_a_cell_that_either_look_could_not_read_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = books(State.FAILED, flows=(), begun=frozenset())
    looks = iter([replace(whole, unread_cells=(AWAY,)), whole])
    monkeypatch.setattr(run, "take", lambda _: next(looks))
    nothing: Any = None
    report = run.audit(sources.Sources(api=nothing, cells=nothing, journal=nothing, cloud=nothing, read_hosts=nothing))
    assert ("cell", "cell2") in [(each.kind, each.subject) for each in report.findings]


def test_only_a_database_that_is_away_is_a_gap(tmp_path: Path) -> None:
    """One that lacks its tables is an error, as before."""
    empty = Database(sqlite_url(tmp_path / "empty.sqlite"))
    cells = Cells({"cell1": empty, "cell2": Database(sqlite_url(tmp_path / "nowhere" / "cell2.sqlite"))})
    found = sources.read_cell(cells, "cell2", {}, {"cell2": "declared down by me: fire"})
    assert isinstance(found, UnreadCell)
    assert (found.down, "the database of cell cell2 does not answer" in found.why) == (
        "declared down by me: fire",
        True,
    )
    with pytest.raises(sa.exc.ProgrammingError):
        sources.read_cell(cells, "cell1", {}, {})
    empty.close()
