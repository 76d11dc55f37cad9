"""Which changes of Nova's state columns a move may make: of two copies in two cells, the mapped one's.

A state is `instances.vm_state`, `instances.task_state` and the status of the move's own row in `migrations` (None while
there is no row).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from droveway.errors import IllegalTransition
from droveway.persistence.nova.vm_states import MOVABLE


class ServerState(NamedTuple):
    """The three columns that together say where a server's move stands."""

    vm_state: str
    task_state: str | None
    migration: str | None

    def __str__(self) -> str:
        return f"{self.vm_state}/{self.task_state or 'NULL'} with migration {self.migration or 'none'}"


class Transition(NamedTuple):
    """A change that a step, or the undo of a step, may make."""

    step: str
    undo: bool
    old: ServerState
    new: ServerState


# In the rows below "a" is active or stopped, the same on both sides; where a resized server becomes "a", either may
# follow. A row: the step, from, to, and whether its undo leads back; "undo" in front: the undo leads elsewhere.
_CHANGES: Final[tuple[tuple[str, str, str, bool], ...]] = (
    # The first mark is one that a restarting nova-compute leaves alone: it clears resize_prep and starts what is off.
    ("accept", "a - -", "a resize_migrated -", True),
    ("record_migration", "a resize_migrated -", "a resize_migrated pre-migrating", False),
    ("undo record_migration", "a resize_migrated pre-migrating", "a resize_migrated error", False),
    ("undo accept", "a resize_migrated error", "a - error", False),
    ("mark_migrating", "a resize_migrated pre-migrating", "a resize_migrated migrating", True),
    # Flows that an earlier release began have marked their servers with Nova's own first state.
    ("accept", "a resize_prep -", "a resize_migrated -", False),
    ("undo accept", "a resize_prep -", "a - -", False),
    ("record_migration", "a resize_prep -", "a resize_prep pre-migrating", False),
    ("undo record_migration", "a resize_prep pre-migrating", "a resize_prep error", False),
    ("undo accept", "a resize_prep error", "a - error", False),
    ("mark_migrating", "a resize_prep pre-migrating", "a resize_migrated migrating", False),
    ("switch_records", "a resize_migrated migrating", "a resize_finish post-migrating", True),
    # Between two cells the data has arrived before the mapping names the other copy.
    ("hand_over_source", "a resize_migrated migrating", "a resize_migrated post-migrating", True),
    ("switch_mapping", "a resize_migrated post-migrating", "a resize_finish post-migrating", True),
    ("finish_records", "a resize_finish post-migrating", "resized - finished", False),
    ("mark_confirming", "resized - finished", "resized - confirming", True),
    ("settle_records", "resized - confirming", "a - confirmed", False),
    ("mark_reverting", "resized - finished", "resized resize_reverting reverting", True),
    ("settle_records", "resized resize_reverting reverting", "a - reverted", False),
    # A shelve and an unshelve have no migration.
    ("mark_shelving", "a - -", "a shelving -", True),
    ("record_shelved", "a shelving -", "shelved shelving_offloading -", True),
    ("settle_records", "shelved shelving_offloading -", "shelved_offloaded - -", False),
    ("settle_records", "a shelving -", "shelved_offloaded - -", False),
    ("mark_unshelving", "shelved_offloaded - -", "shelved_offloaded unshelving -", True),
    ("finish_records", "shelved_offloaded unshelving -", "active - -", False),
    # A delete may come at any time; a forward flow that finds it releases what it holds, or ends first when past its
    # undo, as a confirm or revert does.
    ("delete", "a - -", "a deleting -", False),
    ("delete", "a - error", "a deleting error", False),
    ("delete", "a - confirmed", "a deleting confirmed", False),
    ("delete", "a - reverted", "a deleting reverted", False),
    ("delete", "a resize_migrated -", "a deleting -", False),
    ("delete", "a resize_migrated pre-migrating", "a deleting pre-migrating", False),
    ("delete", "a resize_migrated error", "a deleting error", False),
    ("delete", "a resize_prep -", "a deleting -", False),
    ("delete", "a resize_prep pre-migrating", "a deleting pre-migrating", False),
    ("delete", "a resize_prep error", "a deleting error", False),
    ("delete", "a resize_migrated migrating", "a deleting migrating", False),
    ("delete", "a resize_migrated post-migrating", "a deleting post-migrating", False),
    ("delete", "a resize_finish post-migrating", "a deleting post-migrating", False),
    ("delete", "resized - finished", "resized deleting finished", False),
    ("delete", "resized - confirming", "resized deleting confirming", False),
    ("delete", "resized resize_reverting reverting", "resized deleting reverting", False),
    ("undo switch_records", "a deleting post-migrating", "a deleting migrating", False),
    ("undo mark_migrating", "a deleting migrating", "a deleting pre-migrating", False),
    ("undo record_migration", "a deleting pre-migrating", "a deleting error", False),
    ("finish_records", "a deleting post-migrating", "resized deleting finished", False),
    ("mark_confirming", "resized deleting finished", "resized deleting confirming", True),
    ("settle_records", "resized deleting confirming", "a deleting confirmed", False),
    ("mark_reverting", "resized deleting finished", "resized deleting reverting", True),
    ("settle_records", "resized deleting reverting", "a deleting reverted", False),
    ("delete", "a deleting -", "deleted - -", False),
    ("delete", "a deleting error", "deleted - error", False),
    ("delete", "a deleting confirmed", "deleted - confirmed", False),
    ("delete", "a deleting reverted", "deleted - reverted", False),
)


def _states(text: str) -> list[ServerState]:
    vm_state, task_state, migration = (None if word == "-" else word for word in text.split())
    alternatives = sorted(MOVABLE) if vm_state == "a" else [vm_state or ""]
    return [ServerState(alternative, task_state, migration) for alternative in alternatives]


def _transitions() -> Iterator[Transition]:
    for name, before, after, undone in _CHANGES:
        step = name.removeprefix("undo ")
        for old in _states(before):
            for new in _states(after):
                if {old.vm_state, new.vm_state} == MOVABLE:
                    continue
                yield Transition(step, name != step, old, new)
                if undone:
                    yield Transition(step, True, new, old)


TRANSITIONS: Final = tuple(_transitions())
"""Every legal change of a move: forward, confirm, revert and delete, and their undos."""

_LEGAL: Final = frozenset((transition.old, transition.new) for transition in TRANSITIONS)


def check_transition(old: ServerState, new: ServerState) -> None:
    """Raise `droveway.errors.IllegalTransition` unless some step or undo of a move leads from old to new."""
    if (old, new) not in _LEGAL:
        raise IllegalTransition(f"a server that is {old} cannot become {new}")
