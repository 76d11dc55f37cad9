"""What an audit names as the mend where a cell was put back to the time before the end of a server's last move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from support.rows.audit_books import (
    BIG,
    ENDED,
    MOVE,
    SERVER,
    SMALL,
    attachment,
    books,
    directory,
    flavor,
    guest,
    store,
    view,
    with_move,
    with_row,
)

from droveway.audit import Snapshot, judge
from droveway.audit.heal.healing import Evidence, plan
from droveway.audit.records import MappingRow, PortView
from droveway.persistence.journal.states import State

MEND: Final = f"droveway move settle {MOVE[:8]} --cell cell1 --reason TEXT"
NOVAS: Final = "44444444-4444-4444-8444-444444444444"


def arrived(state: State = State.DONE, **row: Any) -> Snapshot:
    """The server that a move brought to its destination, in a cell that was put back to the time before the move."""
    snapshot = books(
        state,
        migrations=(),
        flows=(),
        begun=frozenset(),
        allocations={SERVER: {"node-dest": BIG}} | ({MOVE: {"node-source": SMALL}} if state == "verifying" else {}),
        ports=(PortView(id="port", server=SERVER, bindings={"dest": "ACTIVE"}),),
        attachments=(attachment("a-dest", "dest"),),
        hosts=(
            view("source"),
            view("dest", guest(running=True, vcpus=2, memory_mb=1024), volumes=("volume",), ports=("port",)),
            view("third"),
        ),
        stores=(store("source"), store("dest", directory()), store("third")),
        requests={SERVER: "big"},
    )
    return known(with_row(snapshot, **{"task_state": None, "fence": None} | row), state)


def came_back(state: State, **row: Any) -> Snapshot:
    """The server that is on its source, in a cell that was put back to the middle of the move."""
    middle = {"task_state": "resize_finish", "host": "dest", "old_vm_state": "active", "context": 1}
    return known(with_row(books(state, flows=(), begun=frozenset()), **middle | row), state)


def known(snapshot: Snapshot, state: State, **facts: Any) -> Snapshot:
    """With what the journal knows of a move that has rested or ended so."""
    told = {"state": state, "flow_uuid": None, "marked": True, "recorded": True} | facts
    return with_move(snapshot, **{"from_flavor": "small", "to_flavor": "big"} | told)


def with_status(snapshot: Snapshot, status: str, **fields: Any) -> Snapshot:
    row = replace(books().migrations[0], **{"status": status} | fields)
    return replace(snapshot, migrations=(*snapshot.migrations, row))


def mends(snapshot: Snapshot) -> set[str]:
    return {finding.mend for finding in judge(snapshot).findings}


STATES: Final = {
    "verifying": arrived(State.VERIFYING),
    "done": arrived(),
    "done, put back while it waited": with_status(
        arrived(host="dest", vm_state="resized", context=1, old_vm_state="active"), "finished"
    ),
    "done, put back to its middle": with_status(arrived(task_state="resize_migrated", fence="3"), "migrating"),
    "reverted": came_back(State.REVERTED),
    "failed": came_back(State.FAILED),
    "cancelled": came_back(State.CANCELLED),
    "failed, put back to its undo": with_row(
        with_status(replace(came_back(State.FAILED), migrations=()), "error"), task_state="resize_migrated"
    ),
    "parked": with_move(
        replace(arrived(), ports=(PortView(id="port", server=SERVER, bindings={"third": "INACTIVE"}),)),
        state=State.NEEDS_OPERATOR,
        parked_from=State.CONFIRMING,
        error_code="cell-put-back",
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_nothing_but_the_command_that_writes_the_cell_is_named(state: str) -> None:
    found = judge(STATES[state]).findings
    assert {finding.mend for finding in found if finding.kind not in ("usage", "journal")} == {MEND}, found


@pytest.mark.parametrize("state", STATES)
def test_nothing_of_it_is_healed(state: str) -> None:
    """By these rows the server's own guest, port and disks would be left over, and its move's allocation too."""
    snapshot = STATES[state]
    evidence = Evidence(
        tried={(SERVER, host): ENDED for host in ("source", "dest", "third")},
        reserved={"a-dest": ENDED, "a-source": ENDED},
    )
    planned = plan(snapshot, judge(snapshot), evidence)
    assert planned
    assert [mend for mend in planned if mend.does] == []
    assert any("cell cell1 does not know how the move" in mend.why for mend in planned)


@pytest.mark.parametrize("kind", ["cross_cell_resize", "shelve"])
def test_a_parked_move_that_may_be_anothers_cell_names_its_own_page(kind: str) -> None:
    snapshot = with_move(STATES["parked"], kind=kind)
    assert f"droveway move show {MEND.split()[3]}" in mends(snapshot)
    assert MEND not in mends(snapshot)


KNOWS: Final = {
    "its migration alone is wrong": with_status(
        arrived(
            host="dest",
            flavors={"cur": flavor("big", 2, 1024, 2), "old": None, "new": None},
            columns={"instance_type_id": 2, "memory_mb": 1024, "vcpus": 2, "root_gb": 2, "ephemeral_gb": 0},
        ),
        "finished",
    ),
    "its migration is over": with_status(arrived(), "confirmed"),
    "Nova has evacuated it": known(arrived(), State.CANCELLED, error_code="evacuated"),
    "it was left as it is": known(arrived(), State.CANCELLED, error_code="left-as-is"),
    "it was to be deleted": known(arrived(), State.DONE, delete_requested=True),
    "it lives on a third host": arrived(host="third"),
    "Nova is at work on it": arrived(task_state="rebuilding"),
    "Nova has moved it since": with_status(with_status(arrived(), "finished"), "confirmed", uuid=NOVAS, id=2),
    "the move never wrote": known(arrived(), State.FAILED, marked=False),
    "it rests for another reason": known(arrived(), State.NEEDS_OPERATOR, error_code="last-copy"),
}


@pytest.mark.parametrize("why", KNOWS)
def test_a_cell_that_may_know_is_mended_as_ever(why: str) -> None:
    assert MEND not in mends(KNOWS[why])


def test_a_move_that_inserted_no_migration_misses_none() -> None:
    """It failed before that, and has taken back its mark on the server."""
    snapshot = known(arrived(), State.FAILED, recorded=False)
    assert MEND not in mends(snapshot)
    assert MEND in mends(known(arrived(), State.FAILED))
    assert MEND in mends(with_row(snapshot, task_state="resize_migrated"))


def test_a_move_on_one_host_is_known_by_its_flavor() -> None:
    snapshot = with_status(arrived(), "finished")
    assert MEND in mends(known(snapshot, State.DONE, dest_host="source"))
    assert MEND not in mends(known(snapshot, State.DONE, dest_host="source", to_flavor="small"))


def in_two_cells(state: State, *, mapped: str, copies: dict[str, dict[str, Any]], **statuses: str) -> Snapshot:
    """A move from cell1 to cell2 that rests so, with the server's rows of each cell and what its migrations say."""
    own = known(books(State.VERIFYING, flows=(), begun=frozenset()), state, kind="cross_cell_resize", dest_cell="cell2")
    settled = {"task_state": None, "fence": None, "vm_state": "active"}
    return replace(
        own,
        cells=("cell1", "cell2"),
        mappings=(MappingRow(server=SERVER, cell=mapped, deleted=False),),
        servers=tuple(replace(own.servers[0], cell=cell, **settled | row) for cell, row in copies.items()),
        migrations=tuple(replace(books().migrations[0], cell=cell, status=said) for cell, said in statuses.items()),
    )


HIDDEN: Final = {"hidden": True, "host": "dest", "task_state": "resize_migrated"}
ARRIVED: Final = {
    "host": "dest",
    "flavors": {"cur": flavor("big", 2, 1024, 2), "old": None, "new": None},
    "columns": {"instance_type_id": 2, "memory_mb": 1024, "vcpus": 2, "root_gb": 2, "ephemeral_gb": 0},
}
WAITING: Final = ARRIVED | {"vm_state": "resized", "context": 1, "old_vm_state": "active"}
STILL_WAITING: Final = {"cell2": WAITING, "cell1": HIDDEN}

BETWEEN: Final = {
    "done, and the source's cell has its hidden copy": (
        in_two_cells(State.DONE, mapped="cell2", copies={"cell2": ARRIVED, "cell1": HIDDEN}, cell2="confirmed"),
        "cell1",
    ),
    "done, and the source's cell is of before the move": (
        in_two_cells(State.DONE, mapped="cell2", copies={"cell2": ARRIVED, "cell1": {}}, cell2="confirmed"),
        "cell1",
    ),
    "done, and the target's cell has it waiting": (
        in_two_cells(State.DONE, mapped="cell2", copies={"cell2": WAITING}, cell2="confirming"),
        "cell2",
    ),
    "done, both": (
        in_two_cells(
            State.DONE, mapped="cell2", copies={"cell2": WAITING, "cell1": {}}, cell2="confirming", cell1="migrating"
        ),
        "cell2",
    ),
    "reverted, and the target's cell has a visible copy": (
        in_two_cells(
            State.REVERTED, mapped="cell1", copies={"cell1": {}, "cell2": WAITING}, cell1="reverted", cell2="finished"
        ),
        "cell2",
    ),
    "reverted, and the source's cell has it hidden": (
        in_two_cells(State.REVERTED, mapped="cell1", copies={"cell1": HIDDEN}, cell1="post-migrating"),
        "cell1",
    ),
    "reverted, and mapped to the target's cell": (
        in_two_cells(State.REVERTED, mapped="cell2", copies={"cell1": {}}, cell1="reverted"),
        "api",
    ),
    "failed, and the target's cell has its copy": (
        in_two_cells(
            State.FAILED,
            mapped="cell1",
            copies={"cell1": {}, "cell2": HIDDEN | {"host": "source"}},
            cell1="error",
            cell2="pre-migrating",
        ),
        "cell2",
    ),
    "verifying, and mapped to the source's cell": (
        in_two_cells(State.VERIFYING, mapped="cell1", copies=STILL_WAITING, cell2="finished", cell1="post-migrating"),
        "api",
    ),
    "verifying, and the source's cell is of before the move": (
        in_two_cells(State.VERIFYING, mapped="cell2", copies={"cell2": WAITING, "cell1": {}}, cell2="finished"),
        "cell1",
    ),
    "verifying, and the source's cell shows its copy": (
        in_two_cells(
            State.VERIFYING,
            mapped="cell2",
            copies={"cell2": WAITING, "cell1": HIDDEN | {"hidden": False}},
            cell2="finished",
            cell1="post-migrating",
        ),
        "cell1",
    ),
    "verifying, and the target's cell has no row": (
        in_two_cells(State.VERIFYING, mapped="cell2", copies={"cell1": HIDDEN}, cell1="post-migrating"),
        "cell2",
    ),
}


@pytest.mark.parametrize("why", BETWEEN)
def test_of_two_cells_the_one_that_was_put_back_is_named(why: str) -> None:
    snapshot, where = BETWEEN[why]
    named = {finding.mend for finding in judge(snapshot).findings if finding.kind not in ("usage", "journal", "host")}
    assert named == {f"droveway move settle {MOVE[:8]} --cell {where} --reason TEXT"}
    planned = [mend for mend in plan(snapshot, judge(snapshot), Evidence()) if "does not know how" in mend.why]
    assert planned
    assert all(("the API database" if where == "api" else f"cell {where}") in mend.why for mend in planned)


UNKNOWN: Final = {
    "nothing is behind while it waits": in_two_cells(
        State.VERIFYING, mapped="cell2", copies=STILL_WAITING, cell2="finished", cell1="post-migrating"
    ),
    "nothing is behind": in_two_cells(State.DONE, mapped="cell2", copies={"cell2": ARRIVED}, cell2="confirmed"),
    "no copy is left": in_two_cells(State.DONE, mapped="cell2", copies={"cell1": HIDDEN}, cell1="post-migrating"),
    "it is mapped to a third cell": in_two_cells(
        State.DONE, mapped="cell3", copies={"cell2": ARRIVED, "cell1": {}}, cell2="confirmed"
    ),
    "the other copy is on a third host": in_two_cells(
        State.DONE, mapped="cell2", copies={"cell2": ARRIVED, "cell1": {"host": "third"}}, cell2="confirmed"
    ),
    "a cell was not read": replace(BETWEEN["reverted, and the source's cell has it hidden"][0], cells=("cell1",)),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_of_two_cells_none_is_named_where_that_is_not_known(why: str) -> None:
    assert not [mend for mend in mends(UNKNOWN[why]) if "move settle" in mend and "--cell placement" not in mend]


def test_what_is_no_servers_is_mended_as_ever() -> None:
    """compute_nodes, a host that could not be looked at, the journal with itself."""
    snapshot = arrived()
    node = replace(snapshot.nodes[0], used=dict(snapshot.nodes[0].used) | {"vcpus_used": 9})
    (usage,) = [
        finding
        for finding in judge(replace(snapshot, nodes=(node, *snapshot.nodes[1:]))).findings
        if finding.kind == "usage"
    ]
    assert usage.mend.startswith("UPDATE compute_nodes")


def test_what_a_waiting_move_holds_is_written_by_its_own_command() -> None:
    """Nova's healing would leave the migration with nothing, and a revert without room on its source."""
    snapshot = with_status(arrived(State.VERIFYING), "finished")
    found = judge(replace(snapshot, allocations={SERVER: {"node-source": SMALL}})).findings
    mends = {finding.mend for finding in found if finding.kind == "allocation"}
    assert mends == {f"droveway move settle {MOVE[:8]} --cell placement --reason TEXT"}
