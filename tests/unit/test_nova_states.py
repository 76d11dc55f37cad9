"""Nova's states of a server: what the API shows, and which changes a same-cell move may make."""

from __future__ import annotations

import itertools

import pytest
from support.rows.server_states import TRANSITIONS, ServerState, check_transition

from droveway.errors import IllegalTransition
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, MOVABLE, api_status


def state(text: str) -> ServerState:
    """Return the state written as `vm_state task_state migration`, with a dash for NULL."""
    vm_state, task_state, migration = (None if word == "-" else word for word in text.split())
    return ServerState(vm_state or "", task_state, migration)


FORWARD = (
    "- -",
    "resize_migrated -",
    "resize_migrated pre-migrating",
    "resize_migrated migrating",
    "resize_finish post-migrating",
)
PATHS = {
    "confirmed": [f"active {rest}" for rest in FORWARD]
    + ["resized - finished", "resized - confirming", "active - confirmed"],
    "confirmed after it was switched off": [f"active {rest}" for rest in FORWARD]
    + ["resized - finished", "resized - confirming", "stopped - confirmed"],
    "reverted": [f"stopped {rest}" for rest in FORWARD]
    + ["resized - finished", "resized resize_reverting reverting", "stopped - reverted"],
    "undone by an alternate and then ended": [f"active {rest}" for rest in FORWARD]
    + ["active resize_migrated migrating", "active resize_migrated pre-migrating", "active resize_migrated error"]
    + ["active - error"],
    "confirm undone": ["resized - finished", "resized - confirming", "resized - finished"],
    "revert undone": ["resized - finished", "resized resize_reverting reverting", "resized - finished"],
    "deleted while verifying": [
        "resized - finished",
        "resized deleting finished",
        "resized deleting confirming",
        "active deleting confirmed",
        "deleted - confirmed",
    ],
    "begun by an earlier release": ["active resize_prep pre-migrating", "active resize_migrated migrating"],
    "begun by an earlier release and undone": [
        "active resize_prep pre-migrating",
        "active resize_prep error",
        "active - error",
    ],
    "deleted while moving": [
        "active resize_migrated migrating",
        "active deleting migrating",
        "active deleting pre-migrating",
        "active deleting error",
        "deleted - error",
    ],
    "deleted past the point of no return": [
        "stopped resize_finish post-migrating",
        "stopped deleting post-migrating",
        "resized deleting finished",
        "resized deleting confirming",
        "stopped deleting confirmed",
    ],
}


@pytest.mark.parametrize("path", PATHS)
def test_a_move_may_go(path: str) -> None:
    states = [state(text) for text in PATHS[path]]
    for old, new in itertools.pairwise(states):
        check_transition(old, new)
    known = {found for transition in TRANSITIONS for found in (transition.old, transition.new)}
    assert set(states) <= known


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("active - -", "resized - finished"),
        ("active - -", "active - -"),
        ("active resize_prep pre-migrating", "stopped resize_prep error"),
        ("active resize_prep pre-migrating", "active resize_finish post-migrating"),
        ("active resize_migrating migrating", "active resize_finish post-migrating"),
        ("resized - finished", "active resize_finish post-migrating"),
        ("resized - finished", "active - confirmed"),
        ("active - confirmed", "resized - confirming"),
        ("active - reverted", "resized resize_reverting reverting"),
        ("resized deleting finished", "resized resize_reverting reverting"),
        ("deleted - error", "active - error"),
        ("error - error", "active - error"),
    ],
)
def test_a_move_may_not_go(old: str, new: str) -> None:
    with pytest.raises(IllegalTransition, match=r"^a server that is .* cannot become .* with migration"):
        check_transition(state(old), state(new))


def test_only_settling_finishing_and_shelving_change_the_vm_state() -> None:
    changing = {(row.step, row.undo) for row in TRANSITIONS if row.old.vm_state != row.new.vm_state}
    shelving = {("record_shelved", False), ("record_shelved", True)}
    assert changing == {("finish_records", False), ("settle_records", False), ("delete", False), *shelving}


def test_every_state_leads_to_an_end() -> None:
    ends = {state for row in TRANSITIONS for state in (row.old, row.new)} - {row.old for row in TRANSITIONS}
    assert {end.vm_state for end in ends} == {"deleted"}
    at_rest = {row.new for row in TRANSITIONS if row.new.task_state is None and row.new.migration in ENDED_MIGRATIONS}
    reached = set(at_rest)
    while more := {row.old for row in TRANSITIONS if row.new in reached} - reached:
        reached |= more
    assert {row.old for row in TRANSITIONS if row.old.migration not in {None, *ENDED_MIGRATIONS}} <= reached


@pytest.mark.parametrize(
    ("vm_state", "task_state", "status"),
    [
        ("active", None, "ACTIVE"),
        ("active", "powering-off", "ACTIVE"),
        ("active", "deleting", "ACTIVE"),
        ("active", "resize_reverting", "ACTIVE"),
        ("stopped", None, "SHUTOFF"),
        ("stopped", "resize_reverting", "SHUTOFF"),
        ("resized", None, "VERIFY_RESIZE"),
        ("resized", "deleting", "VERIFY_RESIZE"),
        ("resized", "resize_reverting", "REVERT_RESIZE"),
        ("error", "resize_prep", "ERROR"),
        ("deleted", None, "DELETED"),
        ("of a later Nova", None, "UNKNOWN"),
        (None, None, "UNKNOWN"),
    ],
)
def test_api_status(vm_state: str | None, task_state: str | None, status: str) -> None:
    assert api_status(vm_state, task_state) == status


@pytest.mark.parametrize("task_state", ["resize_prep", "resize_migrating", "resize_migrated", "resize_finish"])
def test_a_server_on_the_move_shows_resize(task_state: str) -> None:
    assert {api_status(vm_state, task_state) for vm_state in MOVABLE} == {"RESIZE"}
