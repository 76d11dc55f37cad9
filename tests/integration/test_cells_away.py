"""A cell's database goes away in the middle of a move between cells: what waits, what goes elsewhere, what is owed."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.cells_away import API, CLOUD, Databases, ask, begin, configure, copies, moving, owed, shown, waits
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.keeper.cell_debts import CellDebts
from droveway.engines.operations import move_requests
from droveway.errors import DestinationFault, StepError
from droveway.persistence.journal.tables import Claim


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def test_a_move_waits_for_its_target_cell_and_goes_on_when_it_is_back(lab: Stage) -> None:
    """From mark_migrating on, and it says for which cell it waits and since when."""
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, begin(lab, "cell2")) as move:
        until(lambda: waits(lab, move, "cell2"), "the move says what it waits for")
        assert shown(lab, move).step == "show_target"
        away.bring()
        ended = move_requests.carry(lab.lab, move)
    assert (ended.state, ended.dest_cell, ended.waits_for) == ("verifying", "cell2", None)
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize(("cell", "step"), [("cell2", "switch_mapping"), ("cell1", "save_request_spec")])
def test_a_move_that_waits_for_the_api_database_says_so(tmp_path: Path, cell: str, step: str) -> None:
    """In a move between cells and in one within a cell; it goes on by itself when that database is back."""
    with stage(tmp_path / "lab", CLOUD.replace("host1: {}", "host1: {}, host2: {}")) as lab:
        await_the_api(lab, cell, step)


def await_the_api(lab: Stage, cell: str, step: str) -> None:
    away = Databases(lab, API, step)
    with moving(lab, away, begin(lab, cell)) as move:
        until(lambda: shown(lab, move).waits_for, "the move says what it waits for")
        first = shown(lab, move).waits_for
        assert (first or "").startswith("the API database, which does not answer (since ")
        claims = epoch(lab, move)
        until(lambda: epoch(lab, move) > claims + 1, "the next claims")
        assert shown(lab, move).waits_for == first
        away.bring()
        ended = move_requests.carry(lab.lab, move)
    assert (ended.state, lab.server("web").cell, ended.waits_for) == ("verifying", cell, None)
    lab.assert_balanced()


def epoch(lab: Stage, move: str) -> int:
    """Return the epoch of the move's last claim."""
    with lab.lab.journal.read() as session:
        return int(session.scalar(sa.select(sa.func.max(Claim.epoch)).where(Claim.move_id == move)) or 0)


def test_a_target_cell_that_goes_before_the_guest_is_touched_leads_to_the_next(lab: Stage) -> None:
    """R1-42: it is the destination's fault; what was made there goes when the cell is back."""
    away = Databases(lab, "cell2", "record_destination_copy")
    with moving(lab, away, begin(lab)) as move:
        until(lambda: shown(lab, move).attempt == 2, "the next alternate is tried")
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.dest_cell) == ("verifying", "cell3")
        away.bring()
    lab.cli("move", "resume")
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 1}
    lab.assert_balanced()


def test_a_copy_that_a_cell_was_to_hide_when_it_was_away_goes_when_it_is_back_at_once(lab: Stage) -> None:
    """The cell is away for one undo alone: the next one there finds a visible copy, and it is the move's own."""
    away = Databases(lab, "cell2", "show_target", "revert")

    def blink(move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("switch_mapping", "execute", "before"):
            raise StepError("it fails", code="test")
        away(move, step, direction, phase)
        if (step, direction, phase) == ("hand_over_source", "revert", "before"):
            away.bring()

    with lab.running(probe=blink):
        ended = move_requests.carry(lab.lab, begin(lab, "cell2")().id)
    assert away.went.is_set()
    assert ended.state == "failed", (ended.step, ended.error_code, ended.error)
    lab.cli("move", "resume")
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    assert owed(lab) == []
    lab.assert_balanced()


def test_a_move_that_ended_before_it_had_a_destination_owes_its_fence_alone(lab: Stage) -> None:
    """Its cell went while the move was accepted: nothing was tried there, and paying asks for nothing that was."""
    away = Databases(lab, "cell2", "accept")
    with moving(lab, away, begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "failed"
        until(lambda: owed(lab) == [("cell2", "drop fence")], "what the cell owes")
        away.bring()
    lab.cli("move", "resume")
    assert owed(lab) == []
    lab.assert_balanced()


def test_a_debt_that_fails_as_nobody_foresaw_holds_up_no_command(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The debt says what it met, and is paid when it can be."""
    away = Databases(lab, "cell2", "accept")
    with moving(lab, away, begin(lab, "cell2")) as move:
        move_requests.carry(lab.lab, move)
        until(lambda: owed(lab) == [("cell2", "drop fence")], "what the cell owes")
    away.bring()

    def fail(*_: object) -> None:
        raise LookupError("planted")

    with monkeypatch.context() as broken:
        broken.setattr(CellDebts, "_pay", fail)
        lab.cli("move", "resume")
    (debt,) = lab.json("debt", "list")
    assert "LookupError, which nobody foresaw" in lab.cli("debt", "show", str(debt["id"]))
    with lab.running():
        until(lambda: owed(lab) == [], "that the cell pays")
    lab.assert_balanced()


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_move_that_waits_too_long_or_is_cancelled_is_undone(lab: Stage, how: str) -> None:
    """R1-31: the server is as it was, though its target cell is still away; that is cleared when it is back."""
    configure(lab, step_deadline=1.0 if how == "deadline" else 600.0)
    before = lab.standing("web")
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, begin(lab, "cell2")) as move:
        until(lambda: waits(lab, move, "cell2") or shown(lab, move).ended_at is not None, "the move waits")
        if how == "cancel":
            lab.cli("move", "cancel", move)
        ended = move_requests.carry(lab.lab, move)
        assert ended.state == ("failed" if how == "deadline" else "cancelled")
        assert "cell cell2 has not answered for" in (ended.error or "") or how == "cancel"
        away.bring()
    lab.cli("move", "resume")
    assert lab.standing("web") == before
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize("cell", ["cell1", "cell2"])
def test_a_move_whose_mapping_was_switched_parks_with_one_command(lab: Stage, cell: str) -> None:
    """From switch_mapping to start_guest it neither goes on nor back."""
    configure(lab, step_deadline=1.0)
    away = Databases(lab, cell, "carry_late_writes")
    with moving(lab, away, begin(lab, "cell2")) as move:
        ended = move_requests.carry(lab.lab, move)
        assert (ended.state, ended.error_code) == ("needs-operator", "cell-away")
        assert f"droveway move retry {move[:8]}" in (ended.error or "")
        away.bring()
    lab.cli("move", "retry", move)
    assert shown(lab, move).state == "verifying"
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}
    lab.assert_balanced()


@pytest.mark.parametrize(
    ("what", "cell", "step", "state", "debts"),
    [
        ("forward", "cell1", "finish_source_records", "verifying", ["close events", "drop fence"]),
        ("confirm", "cell1", "remove_source_records", "done", ["remove", "drop fence"]),
        ("revert", "cell2", "remove_target_records", "reverted", ["remove", "drop fence"]),
    ],
)
def test_what_is_left_in_a_cell_past_the_point_of_no_return_is_owed(
    lab: Stage, what: str, cell: str, step: str, state: str, debts: list[str]
) -> None:
    """Once its deadline has passed the flow ends, and the cell pays when it answers; nobody calls the step done."""
    configure(lab, step_deadline=1.0)
    asks = begin(lab, "cell2")
    if what != "forward":
        with lab.running():
            move_requests.carry(lab.lab, asks().id)
        asks = ask(lab, what)
    away = Databases(lab, cell, step)
    with moving(lab, away, asks) as move:
        until(lambda: waits(lab, move, cell), "the step waits")
        assert move_requests.carry(lab.lab, move).state == state
        until(lambda: owed(lab) == [(cell, action) for action in debts], "the cell owes it")
        assert [row.result for row in lab.history(move) if row.step == step][-1] == {"owed": True}
        away.bring()
    lab.cli("move", "resume")
    assert owed(lab) == []
    left = {"verifying": {"cell1", "cell2"}, "done": {"cell2"}, "reverted": {"cell1"}}[state]
    assert copies(lab) == {each: int(each in left) for each in ("cell1", "cell2", "cell3")}
    for path in (lab.root / "cells").glob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(path)) as rows:
            marks = "SELECT count(*) FROM instance_system_metadata WHERE key LIKE 'droveway%'"
            events = "SELECT count(*) FROM instance_actions_events WHERE finish_time IS NULL"
            assert [rows.execute(query).fetchone()[0] for query in (marks, events)] == [0, 0], path
    lab.assert_balanced()


def test_a_revert_that_cannot_show_the_source_again_is_undone(lab: Stage) -> None:
    """It waits as forward does, and the server runs on where it was; the cell owes that the copy is hidden."""
    configure(lab, step_deadline=1.0)
    with lab.running():
        move_requests.carry(lab.lab, begin(lab, "cell2")().id)
    before = lab.standing("web")
    away = Databases(lab, "cell1", "show_source")
    with moving(lab, away, ask(lab, "revert")) as move:
        assert move_requests.carry(lab.lab, move).state == "verifying"
        until(lambda: owed(lab) == [("cell1", "hide"), ("cell1", "drop fence")], "the cell owes it")
        away.bring()
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert lab.standing("web") == before
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    assert copies(lab) == {"cell1": 1, "cell2": 0, "cell3": 0}


def test_a_server_does_not_enter_a_cell_that_owes_its_clean_up(lab: Stage) -> None:
    """What is owed is paid first; until then the cell is left out, and refused by name."""
    away = Databases(lab, "cell2", "copy_records", phase="after")
    with moving(lab, away, begin(lab, "cell2")) as move:
        assert move_requests.carry(lab.lab, move).state == "failed"
        until(lambda: owed(lab) == [("cell2", "remove"), ("cell2", "drop fence")], "the cell owes it")
    with contextlib.closing(sqlite3.connect(lab.root / "journal.sqlite")) as journal, journal:
        journal.execute("UPDATE debts SET not_before = '2999-01-01 00:00:00.000000'")
    away.bring()
    number = next(row["id"] for row in lab.json("debt", "list"))
    said = lab.refused("server", "migrate", "web", "--to-cell", "cell2")
    assert f"it still owes the clean-up of move {move[:8]}: droveway debt show {number}" in said
    with contextlib.closing(sqlite3.connect(lab.root / "journal.sqlite")) as journal, journal:
        journal.execute("UPDATE debts SET not_before = NULL")
    lab.cli("move", "resume")
    assert owed(lab) == []
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    assert copies(lab) == {"cell1": 1, "cell2": 1, "cell3": 0}


def test_what_a_user_wrote_since_is_not_taken_back_by_a_debt(lab: Stage) -> None:
    """Rule 13: the copy that is removed late is compared with what was known when it was made."""
    away = Databases(lab, "cell2", "record_destination_copy")

    def described(cell: str, text: str | None = None) -> str:
        with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as rows, rows:
            if text is not None:
                rows.execute("UPDATE instances SET display_description = ?", (text,))
            return str(rows.execute("SELECT display_description FROM instances").fetchone()[0])

    def probe(move: str, step: str, direction: str, phase: str) -> None:
        if away.went.is_set() and (step, direction, phase) == ("copy_records", "execute", "before"):
            described("cell1", "written meanwhile")
        away(move, step, direction, phase)

    with lab.running(probe=probe):
        move = begin(lab)().id
        until(lambda: shown(lab, move).attempt == 2, "the next alternate is tried")
        assert move_requests.carry(lab.lab, move).dest_cell == "cell3"
        away.bring()
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert (copies(lab)["cell2"], described("cell3")) == (0, "written meanwhile")


def test_what_a_cell_owes_is_paid_though_the_move_went_on_to_a_third_one(lab: Stage) -> None:
    """The copy that it had shown is hidden and removed, and what a user wrote there late comes to the third cell."""
    away = Databases(lab, "cell2", "show_target", "revert")
    turned = threading.Event()

    def described(cell: str) -> sqlite3.Connection:
        return sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")

    def probe(move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("show_target", "execute", "after") and not turned.is_set():
            turned.set()
            raise DestinationFault("its host breaks", code="host-breaks", host="host3")
        if (step, direction, phase) == ("show_target", "revert", "before") and not away.went.is_set():
            with contextlib.closing(described("cell2")) as rows, rows:
                rows.execute("UPDATE instances SET display_description = 'written late'")
        away(move, step, direction, phase)

    with lab.running(probe=probe):
        ended = move_requests.carry(lab.lab, begin(lab)().id)
        assert (ended.state, ended.dest_cell) == ("verifying", "cell3")
        assert [action for _, action in owed(lab)][:2] == ["hide", "remove"]
        move_requests.file_request(lab.lab, ended.id, move_requests.confirm)
        assert move_requests.carry(lab.lab, ended.id).state == "done"
        away.bring()
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert copies(lab) == {"cell1": 0, "cell2": 0, "cell3": 1}
    with contextlib.closing(described("cell3")) as rows:
        assert rows.execute("SELECT display_description FROM instances").fetchall() == [("written late",)]
    lab.assert_balanced()
