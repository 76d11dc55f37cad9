"""What an audit's plan takes away, and what it leaves, judged on books that are made in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.rows.audit_books import ENDED, MOVE, SERVER, SMALL, books, directory, guest, store, view

from droveway.audit import Snapshot, judge
from droveway.audit.heal.healing import Evidence, Mend, plan
from droveway.audit.records import DebtRow, FlowRow
from droveway.persistence.journal.states import State

LEFT = {SERVER: {"node-source": SMALL}, ENDED: {"node-third": SMALL}}


def at_rest(**changes: Any) -> Snapshot:
    """The server at rest on the source, after two moves that ended, of which one has left an allocation."""
    snapshot = books(**({"allocations": LEFT, "flows": (), "begun": frozenset(), "migrations": ()} | changes))
    moves = tuple(replace(move, state=State.FAILED, flow_uuid=None) for move in snapshot.moves)
    servers = tuple(replace(row, task_state=None, fence=None) for row in snapshot.servers)
    return replace(snapshot, moves=moves, servers=servers)


def planned(snapshot: Snapshot, subject: str, **evidence: Any) -> Mend:
    """What is planned about one subject."""
    (mend,) = [
        each for each in plan(snapshot, judge(snapshot), Evidence(**evidence)) if each.finding.subject == subject
    ]
    return mend


def test_what_an_ended_move_holds_goes() -> None:
    assert planned(at_rest(), ENDED).move == ENDED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"allocations": {ENDED: {"node-third": SMALL}}}, "may stand for something that is really there"),
        ({"allocations": LEFT | {SERVER: {"node-dest": SMALL}}}, "may stand for something that is really there"),
        (
            {"stores": (store("source", directory()), store("third", directory("_resize", ENDED)))},
            "may stand for something that is really there",
        ),
        ({"flows": (FlowRow(uuid="f", move=ENDED, kind="confirm", ended=False),)}, "has not ended"),
        (
            {"debts": (DebtRow(id=1, host="third", move=ENDED, action="copy_disks", written_off=True),)},
            "stands for what third owed",
        ),
    ],
)
def test_an_allocation_stays_while_something_may_lie_behind_it(changes: dict[str, Any], why: str) -> None:
    """A provider's usage is never below what is really held."""
    mend = planned(at_rest(**changes), ENDED)
    assert mend.does == ""
    assert why in mend.why


def test_nothing_of_a_server_in_a_move_goes() -> None:
    snapshot = books(allocations=LEFT)
    mend = planned(snapshot, ENDED)
    assert mend.does == ""
    assert f"the move {MOVE[:8]} holds web" in mend.why


@pytest.mark.parametrize("status", ["migrating", "finished", "confirming"])
def test_nothing_is_mended_beside_a_migration_of_novas(status: str) -> None:
    """Its row alone says that Nova moves the server: task_state is NULL, also in VERIFY_RESIZE."""
    novas = replace(books().migrations[0], uuid="44444444-4444-4444-8444-444444444444", status=status)
    port = replace(books().ports[0], bindings={"source": "ACTIVE", "third": "INACTIVE"})
    tried = {"tried": {(SERVER, "third"): ENDED}}
    assert planned(at_rest(ports=(port,)), "port", **tried).does != ""
    mend = planned(at_rest(ports=(port,), migrations=(novas,)), "port", **tried)
    assert mend.does == ""
    assert "something else is under way with web" in mend.why


def test_a_consumer_that_the_journal_does_not_know_stays() -> None:
    nobody = "44444444-4444-4444-8444-444444444444"
    assert "to no move that the journal knows" in planned(at_rest(allocations={nobody: LEFT[ENDED]}), nobody).why


class TestHosts:
    def test_a_guest_goes_only_when_it_is_off_and_marked(self) -> None:
        for found, why in (
            (msgspec.structs.replace(guest(running=False), move=ENDED), ""),
            (
                msgspec.structs.replace(guest(running=True), move=ENDED),
                "a guest that runs is stopped by a person",
            ),
            (guest(running=False), "no move marked this guest"),
        ):
            snapshot = at_rest(hosts=(view("source", guest(running=True)), view("third", found)))
            (mend,) = [
                each
                for each in plan(snapshot, judge(snapshot), Evidence())
                if each.finding.host == "third" and each.finding.kind == "guest"
            ]
            assert (mend.does == "", why in mend.why) == (bool(why), True)

    @pytest.mark.parametrize(
        ("there", "evidence", "why"),
        [
            (directory(move=ENDED), {}, ""),
            (directory(f".part-{ENDED}-third"), {}, ""),
            (directory(f".part-{ENDED}-other"), {}, "none that the worker of third gives"),
            (directory(f".part-{MOVE[:-1]}9-third"), {}, "knows no move"),
            (directory("_resize", ENDED), {}, "may hold the only disks"),
            (directory(), {}, "may hold the only disks"),
            (directory(move=ENDED), {"away": frozenset({"third"})}, "third is away"),
        ],
    )
    def test_a_directory_goes_only_when_its_name_or_marker_proves_it(
        self, there: Any, evidence: dict[str, Any], why: str
    ) -> None:
        snapshot = at_rest(stores=(store("source", directory()), store("third", there)))
        mend = planned(snapshot, f"instances/{there.name}", **evidence)
        assert (mend.does == "", why in mend.why) == (bool(why), True)

    def test_what_lies_on_shared_storage_stays(self) -> None:
        shared = replace(store("third", directory(f".part-{ENDED}-third")), hosts=("dest", "third"))
        mend = planned(at_rest(stores=(store("source", directory()), shared)), f"instances/{shared.entries[0].name}")
        assert "share their storage" in mend.why

    def test_a_copy_stays_while_nobody_saw_the_server_where_it_lives(self) -> None:
        snapshot = at_rest(
            stores=(store("source", directory()), store("third", directory(move=ENDED))), hosts=(view("third"),)
        )
        assert "nobody could look" in planned(snapshot, f"instances/{SERVER}").why
