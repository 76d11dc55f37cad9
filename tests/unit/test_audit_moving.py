"""While a move is under way the audit finds only what none of its steps explains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rows import audit_books
from support.rows.audit_books import (
    BIG,
    BOTH,
    DEST,
    ENDED,
    MOVE,
    NEITHER,
    SERVER,
    SMALL,
    SOURCE,
    attachment,
    books,
    directory,
    findings,
    guest,
    probe,
    store,
    view,
    with_move,
    with_row,
)

from droveway.audit import Snapshot, judge, run
from droveway.audit.checks.allocations import amounts_of
from droveway.audit.records import PortView
from droveway.persistence.journal.states import State

NOWHERE = {
    "hosts": (view("source"), view("dest"), view("third")),
    "stores": (store("source"), store("dest"), store("third")),
}


def test_a_move_that_has_just_begun_is_clean() -> None:
    assert judge(books()).findings == ()


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (State.RUNNING, SOURCE),
        (State.RUNNING, BOTH),
        (State.UNDOING, SOURCE),
        (State.UNDOING, BOTH),
        (State.CONFIRMING, BOTH),
        (State.CONFIRMING, DEST),
        (State.REVERTING, BOTH),
        (State.REVERTING, SOURCE),
    ],
)
def test_what_some_step_explains_is_no_finding(state: State, held: dict[str, Any]) -> None:
    assert findings(books(state, allocations=held, **NOWHERE), "allocation") == []


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (State.RUNNING, DEST),
        (State.RUNNING, NEITHER),
        (State.UNDOING, {MOVE: {"node-source": SMALL}}),
        (State.RUNNING, SOURCE | {MOVE: {"node-source": SMALL}}),
        (State.CONFIRMING, SOURCE),
        (State.REVERTING, DEST),
        (State.RUNNING, {SERVER: {"node-third": BIG}, MOVE: {"node-source": SMALL}}),
        (State.RUNNING, {SERVER: {"node-dest": SMALL}, MOVE: {"node-source": SMALL}}),
    ],
)
def test_what_no_step_explains_is_a_finding(state: State, held: dict[str, Any]) -> None:
    found = findings(books(state, allocations=held, **NOWHERE), "allocation")
    assert len(found) == 1
    assert (found[0].server, found[0].move) == (SERVER, MOVE)
    assert found[0].mend == "droveway move retry 22222222" or "allocation delete" in found[0].mend


def test_one_consumer_on_two_hosts_is_found_at_any_time() -> None:
    (found,) = findings(books(allocations={SERVER: {"node-source": SMALL, "node-dest": BIG}}), "allocation")
    assert "no consumer may hold two hosts" in found.detail


@pytest.mark.parametrize(
    "there",
    [
        {"hosts": (view("source"), view("dest", guest(running=False)), view("third"))},
        {"stores": (store("source", directory()), store("dest", directory(f".part-{MOVE}-dest")), store("third"))},
    ],
)
def test_a_host_never_holds_more_than_placement_knows(there: dict[str, Any]) -> None:
    (found,) = findings(books(allocations=SOURCE, **there), "allocation")
    assert (found.host, found.server) == ("dest", SERVER)
    assert findings(books(allocations=BOTH, **there), "allocation") == []


def test_the_source_s_share_is_not_released_while_its_copy_is_there() -> None:
    copies = (store("source", directory("_resize", MOVE)), store("dest", directory()), store("third"))
    (found,) = findings(books(State.CONFIRMING, allocations=DEST, stores=copies), "allocation")
    assert found.host == "source"


def test_a_server_that_is_being_deleted_may_hold_nothing() -> None:
    deleted = with_move(books(allocations=NEITHER, ports=(), attachments=(), **NOWHERE), delete_requested=True)
    assert judge(deleted).findings == ()


def test_between_the_end_of_a_move_and_its_servers_deletion_there_is_no_flow() -> None:
    """The keeper files it; every other state has one."""
    for state in (State.DELETING, State.UNDOING):
        between = replace(with_move(books(state), flow_uuid=None), flows=(), begun=frozenset(), open_steps=())
        found = [finding.detail for finding in findings(between, "journal")]
        assert any("has no flow that would carry it on" in detail for detail in found) == (state is State.UNDOING)


def test_a_server_whose_rows_are_gone_may_hold_nothing() -> None:
    gone = books(allocations=NEITHER, ports=(), attachments=(), servers=(), mappings=(), **NOWHERE)
    assert [finding.kind.value for finding in judge(gone).findings] == ["usage"]


def test_a_shared_disk_is_claimed_apart_from_the_host() -> None:
    shared = {SERVER: {"node-source": {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}, "nfs": {"CUSTOM_X": 1}}}
    providers = {"node-source": None, "node-dest": None, "nfs": None}
    assert findings(books(allocations=shared, providers=providers), "allocation") == []


def test_a_child_provider_counts_for_its_host() -> None:
    nested = {SERVER: {"node-source": {"VCPU": 1, "DISK_GB": 1}, "numa0": {"MEMORY_MB": 512}}}
    providers = {"node-source": None, "numa0": "node-source", "node-dest": None}
    assert findings(books(allocations=nested, providers=providers), "allocation") == []


@pytest.mark.parametrize(
    ("specs", "from_volume", "amounts"),
    [
        ({}, False, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 14}),
        ({}, True, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 4}),
        ({"hw:cpu_policy": "dedicated"}, True, {"PCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 4}),
        ({"resources:VCPU": "0", "resources:DISK_GB": "7"}, False, {"MEMORY_MB": 1024, "DISK_GB": 7}),
    ],
)
def test_what_a_flavor_holds(specs: dict[str, str], from_volume: bool, amounts: dict[str, int]) -> None:
    fields = {"vcpus": 2, "memory_mb": 1024, "root_gb": 10, "ephemeral_gb": 3, "swap": 512, "extra_specs": specs}
    assert amounts_of(fields, from_volume=from_volume) == amounts


@pytest.mark.parametrize(
    "bindings",
    [
        {"source": "ACTIVE"},
        {"source": "ACTIVE", "dest": "INACTIVE"},
        {"source": "INACTIVE", "dest": "ACTIVE"},
        {"dest": "ACTIVE"},
    ],
)
def test_a_port_has_one_active_binding_at_each_point(bindings: dict[str, str]) -> None:
    assert findings(_with_bindings(bindings), "binding") == []


@pytest.mark.parametrize(
    "bindings",
    [
        {},
        {"dest": "INACTIVE"},
        {"source": "ACTIVE", "dest": "ACTIVE"},
        {"source": "ACTIVE", "third": "INACTIVE"},
    ],
)
def test_a_port_with_none_or_two_or_elsewhere_is_a_finding(bindings: dict[str, str]) -> None:
    (found,) = findings(_with_bindings(bindings), "binding")
    assert (found.subject, found.server, found.move) == ("port", SERVER, MOVE)


@pytest.mark.parametrize(
    "attachments",
    [
        (attachment("a-source", "source"), attachment("new", None, "reserved")),
        (attachment("new", None, "reserved"),),
        (attachment("new", "dest", "attaching"),),
    ],
)
def test_a_volume_has_an_attachment_at_each_point(attachments: tuple[Any, ...]) -> None:
    assert findings(books(attachments=attachments), "attachment") == []


@pytest.mark.parametrize(
    "attachments",
    [
        (),
        (attachment("a-source", "third"),),
        (attachment("a-source", "source"), replace(attachment("other", None), volume="other")),
    ],
)
def test_a_volume_without_one_or_elsewhere_is_a_finding(attachments: tuple[Any, ...]) -> None:
    (found,) = findings(books(attachments=attachments), "attachment")
    assert (found.server, found.move) == (SERVER, MOVE)


@pytest.mark.parametrize(
    "entries",
    [
        (directory("_resize", MOVE),),
        (directory("_resize", MOVE), directory()),
        (directory("_resize"), directory("_del")),
        (directory(), directory(f".part-{MOVE}-dest")),
        (directory(), directory(f".gone-{MOVE}"), probe(MOVE)),
    ],
)
def test_directories_of_this_move_are_explained(entries: tuple[Any, ...]) -> None:
    found = books(allocations=BOTH, stores=(store("source", *entries), store("dest"), store("third")))
    assert findings(found, "disk") == []


@pytest.mark.parametrize("entry", [directory(f".part-{ENDED}-dest"), directory("_resize", ENDED), probe(ENDED)])
def test_a_directory_of_an_ended_move_is_a_finding(entry: audit_books.Directory) -> None:
    stores = (store("source", directory(), entry), store("dest"), store("third"))
    (found,) = findings(books(stores=stores), "disk")
    assert (found.subject, found.move) == (f"instances/{entry.name}", ENDED)


def test_a_directory_on_a_host_of_no_move_is_a_finding() -> None:
    stores = (store("source", directory()), store("dest"), store("third", directory()))
    assert [found.host for found in findings(books(stores=stores), "disk")] == ["third"]


def test_a_root_disk_that_is_nowhere_is_a_finding() -> None:
    stores = (store("source", directory(files=())), store("dest", directory(f".part-{MOVE}-dest")), store("third"))
    (found,) = findings(books(allocations=BOTH, stores=stores), "disk")
    assert "is on no host of its move (dest, source)" in found.detail


def test_a_guest_that_runs_twice_is_found_at_any_time() -> None:
    hosts = (view("source", guest(running=True)), view("dest", guest(running=True)), view("third"))
    (found,) = findings(books(allocations=BOTH, hosts=hosts), "guest")
    assert found.host == "dest,source"


def test_a_guest_on_a_host_of_no_move_is_a_finding() -> None:
    hosts = (view("source", guest(running=True)), view("dest"), view("third", guest(running=False)))
    assert [found.host for found in findings(books(hosts=hosts), "guest")] == ["third"]


def test_a_guest_that_is_off_for_the_move_is_no_finding() -> None:
    assert findings(books(hosts=(view("source", guest(running=False)), view("dest"), view("third"))), "guest") == []


@pytest.mark.parametrize(("volumes", "ports"), [(("volume",), ()), ((), ("port",))])
def test_connections_on_a_host_of_no_move_are_findings(volumes: tuple[str, ...], ports: tuple[str, ...]) -> None:
    hosts = (view("source"), view("dest", volumes=volumes, ports=ports), view("third", volumes=volumes, ports=ports))
    found = judge(books(allocations=BOTH, hosts=hosts)).findings
    assert [(finding.kind in ("connection", "interface"), finding.host) for finding in found] == [(True, "third")]


@pytest.mark.parametrize(
    ("parked_from", "kinds"), [(State.RUNNING, set()), (State.VERIFYING, {"allocation", "binding"})]
)
def test_a_parked_move_is_judged_by_where_it_was_parked(parked_from: State, kinds: set[str]) -> None:
    parked = with_move(books(), state=State.NEEDS_OPERATOR, parked_from=parked_from)
    parked = with_row(parked, host="dest") if parked_from is State.VERIFYING else parked
    assert kinds <= {finding.kind.value for finding in judge(parked).findings}
    if not kinds:
        assert judge(parked).clean


def test_a_move_that_waits_for_its_first_step_changes_nothing_yet() -> None:
    queued = replace(with_move(books(), state=State.QUEUED), begun=frozenset(), migrations=())
    assert judge(with_row(queued, task_state=None)).clean
    (found,) = findings(with_row(queued, task_state="resize_prep"), "task")
    assert found.subject == "task_state"


@pytest.mark.parametrize("state", [State.VERIFYING, State.DONE])
@pytest.mark.parametrize(("claimed", "found"), [(MOVE, 0), (ENDED, 0), ("of another server", 1), (None, 1)])
def test_a_fence_is_left_once_the_claim_was_given_back(state: State, claimed: str | None, found: int) -> None:
    """The end of a flow is stored first, then its fence goes, then its claim."""
    rests = with_move(books(), state=state, flow_uuid=None)
    rests = replace(rests, claimed=frozenset([claimed] if claimed else []))
    assert len(findings(rests, "fence")) == found


def test_a_finding_of_a_moving_cloud_counts_only_when_it_is_found_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    passing, staying = books(allocations=NEITHER), books(attachments=())
    assert _audited(monkeypatch, [passing, books()]) == set()
    assert _audited(monkeypatch, [staying, staying]) == {"attachment"}
    assert _audited(monkeypatch, [passing, staying]) == set()


def _audited(monkeypatch: pytest.MonkeyPatch, looks: list[Snapshot]) -> set[str]:
    waiting = iter(looks)
    monkeypatch.setattr(run, "take", lambda _sources: next(waiting))
    report = run.audit(None)  # type: ignore[arg-type]
    assert list(waiting) == []
    return {finding.kind.value for finding in report.findings}


def _with_bindings(bindings: dict[str, str]) -> Snapshot:
    return books(allocations=BOTH, ports=(PortView(id="port", server=SERVER, bindings=bindings),))
