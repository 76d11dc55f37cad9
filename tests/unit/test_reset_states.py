"""A server whose state an administrator reset in the middle of its move gets its mark back, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, MOVE, SERVER, SOURCE, Moving, record

from droveway.errors import Fenced
from droveway.flows import outcome
from droveway.flows.before import as_json, before
from droveway.flows.run import Context
from droveway.flows.step import Step
from droveway.persistence.journal.tables import Move


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    yield made
    made.close()


MARKS = [
    ("migrate", SOURCE, "active", "resize_migrated", "pre-migrating"),
    ("migrate", SOURCE, "active", "resize_migrated", "migrating"),
    ("resize", DESTINATION, "active", "resize_finish", "post-migrating"),
    ("revert", DESTINATION, "resized", "resize_reverting", "reverting"),
    ("revert", SOURCE, "resized", "resize_reverting", "reverting"),
]
"""Kind of flow, host, vm_state and task_state that its steps leave, and its migration's status."""


@pytest.mark.parametrize("reset_to", ["active", "error"])
@pytest.mark.parametrize(("kind", "host", "state", "task", "status"), MARKS)
def test_the_mark_of_the_move_is_put_again(
    moving: Moving, kind: str, host: str, state: str, task: str, status: str, reset_to: str
) -> None:
    """Nova's API lets nobody at a server with a task, and `os-resetState` takes it away."""
    moving.kind = kind
    moving.place(host, None, status, reset_to)
    outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (host, state, task, status)
    outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (host, state, task, status)


@pytest.mark.parametrize(
    ("host", "state", "again"),
    [
        (DESTINATION, "active", True),
        (DESTINATION, "error", True),
        (DESTINATION, "stopped", True),
        (DESTINATION, "paused", False),
        (SOURCE, "active", False),
        (None, "active", False),
    ],
)
def test_an_unshelve_gets_its_mark_again_once_its_server_has_the_host(
    moving: Moving, host: str | None, state: str, *, again: bool
) -> None:
    """It has no migration that would tell how far it is; one that its user stopped was shelved all the same."""
    moving.kind = "unshelve"
    moving.row.before = as_json(record(vm_state="shelved_offloaded"))
    with moving.journal.write() as session:
        session.scalars(sa.select(Move)).one().before = moving.row.before
    moving.place(host, None, "migrating", state)
    ctx: Context = moving.context("start_guest")
    outcome.mark_again(ctx)
    assert moving.seen()[:3] == ((host, "shelved_offloaded", "unshelving") if again else (host, state, None))
    found = before(ctx.move)
    assert (found.vm_state, found.stopped) == ("shelved_offloaded", state == "stopped")
    assert found.powered_on == (state != "stopped")


def test_a_server_that_was_stopped_is_stopped_again(moving: Moving) -> None:
    moving.row.before = as_json(record(vm_state="stopped"))
    moving.place(SOURCE, None, "migrating", "error")
    outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (SOURCE, "stopped", "resize_migrated", "migrating")


@pytest.mark.parametrize(
    ("kind", "host", "state", "task", "status"),
    [
        pytest.param("migrate", SOURCE, "active", "rebuild_spawning", "migrating", id="another task"),
        pytest.param("migrate", SOURCE, "shelved", None, "migrating", id="a state that no reset writes"),
        pytest.param("migrate", "host3", "active", None, "migrating", id="another host"),
        pytest.param("migrate", SOURCE, "active", None, "post-migrating", id="the source after the switch"),
        pytest.param("migrate", DESTINATION, "active", None, "migrating", id="the destination before the switch"),
        pytest.param("migrate", SOURCE, "active", None, "error", id="a migration that ended"),
        pytest.param("migrate", DESTINATION, "active", None, "finished", id="a server that waits"),
        pytest.param("revert", DESTINATION, "active", None, "finished", id="a revert that was undone"),
        pytest.param("revert", "host3", "active", None, "reverting", id="a revert, another host"),
        pytest.param("confirm", DESTINATION, "active", None, "confirming", id="a confirm"),
        pytest.param("delete", DESTINATION, "active", None, "reverting", id="a delete"),
    ],
)
def test_rows_that_a_reset_did_not_leave_stay(
    moving: Moving, kind: str, host: str, state: str, task: str | None, status: str
) -> None:
    moving.kind = kind
    moving.place(host, task, status, state)
    outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (host, state, task, status)


@pytest.mark.parametrize("what", ["a server that is gone", "a move without a record"])
def test_nothing_is_written_of(moving: Moving, what: str) -> None:
    moving.place(SOURCE, None, "migrating", "error")
    if what == "a server that is gone":
        moving.change(deleted=1)
    else:
        moving.row.before = None
    outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (SOURCE, "error", None, "migrating")


def test_only_the_claim_that_stands_writes_it(moving: Moving) -> None:
    moving.place(SOURCE, None, "migrating", "error")
    moving.cells.raise_fence("cell1", SERVER, 2)
    with pytest.raises(Fenced):
        outcome.mark_again(moving.context("copy_disks"))
    assert moving.seen() == (SOURCE, "error", None, "migrating")


@pytest.mark.parametrize(("kind", "host", "state", "task", "status"), MARKS)
def test_a_server_that_its_user_stopped_behind_a_reset_counts_as_stopped(
    moving: Moving, kind: str, host: str, state: str, task: str, status: str
) -> None:
    """Its mark is put again; where the move ends the guest is left off, by the journal too."""
    moving.kind = kind
    moving.place(host, None, status, "stopped")
    ctx: Context = moving.context("copy_disks")
    outcome.mark_again(ctx)
    assert moving.seen() == (host, "stopped" if state == "active" else state, task, status)
    with moving.journal.read() as session:
        kept = before(session.scalars(sa.select(Move)).one())
    for each in (before(ctx.move), kept):
        assert (each.stopped, each.vm_state, each.power_state, each.guest.running) == (True, "stopped", 4, False)
        assert not each.powered_on


def test_a_server_that_was_only_reset_is_not_recorded_as_stopped(moving: Moving) -> None:
    moving.place(SOURCE, None, "migrating", "error")
    ctx: Context = moving.context("copy_disks")
    outcome.mark_again(ctx)
    assert not before(ctx.move).stopped


class Starting(Step):
    """Starts a guest in one direction."""

    starts = "execute"
    does = "starts a guest"


class Finishing(Step):
    """Starts nothing."""

    does = "ends the move"


@pytest.mark.parametrize(
    ("direction", "noted", "again"),
    [
        ("execute", None, False),
        ("execute", ("starting", "execute", 1), False),
        ("execute", ("starting", "revert", 0), False),
        ("execute", ("copy_disks", "execute", 0), False),
        ("execute", ("starting", "execute", 0), True),
        ("revert", None, True),
    ],
)
def test_a_guest_is_started_under_the_old_mark_only_by_a_retry(
    moving: Moving, direction: str, noted: tuple[str, str, int] | None, *, again: bool
) -> None:
    """A person has seen then that the state was reset: the step was entered under another claim before."""
    if noted is not None:
        moving.note(noted[0], noted[1], epoch=noted[2])
    moving.place(SOURCE, None, "migrating", "error")
    ctx: Context = moving.context("starting", direction)
    Starting(moving)._mark_again(ctx)
    assert ctx.move.id == MOVE
    assert moving.seen() == (SOURCE, *(("active", "resize_migrated") if again else ("error", None)), "migrating")


@pytest.mark.parametrize(
    ("step", "tried", "again"), [("starting", True, True), ("starting", False, False), ("", True, False)]
)
def test_an_unshelve_gets_it_by_a_retry_of_its_start_alone(
    moving: Moving, step: str, *, tried: bool, again: bool
) -> None:
    """Past the start the state is the user's."""
    moving.kind = "unshelve"
    moving.row.before = as_json(record(vm_state="shelved_offloaded"))
    name = step or "finish_records"
    if tried:
        moving.note(name, "execute", epoch=0)
    moving.place(DESTINATION, None, "migrating", "active")
    made = Starting(moving) if step else Finishing(moving)
    made._mark_again(moving.context(name, "execute"))
    assert moving.seen()[2] == ("unshelving" if again else None)
