"""What a move left of its server by the journal alone: which of its steps ended well, and which were undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.rows.moving_rows import DESTINATION, FLAVOR, FLOW, MOVE, NOW, SOURCE, Moving, record

from droveway.engines.operations import left
from droveway.engines.operations.left import Books, Left
from droveway.errors import Refused
from droveway.flows import registry
from droveway.flows.before import as_json
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import Move, MoveAttempt, MoveFlow, MoveStep

LARGE: Final = {**FLAVOR, "nova_object.data": {**FLAVOR["nova_object.data"], "id": 2, "vcpus": 3}}
ENDED: Final = {"code": "x", "message": "y", "host": ""}
OTHER: Final = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b44"

PREPARED: Final = ["record_before", "accept", "record_migration", "choose_destinations", "claim", "record_destination"]
SWITCHED: Final = [
    *PREPARED,
    "mark_migrating",
    "stop_guest",
    "set_aside",
    "copy_disks",
    "move_volumes",
    "switch_records",
]
FINISHED: Final = [*SWITCHED, "start_guest", "save_request_spec", "finish_records"]


class Journal:
    """A move whose history a test writes."""

    def __init__(self, folder: Path) -> None:
        self.moving = Moving(folder, kind="resize")
        known = as_json(record(new_flavor=LARGE, availability_zone="az1"))
        with self.moving.journal.write() as session:
            move = session.get(Move, MOVE)
            assert move is not None
            move.kind, move.state, move.before, move.flow_uuid, move.attempt = (
                "resize",
                "needs-operator",
                known,
                FLOW,
                2,
            )
            for number, host in enumerate(("host9", DESTINATION), 1):
                session.add(
                    MoveAttempt(
                        move_id=MOVE, attempt=number, cell="cell1", host=host, node=host, provider=host,
                        request={"allocations": {}}, created_at=NOW,
                    )
                )  # fmt: skip

    def ran(self, flow: str, *steps: str, attempt: int = 2, flow_uuid: str = FLOW, **facts: Any) -> None:
        """Note runs that ended; ``-step``: its undo."""
        with self.moving.journal.write() as session:
            for step in steps:
                known = {"ended_at": NOW, "direction": "revert" if step.startswith("-") else "execute"} | facts
                session.add(
                    MoveStep(
                        move_id=MOVE, flow_uuid=flow_uuid, flow=flow, step=step.removeprefix("-"), attempt=attempt,
                        started_at=NOW, **known,
                    )
                )  # fmt: skip

    def file(self, flow: str, kind: str) -> None:
        """Let the journal have this flow."""
        with self.moving.journal.write() as session:
            session.add(MoveFlow(uuid=flow, move_id=MOVE, kind=kind, version=1, digest="d", created_at=NOW))

    def change(self, **columns: Any) -> None:
        with self.moving.journal.write() as session:
            move = session.get(Move, MOVE)
            for name, value in columns.items():
                setattr(move, name, value)

    def left(self) -> Left:
        with self.moving.journal.read() as session:
            move = session.get(Move, MOVE)
            assert move is not None
            return left.of(session, move)

    def told(self) -> tuple[Any, ...]:
        """Task, vm_state, host, migration, the three flavors, whose attachments, who holds what."""
        found = self.left()
        stands = found.stands
        state = (stands.task_state, found.vm_state(running=True), found.home, stands.status)
        return (*state, stands.cur, stands.old, stands.new, stands.attachments, found.books)


@pytest.fixture(name="journal")
def fixture_journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.moving.close()


FIRST: Final = ("resize_migrated", "active", SOURCE)
PARKS: Final[dict[str, tuple[list[tuple[str, list[str]]], tuple[Any, ...]]]] = {
    "its mark": ([("resize", PREPARED[:2])], (*FIRST, None, "old", None, None, "source", Books.SOURCE)),
    "its claim": ([("resize", PREPARED[:5])], (*FIRST, "pre-migrating", "old", None, None, "source", Books.BOTH)),
    "the copy": ([("resize", SWITCHED[:10])], (*FIRST, "migrating", "old", None, "new", "source", Books.BOTH)),
    "the volumes": ([("resize", SWITCHED[:11])], (*FIRST, "migrating", "old", None, "new", "destination", Books.BOTH)),
    "the switch": (
        [("resize", SWITCHED)],
        ("resize_finish", "active", DESTINATION, "post-migrating", "new", "old", "new", "destination", Books.BOTH),
    ),
    "the switch's undo": (
        [("resize", [*SWITCHED, "-switch_records", "-move_volumes"])],
        (*FIRST, "migrating", "old", None, "new", "source", Books.BOTH),
    ),
    "the claim's undo": (
        [("resize", [*PREPARED, "-record_destination", "-claim"])],
        (*FIRST, "pre-migrating", "old", None, None, "source", Books.SOURCE),
    ),
    "all but the mark's undo": (
        [("resize", [*PREPARED, "-record_destination", "-claim", "-record_migration"])],
        (*FIRST, "error", "old", None, None, "source", Books.SOURCE),
    ),
    "the confirm's mark": (
        [("resize", FINISHED), ("confirm", ["mark_confirming"])],
        (None, "resized", DESTINATION, "confirming", "new", "old", "new", "destination", Books.BOTH),
    ),
    "the source's release": (
        [("resize", FINISHED), ("confirm", ["mark_confirming", "discard_source", "release_source_allocation"])],
        (None, "resized", DESTINATION, "confirming", "new", "old", "new", "destination", Books.DESTINATION),
    ),
    "the way back": (
        [("resize", FINISHED), ("revert", ["mark_reverting", "move_volumes", "switch_records"])],
        ("resize_reverting", "resized", SOURCE, "reverting", "old", "old", "new", "source", Books.BOTH),
    ),
    "the return": (
        [("resize", FINISHED), ("revert", ["mark_reverting", "move_volumes", "switch_records", "return_allocation"])],
        ("resize_reverting", "resized", SOURCE, "reverting", "old", "old", "new", "source", Books.SOURCE),
    ),
    "a revert's undo": (
        [("resize", FINISHED), ("revert", ["mark_reverting", "move_volumes", "-move_volumes"])],
        ("resize_reverting", "resized", DESTINATION, "reverting", "new", "old", "new", "destination", Books.BOTH),
    ),
}


@pytest.mark.parametrize("behind", PARKS)
def test_a_parked_move_left_what_its_last_step_wrote(journal: Journal, behind: str) -> None:
    flows, wanted = PARKS[behind]
    for flow, steps in flows:
        journal.ran(flow, *steps)
    assert journal.told() == wanted


@pytest.mark.parametrize("kind", ["resize", "confirm", "revert"])
def test_a_run_that_did_not_end_well_counts_for_nothing(journal: Journal, kind: str) -> None:
    """It failed, was broken off, or a person said that it was not done."""
    journal.ran("resize", *(FINISHED if kind != "resize" else PREPARED))
    before = journal.told()
    for step in registry.graph(kind, 1).walk():
        for facts in ({"error": ENDED}, {"ended_at": None}, {"result": {"settled": "not-done"}}):
            journal.ran(kind, step.step_name(), **facts)
    assert journal.told() == before


def test_what_a_person_said_is_done_counts(journal: Journal) -> None:
    journal.ran("resize", *SWITCHED[:-1])
    journal.ran("resize", "switch_records", result={"settled": "done"})
    assert journal.told()[2] == DESTINATION


def test_a_step_that_found_no_server_wrote_nothing(journal: Journal) -> None:
    journal.ran("resize", *SWITCHED[:-1])
    journal.ran("resize", "switch_records", result={"server": "deleted"})
    assert journal.told()[2] == SOURCE


def test_an_adopted_flow_that_runs_again_is_where_it_was(journal: Journal) -> None:
    """Else the mark of the migration, entered again, would take back what the switch wrote."""
    journal.ran("resize", *SWITCHED)
    before = journal.told()
    journal.ran("", ADOPTED, error=ENDED)
    journal.ran("resize", *SWITCHED[4:8])
    assert journal.told() == before
    journal.ran("resize", *SWITCHED[8:], "start_guest", "save_request_spec")
    assert journal.told() == before
    assert journal.left().new_spec
    journal.ran("resize", "finish_records")
    assert journal.told()[3] == "finished"


ENDS: Final = {
    "verifying": (None, "resized", DESTINATION, "finished", "new", "old", "new", "destination", Books.BOTH),
    "done": (None, "active", DESTINATION, "confirmed", "new", None, None, "destination", Books.DESTINATION),
    "reverted": (None, "active", SOURCE, "reverted", "old", None, None, "source", Books.SOURCE),
    "failed": (None, "active", SOURCE, "error", "old", None, None, "source", Books.SOURCE),
    "cancelled": (None, "active", SOURCE, "error", "old", None, None, "source", Books.SOURCE),
}


@pytest.mark.parametrize("state", ENDS)
def test_the_end_of_a_move_is_told_by_its_state(journal: Journal, state: str) -> None:
    """Whatever its history lacks: Nova may have brought it there."""
    journal.change(state=state, flow_uuid=None)
    journal.ran("resize", *PREPARED)
    assert journal.told() == ENDS[state]
    found = journal.left()
    assert found.new_spec is (state in ("verifying", "done"))
    assert found.action == ""
    assert found.destination is not None
    assert found.destination.host == DESTINATION


@pytest.mark.parametrize("state", ["failed", "cancelled"])
@pytest.mark.parametrize(("steps", "status", "host"), [(2, None, None), (3, "error", None), (6, "error", "host9")])
def test_a_move_that_was_undone_left_no_more_than_it_had_written(
    journal: Journal, state: str, steps: int, status: str | None, host: str | None
) -> None:
    """No migration is made up for it, and no destination."""
    journal.ran("resize", *PREPARED[:steps], attempt=1)
    journal.change(state=state)
    found = journal.left()
    assert found.stands.status == status
    assert (found.destination.host if found.destination else None) == host


@pytest.mark.parametrize("state", ["verifying", "needs-operator", "deleting"])
def test_a_delete_that_waits_keeps_its_task(journal: Journal, state: str) -> None:
    journal.ran("resize", *FINISHED)
    journal.change(state=state, delete_requested=True)
    assert journal.left().stands.task_state == "deleting"


def test_a_deleted_server_has_no_rows(journal: Journal) -> None:
    journal.ran("resize", *FINISHED)
    journal.ran("delete", "mark_deleting")
    journal.change(delete_requested=True)
    assert journal.told()[:3] == ("deleting", "resized", DESTINATION)
    journal.ran("delete", "settle_records")
    with pytest.raises(Refused, match="server web was deleted with move"):
        journal.left()


def test_a_move_without_a_record_left_nothing(journal: Journal) -> None:
    journal.change(before=None)
    with pytest.raises(Refused, match="never recorded what server web was, so it left nothing anywhere"):
        journal.left()


@pytest.mark.parametrize(("step", "flow", "name"), [
    ("accept", "resize", "resize"),
    ("mark_confirming", "confirm", "confirmResize"),
    ("mark_reverting", "revert", "revertResize"),
])  # fmt: skip
def test_the_action_of_the_flow_under_way_stands_from_its_mark_on(
    journal: Journal, step: str, flow: str, name: str
) -> None:
    """The undo of the mark does nothing where the action never began."""
    journal.ran("resize", *FINISHED, flow_uuid=OTHER)
    assert journal.left().action == ""
    journal.ran(flow, step)
    assert journal.left().action == name
    journal.ran(flow, f"-{step}")
    assert journal.left().action == ""


UNDER_WAY: Final[dict[str, tuple[str, list[tuple[str, list[str]]], bool]]] = {
    "forward": ("resize", [("resize", PREPARED)], True),
    "forward, adopted": ("resize", [("resize", PREPARED), ("", [ADOPTED])], True),
    "revert": ("revert", [("resize", FINISHED), ("revert", ["mark_reverting"])], False),
    "revert, adopted": ("revert", [("resize", FINISHED), ("revert", ["mark_reverting"]), ("", [ADOPTED])], False),
    "revert, adopted before its first step": ("revert", [("resize", FINISHED), ("", [ADOPTED])], False),
    "confirm that is only filed": ("confirm", [("resize", FINISHED)], False),
    "delete": ("delete", [("resize", PREPARED), ("delete", ["mark_deleting"])], False),
    "delete that waits": ("", [("resize", PREPARED)], False),
}


@pytest.mark.parametrize("what", UNDER_WAY)
def test_the_flow_under_way_is_the_first_unless_it_ends_the_wait_or_deletes(journal: Journal, what: str) -> None:
    """What a revert makes in another cell has no id of the move in it, and nobody may take it for half made."""
    kind, ran, forward = UNDER_WAY[what]
    for flow, steps in ran:
        journal.ran(flow, *steps, flow_uuid=OTHER if flow == "resize" != kind else FLOW)
    if kind:
        journal.file(FLOW, kind)
    else:
        journal.change(state="deleting", flow_uuid=None)
    assert journal.left().forward is forward
