"""A debt explains what it undoes and nothing else, never a guest that runs; no mend changes what may be right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rows.audit_books import (
    BIG,
    DEST,
    ENDED,
    MOVE,
    SERVER,
    SMALL,
    SOURCE,
    books,
    directory,
    findings,
    guest,
    store,
    view,
    with_row,
)

from droveway.audit import Finding, Snapshot, judge, run
from droveway.audit.records import DebtRow, MigrationRow
from droveway.persistence.journal.states import State
from droveway.wire.commands import ACTIONS
from droveway.workers.hypervisors.guests_log import overlaps


def one(found: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    listed = list(found)
    assert len(listed) == 1, listed
    return listed[0]


def debt(host: str, action: str, **fields: Any) -> DebtRow:
    return DebtRow(id=1, host=host, move=fields.pop("move", MOVE), action=action, **fields)


def running(*hosts: str) -> dict[str, Any]:
    """The hosts of the books, on these of which the guest runs."""
    wires = {"volumes": ("volume",), "ports": ("port",)}
    return {
        "hosts": tuple(
            view(host, *([guest(running=True)] if host in hosts else []), **(wires if host == "source" else {}))
            for host in ("source", "dest", "third")
        )
    }


@pytest.mark.parametrize("state", [State.RUNNING, State.UNDOING, State.NEEDS_OPERATOR])
@pytest.mark.parametrize("host", ["source", "dest"])
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_no_debt_explains_a_guest_that_runs_on_two_hosts(state: State, host: str, action: str) -> None:
    report = judge(books(state, debts=(debt(host, action),), **running("source", "dest")))
    twice = one([each for each in report.findings if each.kind == "guest"])
    assert "runs on dest and source at once" in twice.detail
    assert not report.clean


@pytest.mark.parametrize("fields", [{}, {"written_off": True}])
def test_no_debt_explains_a_guest_that_runs_where_its_server_does_not_live(fields: dict[str, Any]) -> None:
    owed = tuple(debt("third", action, **fields) for action in ("define_guest", "remove_guest"))
    snapshot = replace(books(debts=owed, **running("source", "third")), down=frozenset({"third"}))
    assert {each.host for each in findings(snapshot, "guest")} == {"third", "source,third"}


def test_no_debt_explains_two_runs_in_the_log_of_all_guests(tmp_path: Path) -> None:
    log = tmp_path / "guests.log"
    line = '{{"time": 1.0, "event": "start", "server": "{}", "host": "{}", "pid": 1, "born": 1}}\n'
    log.write_text("".join(line.format(SERVER, host) for host in ("source", "dest")))
    owed = tuple(debt(host, "define_guest") for host in ("source", "dest"))
    found = one(findings(books(debts=owed, overlaps=tuple(overlaps(log))), "guest"))
    assert found.subject == "guests.log"


LEFT: dict[str, dict[str, Any]] = {
    "disk": {"stores": (store("source", directory()), store("dest"), store("third", directory()))},
    "guest": {
        "hosts": (
            view("source", guest(running=True), volumes=("volume",), ports=("port",)),
            view("dest"),
            view("third", guest(running=False)),
        )
    },
    "connection": {
        "hosts": (
            view("source", guest(running=True), volumes=("volume",), ports=("port",)),
            view("dest"),
            view("third", volumes=("volume",)),
        )
    },
    "interface": {
        "hosts": (
            view("source", guest(running=True), volumes=("volume",), ports=("port",)),
            view("dest"),
            view("third", ports=("port",)),
        )
    },
}
UNDOES = {
    "copy_disks": {"disk"},
    "check_destination": {"disk"},
    "define_guest": {"guest"},
    "connect": {"connection", "interface"},
    "remove_guest": {"disk", "guest", "connection", "interface"},
}


@pytest.mark.parametrize("action", UNDOES)
@pytest.mark.parametrize("kind", LEFT)
def test_a_debt_explains_what_it_undoes_on_its_host_alone(action: str, kind: str) -> None:
    assert findings(books(**LEFT[kind]), kind) != []
    explained = findings(books(debts=(debt("third", action),), **LEFT[kind]), kind) == []
    assert explained == (kind in UNDOES[action])
    assert findings(books(debts=(debt("dest", action),), **LEFT[kind]), kind) != []
    assert findings(books(debts=(debt("third", action, move=ENDED),), **LEFT[kind]), kind) != []


def test_no_debt_explains_what_placement_or_rows_hold() -> None:
    owed = tuple(debt("dest", action) for action in sorted(ACTIONS))
    assert findings(books(debts=owed, allocations=DEST), "allocation") != []
    ended = replace(debt("source", "remove_guest"), move=ENDED)
    held = SOURCE | {ENDED: {"node-source": SMALL}}
    assert [each.subject for each in findings(books(debts=(ended,), allocations=held), "allocation")] == [ENDED]


def test_a_guest_that_runs_twice_is_found_although_a_move_begins_between_two_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = at_rest(**running("source", "dest"))
    looks = iter([replace(before, unseen=()), books(**running("source", "dest"))])
    monkeypatch.setattr(run, "take", lambda _sources: next(looks))
    report = run.audit(None)  # type: ignore[arg-type]
    assert ["source" in each.host and "dest" in each.host for each in report.findings] == [True]


def at_rest(**changes: Any) -> Snapshot:
    """The server at rest on the source: no move of it is open."""
    rest = {"allocations": SOURCE, "flows": (), "migrations": (), "begun": frozenset()} | changes
    snapshot = books(**rest)
    moves = tuple(replace(move, state=State.FAILED, flow_uuid=None) for move in snapshot.moves)
    return with_row(replace(snapshot, moves=moves), task_state=None, fence=None)


@pytest.mark.parametrize(
    ("runs", "mend"), [(True, "openstack server set --state active"), (False, "openstack server reboot --hard")]
)
def test_a_server_in_error_is_a_finding_with_the_way_out_that_fits_its_guest(runs: bool, mend: str) -> None:
    hosts = (view("source", guest(running=runs), volumes=("volume",), ports=("port",)), view("dest"), view("third"))
    power = 1 if runs else 4
    found = one(judge(with_row(at_rest(hosts=hosts), vm_state="error", power_state=power)).findings)
    assert (found.kind, found.subject, found.detail) == ("task", "vm_state", "web is in ERROR on source")
    assert found.mend == f"{mend} {SERVER}"


def test_a_server_in_error_in_a_move_is_brought_back_by_nobody_s_hand() -> None:
    found = one(findings(with_row(books(), vm_state="error"), "task"))
    assert found.mend == f"droveway server show {SERVER}, then droveway move show {MOVE[:8]}"


@pytest.mark.parametrize(
    ("runs", "vm_state", "power_state", "text", "mend"),
    [
        (True, "active", 4, "runs on source, but its power_state is 4", "SET power_state=1"),
        (False, "stopped", 1, "is off on source, but its power_state is 1", "SET power_state=4"),
    ],
)
def test_power_state_is_what_the_guest_does(runs: bool, vm_state: str, power_state: int, text: str, mend: str) -> None:
    hosts = (view("source", guest(running=runs), volumes=("volume",), ports=("port",)), view("dest"), view("third"))
    found = one(judge(with_row(at_rest(hosts=hosts), vm_state=vm_state, power_state=power_state)).findings)
    assert (found.kind, found.subject) == ("row", "power_state")
    assert text in found.detail
    assert mend in found.mend


@pytest.mark.parametrize(
    ("vm_state", "power_state", "runs"), [("active", 1, True), ("stopped", 4, False), ("active", 4, False)]
)
def test_a_right_power_state_is_no_finding(vm_state: str, power_state: int, runs: bool) -> None:
    """Nova stops an active server by itself whose user has shut it down from within."""
    hosts = (view("source", guest(running=runs), volumes=("volume",), ports=("port",)), view("dest"), view("third"))
    assert judge(with_row(at_rest(hosts=hosts), vm_state=vm_state, power_state=power_state)).findings == ()


def novas(status: str, **fields: Any) -> MigrationRow:
    known = {"cell": "cell1", "id": 9, "uuid": "nova", "server": SERVER, "source": "source", "destination": "dest"}
    return MigrationRow(**(known | {"status": status} | fields))


@pytest.mark.parametrize(("vm_state", "task_state"), [("resized", None), ("active", "resize_migrated")])
def test_no_mend_touches_a_server_that_nova_itself_moves(vm_state: str, task_state: str | None) -> None:
    """What Nova set aside, holds and wrote is right while its own move is under way: `rm -r` would lose data."""
    snapshot = at_rest(
        migrations=(novas("finished"),),
        allocations={SERVER: {"node-dest": BIG}, "nova": {"node-source": SMALL}},
        stores=(store("source", directory("_resize")), store("dest", directory()), store("third")),
    )
    found = judge(with_row(snapshot, vm_state=vm_state, task_state=task_state)).findings
    assert {each.kind.value for each in found} >= {"disk", "allocation", "migration"}
    for each in found:
        if each.server:
            assert each.mend == f"openstack server show {SERVER}, and let Nova end its move", each


def test_a_row_that_nova_left_behind_is_mended() -> None:
    found = findings(at_rest(migrations=(novas("pre-migrating"),)), "migration")
    assert [each.mend for each in found] == ["UPDATE migrations SET status='error' WHERE migrations.uuid = 'nova';"]


@pytest.mark.parametrize("status", ["confirmed", "reverted"])
def test_no_mend_takes_back_what_nova_has_ended(status: str) -> None:
    row = replace(books().migrations[0], status=status)
    snapshot = books(State.VERIFYING, migrations=(row,), allocations=SOURCE, flows=())
    found = judge(with_row(snapshot, task_state=None)).findings
    assert {"migration", "allocation"} <= {each.kind.value for each in found}
    assert {each.mend for each in found if each.server} <= {
        f"droveway move show {MOVE[:8]}",
        f"droveway move retry {MOVE[:8]}",
    }
