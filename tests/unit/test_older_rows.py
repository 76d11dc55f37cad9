"""Whether the rows of a server are older than its move: what a step meets, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import ATTACHMENT, CELL, DESTINATION, FLAVOR, MOVE, NOW, SERVER, SOURCE, VOLUME, Moving

from droveway.errors import Parked, StepError
from droveway.flows import older_rows
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova import objects
from droveway.persistence.nova.cell import BlockDeviceMapping, InstanceAction, InstanceExtra, Migration
from droveway.scheduler import server_rules
from droveway.wire.values import Direction

FORWARD = [
    "record_before",
    "accept",
    "record_migration",
    "choose_destinations",
    "claim",
    "record_destination",
    "check_destination",
    "find_storage",
    "reserve_ports",
    "reserve_volumes",
    "mark_migrating",
    "stop_guest",
    "move_volumes",
    "switch_records",
    "start_guest",
    "save_request_spec",
    "finish_records",
]
RESERVED = "0b1e7c55-0000-4a63-8d4e-2a0f2a0c9bff"


class Journaled(Moving):
    """A move whose history is written, and which notes why it parks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.why = ""
        assert self.chosen is not None
        self.chosen.created_at = NOW
        with self.journal.write() as session:
            session.add(self.chosen)

    def park(self, _step: str, _direction: Direction, error: StepError) -> NoReturn:
        """Note the reason."""
        assert error.error_code == "cell-put-back"
        self.why = str(error)
        raise Parked(self.why)

    def ran(self, *steps: str, direction: Direction = "execute", error: bool = False, old: str = ATTACHMENT) -> None:
        """Let the history say that these steps ended; volumes are reserved anew beside ``old``, without one none is."""
        reserved = {VOLUME: {"old": old, "new": RESERVED if old == ATTACHMENT else f"{old} back"}} if old else {}
        with self.journal.write() as session:
            for step in steps:
                session.add(
                    MoveStep(
                        move_id=MOVE,
                        flow_uuid=self.flow_uuid,
                        flow=self.kind,
                        step=step,
                        direction=direction,
                        attempt=1,
                        started_at=NOW,
                        ended_at=NOW,
                        result=None if error else reserved if step == "reserve_volumes" else {},
                        error={"code": "x"} if error else None,
                    )
                )

    def rows(self, host: str, task: str | None, status: str | None, vm_state: str = "active", **traces: Any) -> None:
        """Let the cell say this; ``traces`` are the slots of the flavors that are filled, ``named`` the attachment."""
        named = traces.pop("named", ATTACHMENT)
        with self.cell.write() as session:
            if status is None:
                session.execute(sa.delete(Migration))
        self.place(host, task, status or "none", vm_state)
        with self.cell.write() as session:
            if status is None:
                session.execute(sa.delete(Migration))
            there = "new" in traces
            session.execute(sa.update(Migration).values(dest_compute=DESTINATION if there else None))
            slots = {slot: FLAVOR if slot == "cur" or slot in traces else None for slot in ("cur", "old", "new")}
            context = "{}" if there else None
            session.execute(sa.update(InstanceExtra).values(flavor=objects.encode(slots), migration_context=context))
            session.execute(sa.update(BlockDeviceMapping).values(attachment_id=named))

    def asked(self, step: str, direction: Direction = "execute") -> str:
        """Enter the step; why the move parks, or nothing."""
        self.why = ""
        self.note(step, direction)
        try:
            older_rows.require_own(self.context(step, direction))
        except Parked:
            return self.why
        finally:
            older_rows._WALKS.pop(self, None)
            with self.journal.write() as session:
                session.execute(sa.delete(MoveStep).where(MoveStep.ended_at.is_(None)))
        return ""


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Journaled]:
    made = Journaled(tmp_path)
    yield made
    made.close()


def until(step: str) -> list[str]:
    return FORWARD[: FORWARD.index(step) + 1]


MIGRATING = {"new": 1}
SWITCHED = {"old": 1, "new": 1, "named": RESERVED}


def test_rows_as_the_last_step_left_them_are_gone_on_with(moving: Journaled) -> None:
    moving.ran(*until("stop_guest"))
    moving.rows(SOURCE, "resize_migrated", "migrating", **MIGRATING)
    assert moving.asked("move_volumes") == ""


def test_rows_one_step_ahead_are_those_of_a_step_that_died_behind_its_commit(moving: Journaled) -> None:
    moving.ran(*until("move_volumes"))
    moving.rows(DESTINATION, "resize_finish", "post-migrating", **SWITCHED)
    assert moving.asked("switch_records") == ""
    moving.ran("switch_records", error=True)
    assert moving.asked("switch_records", "revert") == ""


@pytest.mark.parametrize(
    ("task", "status", "traces"),
    [
        (None, None, {}),
        ("resize_migrated", None, {}),
        ("resize_migrated", "pre-migrating", {}),
        ("resize_migrated", "pre-migrating", MIGRATING),
    ],
)
def test_rows_of_an_earlier_step_park_the_move(
    moving: Journaled, task: str | None, status: str | None, traces: dict[str, Any]
) -> None:
    moving.ran(*until("stop_guest"))
    moving.rows(SOURCE, task, status, **traces)
    ways: tuple[tuple[str, Direction], ...] = (("move_volumes", "execute"), ("stop_guest", "revert"))
    for step, direction in ways:
        why = moving.asked(step, direction)
        assert "so nothing was done" in why
        assert f"put back from a copy, droveway move settle {MOVE[:8]} --cell {CELL} --reason TEXT" in why
        assert f"droveway move retry {MOVE[:8]}" in why


def test_rows_that_name_the_source_again_park_a_move_that_has_switched_them(moving: Journaled) -> None:
    moving.ran(*until("switch_records"))
    moving.rows(SOURCE, "resize_migrated", "migrating", **MIGRATING)
    assert moving.asked("start_guest")


@pytest.mark.parametrize(
    ("host", "task", "vm_state"),
    [(SOURCE, None, "error"), (SOURCE, "deleting", "active"), ("host3", "resize_migrated", "active")],
)
def test_rows_that_no_step_has_left_are_somebody_elses(
    moving: Journaled, host: str, task: str | None, vm_state: str
) -> None:
    moving.ran(*until("stop_guest"))
    moving.rows(host, task, "migrating", vm_state, **MIGRATING)
    assert moving.asked("move_volumes") == ""


def test_a_state_that_was_reset_is_none_of_a_copy_while_the_action_is_there(moving: Journaled) -> None:
    moving.ran(*until("accept"))
    moving.rows(SOURCE, None, None)
    assert moving.asked("record_migration")
    with moving.cell.write() as session:
        request = f"req-{moving.flow_uuid}"
        session.add(InstanceAction(action="migrate", instance_uuid=SERVER, request_id=request, deleted=0))
    assert moving.asked("record_migration") == ""


def test_an_attachment_that_the_move_has_given_up_is_a_copys(moving: Journaled) -> None:
    moving.ran(*until("finish_records"))
    moving.rows(DESTINATION, None, "finished", "resized", **SWITCHED)
    assert moving.asked("mark_reverting") == ""
    moving.rows(DESTINATION, None, "finished", "resized", **SWITCHED | {"named": ATTACHMENT})
    assert f"they name attachment {ATTACHMENT} of volume {VOLUME}" in moving.asked("mark_reverting")


def test_an_attachment_that_cinder_still_has_whole_is_no_copys(moving: Journaled) -> None:
    """Cinder was put back, and not the cell: an undo names in the rows what Cinder has."""
    moving.ran(*until("finish_records"))
    moving.rows(DESTINATION, None, "finished", "resized", **SWITCHED | {"named": ATTACHMENT})
    for status, parked in (("reserved", True), ("attached", False)):
        moving.held = [SimpleNamespace(id=ATTACHMENT, status=status)]
        assert bool(moving.asked("mark_reverting")) == parked


def test_what_an_alternate_had_reserved_says_nothing_of_the_next_one_on_the_servers_own_host(moving: Journaled) -> None:
    """There nothing is reserved, and the attachment stays."""
    moving.rows(SOURCE, "resize_migrated", "migrating", new=True)
    moving.ran(*FORWARD[: FORWARD.index("stop_guest")])
    moving.ran("reserve_volumes", direction="revert")
    moving.ran("reserve_volumes", old="")
    moving.ran("mark_migrating", "stop_guest", "move_volumes")
    assert moving.asked("move_ports") == ""


def test_the_undo_of_the_mark_lets_no_attachment_pass_that_is_gone(moving: Journaled) -> None:
    moving.ran(*until("finish_records"))
    moving.kind = "revert"
    moving.ran("mark_reverting", "check_source", "reserve_ports", "reserve_volumes", "move_volumes", old=RESERVED)
    moving.ran("move_volumes", "reserve_volumes", direction="revert", old=RESERVED)
    moving.rows(DESTINATION, "resize_reverting", "reverting", "resized", **SWITCHED | {"named": "made by the undo"})
    assert moving.asked("mark_reverting", "revert") == ""
    moving.rows(DESTINATION, None, "finished", "resized", **SWITCHED)
    assert f"they name attachment {RESERVED}" in moving.asked("mark_reverting", "revert")


def test_volumes_are_moved_whatever_attachments_the_rows_name(moving: Journaled) -> None:
    """What was reserved may be gone from Cinder: the step makes another one, and nothing else could."""
    moving.ran(*until("move_volumes"))
    moving.ran("move_volumes", direction="revert", error=True)
    moving.rows(SOURCE, "resize_migrated", "migrating", **MIGRATING | {"named": RESERVED})
    assert moving.asked("move_volumes", "revert") == ""


def test_a_flow_whose_journal_was_adopted_goes_by_the_rows(moving: Journaled) -> None:
    moving.ran(*until("stop_guest"))
    moving.ran(ADOPTED, error=True)
    moving.rows(SOURCE, "resize_migrated", "pre-migrating")
    assert moving.asked("move_volumes") == ""


def test_a_server_that_is_being_deleted_is_not_compared(moving: Journaled) -> None:
    moving.ran(*until("stop_guest"))
    moving.kind = "delete"
    moving.rows(SOURCE, None, None)
    assert moving.asked("mark_deleting") == ""


@pytest.mark.parametrize("task", ["resize_migrated", "resize_finish", "resize_reverting", "rebooting"])
def test_a_server_that_waits_with_a_task_of_its_move_names_the_command_that_writes_its_rows(task: str) -> None:
    """No such task ever passes by itself, and somebody else's does."""
    server: Any = SimpleNamespace(
        name="web", status="VERIFY_RESIZE", vm_state="resized", task_state=task, launched=True, host="host2", cell=CELL
    )
    facts: Any = SimpleNamespace(
        server=server, deleting=False, move=MOVE[:8], migration="finished", destination="host2", home=CELL
    )
    said = server_rules.waits_to_be_ended(facts)
    assert said is not None
    own = task.startswith("resize")
    assert (f"droveway move settle {MOVE[:8]} --cell {CELL} --reason TEXT" in said) == own
    assert ("wait for its task" in said) != own


def test_a_server_that_is_mapped_to_the_cell_that_it_left_names_the_command_that_maps_it() -> None:
    """The row there is as the move left it, so that nothing is to be written in that cell."""
    server: Any = SimpleNamespace(
        name="web",
        status="RESIZE",
        vm_state="active",
        task_state="resize_migrated",
        launched=True,
        host="host2",
        cell=CELL,
    )
    facts: Any = SimpleNamespace(
        server=server, deleting=False, move=MOVE[:8], migration="post-migrating", destination="host2", home="other"
    )
    said = server_rules.waits_to_be_ended(facts)
    assert said is not None
    assert f"put back from a copy, droveway move settle {MOVE[:8]} --cell api --reason TEXT" in said
    assert f"--cell {CELL}" not in said


def test_a_resized_server_without_the_time_of_its_launch_is_told_what_its_row_lacks() -> None:
    """It is VERIFY_RESIZE without a task, so that neither is asked for."""
    server: Any = SimpleNamespace(
        name="web", status="VERIFY_RESIZE", vm_state="resized", task_state=None, launched=False, host="host2", cell=CELL
    )
    facts: Any = SimpleNamespace(
        server=server, deleting=False, move=MOVE[:8], migration="finished", destination="host2", home=CELL
    )
    said = server_rules.waits_to_be_ended(facts)
    assert said is not None
    assert f"has no launched_at in cell {CELL}" in said
    assert "VERIFY_RESIZE" not in said
