"""The kinds of flow, each declared once: what a flow of the kind means to its move, to other flows and to the rows.

Code asks a kind's record for the one fact that it means, never whether a kind is one of certain names.  The steps of a
kind are in `droveway.flows`: each graph there points to its record here.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

from droveway.persistence.journal.states import State


class Carries(enum.StrEnum):
    """Where a flow brings the server."""

    NOWHERE = "it stays on its host"
    TO_DESTINATION = "to the move's destination"
    BACK = "back to the move's source"


class Way(enum.StrEnum):
    """How a move ends that waits for its confirm or revert."""

    CONFIRM = "confirm"
    REVERT = "revert"


class Evacuation(enum.StrEnum):
    """What a flow does that finds that Nova has evacuated its server."""

    IGNORED = "it does not look for that"
    UNDONE = "it is undone before its point of no return, and left from there on"
    LEFT = "it is left where it stands, and its move ends"


@dataclasses.dataclass(frozen=True)
class Ending:
    """What becomes of a move when a flow of the kind is done, or is undone."""

    state: State
    """Unless one of the following holds, the first of them that has a state."""
    unkept: State | None = None
    """Where a flow of another kind has made the move, and no confirm kept the server at its destination."""
    to_be_deleted: State | None = None
    """Where the move's server is to be deleted."""
    cancelled: State | None = None
    """Where the move was cancelled, or its server was gone."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """The facts of one kind; a fact that is not declared does not hold."""

    name: str
    past: str
    """What was done to a server whose flow of the kind is done, as a participle."""
    command: str
    """The command of ``droveway`` that asks for it."""

    # The move.
    running: State
    """The move's state while a flow of the kind runs."""
    done: Ending
    undone: Ending | None = None
    """None for a kind that goes forward only."""
    cancellable: bool = False
    """Whether a cancel, or a delete of its server, has it undone as long as it is before its point of no return.

    A flow of any other kind runs to its end first.
    """
    ends: Way | None = None
    """Which end of a wait for confirm or revert it brings; None for a kind that no move waits for."""
    asked_for_by_deletes: bool = False
    """Whether a delete of a server that waits for confirm or revert has this done first, and again until it is."""
    deletes: bool = False
    """Whether the server is to be gone at its end: its move cannot be cancelled, and no rows contradict it."""

    # Other flows.
    urgent: bool = True
    """Whether conductors take it before flows that copy disks."""
    limited: bool = False
    """Whether it counts for the limits of moves that run at a time."""

    # The server's rows.
    carries: Carries = Carries.NOWHERE
    crosses_cells: bool = False
    """Whether its move leads from one cell into another, each of which has a copy of the server's rows meanwhile."""
    elsewhere: bool = False
    """Whether it brings the server to another host of its source's cell, as its source is dead."""
    changes_flavor: bool = False
    """Whether the move asks for another flavor."""
    begins_offloaded: bool = False
    """Whether its server is on no host when it begins."""
    begins_with_accept: bool = False
    """Whether nothing is written in the cell before its step ``accept``."""
    leaves_known_rows: bool = False
    """Whether the journal knows what a move that began with the kind has left in the rows, wherever that rests."""
    needs_live_server: bool = False
    """Whether its steps leave the rows of a server alone that is being deleted; undos never do.

    Neither do the steps past the point of no return.
    """
    releases_gone_server: bool = False
    """Whether it goes on for a server that has no rows any more, so that the rest of the server is released."""
    evacuation: Evacuation = Evacuation.IGNORED
    migration_type: str = ""
    """What Nova calls the migration of a move that began with this kind."""
    has_migration: bool = True
    """Whether Nova keeps a migration of such a move; without one its rows alone say how far it is."""
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Status of the move's migration → the task_state with which the flow marks the server meanwhile."""
    begun_status: str = ""
    """What the migration says while a flow of the kind is under way, its own or Nova's; empty where nothing tells."""
    end_status: str = ""
    """What the migration says when the end of the kind is reached, whoever brought it there; empty as above."""

    def ending(self, *, done: bool) -> Ending:
        """What becomes of the move of a flow that ended so; one that goes forward only is always done."""
        return self.done if done or self.undone is None else self.undone

    @property
    def leads_to_wait(self) -> bool:
        """Whether the move waits for confirm or revert once the flow is done."""
        return self.done.state is State.VERIFYING

    @property
    def stays_there(self) -> bool:
        """Whether the server stays at its move's destination, with nothing to wait for, once the flow is done."""
        moved = self.carries is Carries.TO_DESTINATION and not self.leads_to_wait
        return moved or self.ends is Way.CONFIRM

    @property
    def ends_wait(self) -> bool:
        """Whether it is asked for of a move that waits for confirm or revert, and goes back to that when undone."""
        return self.ends is not None


def _forward(kind: str, past: str, *, changes_flavor: bool, migration_type: str, crosses_cells: bool = False) -> Kind:
    return Kind(
        name=f"cross_cell_{kind}" if crosses_cells else kind,
        past=past,
        command=f"server {kind}",
        running=State.RUNNING,
        done=Ending(State.VERIFYING),
        undone=Ending(State.FAILED, to_be_deleted=State.DELETING, cancelled=State.CANCELLED),
        cancellable=True,
        urgent=False,
        limited=True,
        carries=Carries.TO_DESTINATION,
        crosses_cells=crosses_cells,
        changes_flavor=changes_flavor,
        begins_with_accept=True,
        leaves_known_rows=True,
        needs_live_server=True,
        evacuation=Evacuation.UNDONE,
        migration_type=migration_type,
        tasks={"pre-migrating": "resize_migrated", "migrating": "resize_migrated", "post-migrating": "resize_finish"},
    )


RESIZE: Final = _forward("resize", "resized", changes_flavor=True, migration_type="resize")
MIGRATE: Final = _forward("migrate", "migrated", changes_flavor=False, migration_type="migration")
CROSS_CELL_RESIZE: Final = _forward(
    "resize", "resized", changes_flavor=True, migration_type="resize", crosses_cells=True
)
CROSS_CELL_MIGRATE: Final = _forward(
    "migrate", "migrated", changes_flavor=False, migration_type="migration", crosses_cells=True
)


def _confirm(name: str, *, crosses_cells: bool = False) -> Kind:
    return Kind(
        name=name,
        past="confirmed",
        command="move confirm",
        running=State.CONFIRMING,
        done=Ending(State.DONE, to_be_deleted=State.DELETING),
        undone=Ending(State.VERIFYING),
        ends=Way.CONFIRM,
        asked_for_by_deletes=True,
        crosses_cells=crosses_cells,
        releases_gone_server=True,
        evacuation=Evacuation.LEFT,
        begun_status="confirming",
        end_status="confirmed",
    )


def _revert(name: str, *, crosses_cells: bool = False, elsewhere: bool = False) -> Kind:
    return Kind(
        name=name,
        past="reverted",
        command="move revert",
        running=State.REVERTING,
        done=Ending(State.REVERTED, to_be_deleted=State.DELETING),
        undone=Ending(State.VERIFYING),
        ends=Way.REVERT,
        carries=Carries.BACK,
        crosses_cells=crosses_cells,
        elsewhere=elsewhere,
        evacuation=Evacuation.LEFT,
        tasks={"reverting": "resize_reverting"},
        begun_status="reverting",
        end_status="reverted",
    )


CONFIRM: Final = _confirm("confirm")
REVERT: Final = _revert("revert")
CROSS_CELL_CONFIRM: Final = _confirm("cross_cell_confirm", crosses_cells=True)
CROSS_CELL_REVERT: Final = _revert("cross_cell_revert", crosses_cells=True)
CROSS_CELL_REVERT_ELSEWHERE: Final = _revert("cross_cell_revert_elsewhere", crosses_cells=True, elsewhere=True)

DELETE: Final = Kind(
    name="delete",
    past="deleted",
    command="lab server delete",
    running=State.DELETING,
    done=Ending(State.DONE, unkept=State.CANCELLED),
    deletes=True,
    releases_gone_server=True,
)


def _shelving(
    name: str, past: str, *, carries: Carries, begins_offloaded: bool = False, crosses_cells: bool = False
) -> Kind:
    return Kind(
        name=f"cross_cell_{name}" if crosses_cells else name,
        past=past,
        command=f"server {name}",
        running=State.RUNNING,
        done=Ending(State.DONE, to_be_deleted=State.DELETING),
        undone=Ending(State.FAILED, to_be_deleted=State.DELETING, cancelled=State.CANCELLED),
        cancellable=True,
        urgent=False,
        limited=True,
        carries=carries,
        crosses_cells=crosses_cells,
        leaves_known_rows=True,
        needs_live_server=True,
        # Nova evacuates no server that is on no host.
        evacuation=Evacuation.IGNORED if begins_offloaded else Evacuation.UNDONE,
        has_migration=False,
        begins_offloaded=begins_offloaded,
    )


SHELVE: Final = _shelving("shelve", "shelved", carries=Carries.NOWHERE)
UNSHELVE: Final = _shelving("unshelve", "unshelved", carries=Carries.TO_DESTINATION, begins_offloaded=True)
CROSS_CELL_UNSHELVE: Final = _shelving(
    "unshelve", "unshelved", carries=Carries.TO_DESTINATION, begins_offloaded=True, crosses_cells=True
)

KINDS: Final = (
    *(RESIZE, MIGRATE, CONFIRM, REVERT, DELETE),
    *(CROSS_CELL_RESIZE, CROSS_CELL_MIGRATE, CROSS_CELL_CONFIRM, CROSS_CELL_REVERT, CROSS_CELL_REVERT_ELSEWHERE),
    *(SHELVE, UNSHELVE, CROSS_CELL_UNSHELVE),
)

_BY_NAME: Final = {kind.name: kind for kind in KINDS}

_OF_ANOTHER_RELEASE: Final = Kind(
    name="", past="", command="", running=State.RUNNING, done=Ending(State.DONE), undone=Ending(State.VERIFYING)
)


def of(name: str) -> Kind:
    """Find the record of the kind; of one that only another release knows, whose flows that one runs, no fact holds."""
    return _BY_NAME.get(name, _OF_ANOTHER_RELEASE)


def ending(of_move: str, way: str, *, elsewhere: bool = False) -> Kind:
    """Find the kind that ends the wait of a move ``of_move`` kind in this way, `Way`; ``elsewhere`` as in `Kind`."""
    wanted = (way, of(of_move).crosses_cells, elsewhere)
    return next(kind for kind in KINDS if (kind.ends, kind.crosses_cells, kind.elsewhere) == wanted)


def names_of(way: Way) -> list[str]:
    """Name the kinds that end a wait in this way."""
    return [kind.name for kind in KINDS if kind.ends is way]
