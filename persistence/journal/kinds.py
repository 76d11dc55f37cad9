"""The kinds of flow, each declared once: what a flow of the kind means for its move, for other flows and for the rows.

Code reads a fact from the record of a kind, and never compares a kind with names.  The steps of a kind are in
`droveway.flows`: each graph there points to its record here.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

from droveway.persistence.journal.states import State


class Carries(enum.StrEnum):
    """Names where a flow brings the server."""

    NOWHERE = "it stays on its host"
    TO_DESTINATION = "to the move's destination"
    BACK = "back to the move's source"


class Way(enum.StrEnum):
    """Names the two ends of a move that waits in `State.VERIFYING`."""

    CONFIRM = "confirm"
    REVERT = "revert"


class Evacuation(enum.StrEnum):
    """Names what a flow does when it finds that Nova has evacuated its server."""

    IGNORED = "it does not look for that"
    UNDONE = "it is undone before its point of no return, and left from there on"
    LEFT = "it is left where it stands, and its move ends"


@dataclasses.dataclass(frozen=True)
class Ending:
    """Holds the state that a move gets when a flow of the kind is done, or is undone.

    The fields after ``state`` are exceptions.  They are tried in their order, and the first one that has a state and
    whose case holds decides.
    """

    state: State
    """The move's state when no exception applies."""
    never_confirmed: State | None = None
    """The state of a move that began with another kind of flow and was never confirmed while its server existed.

    The kind that deletes a server has this exception.  It applies, for instance, to a resize whose server was deleted
    before a confirm: the delete is then the last flow of that move.
    """
    to_be_deleted: State | None = None
    """The move's state when somebody asked that the server be deleted."""
    cancelled: State | None = None
    """The move's state when the move was cancelled, or when the server was gone."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """Holds the facts of one kind.

    A fact that the kind does not declare is false or empty, except `urgent` and `has_migration`, which are true.
    """

    name: str
    past: str
    """What was done to the server, as a participle for messages: resized, confirmed, ..."""
    command: str
    """The subcommand of ``droveway`` that asks for such a flow."""

    # The move.
    running: State
    """The move's state while a flow of the kind runs."""
    done: Ending
    undone: Ending | None = None
    """None for a kind that goes forward only."""
    cancellable: bool = False
    """Whether a cancel, or a delete of its server, makes the flow undo itself before its point of no return.

    A flow that is not cancellable runs to its end first.
    """
    ends: Way | None = None
    """Which end such a flow brings to a move that waits for confirm or revert; None for other kinds."""
    asked_for_by_deletes: bool = False
    """Whether such a flow runs first when a server is to be deleted while its move waits for confirm or revert.

    The flow is filed again until it is done.
    """
    deletes: bool = False
    """Whether the flow deletes the server.

    A move that began with such a flow cannot be cancelled.  The audit does not compare Nova's rows with such a move.
    """

    # Other flows.
    urgent: bool = True
    """Whether conductors claim such a flow first.

    Flows that are not urgent copy disks, which takes long; urgent flows do not wait for them.
    """
    limited: bool = False
    """Whether such a flow counts for the limits on moves that run at the same time."""

    # The server's rows.
    carries: Carries = Carries.NOWHERE
    crosses_cells: bool = False
    """Whether the move is between two cells; each cell has a copy of the server's rows while the flow runs."""
    elsewhere: bool = False
    """Whether the flow brings the server to another host of the source's cell, because the source is dead."""
    changes_flavor: bool = False
    """Whether the move asks for another flavor."""
    begins_offloaded: bool = False
    """Whether the server is on no host when the flow begins."""
    begins_with_accept: bool = False
    """Whether the step ``accept`` of the flow is the first one that writes in the cell."""
    leaves_known_rows: bool = False
    """Whether the audit knows from the journal alone which values Nova's rows must have after a move of this kind.

    It compares Nova's rows with those values while a move that began with this kind is at rest, or once it has ended.
    """
    needs_live_server: bool = False
    """Whether the forward steps before the point of no return write only while nobody is deleting the server.

    Undos, and steps past the point of no return, write in the rows of a server that is being deleted too.
    """
    releases_gone_server: bool = False
    """Whether the flow goes on when the server has no rows any more; it then releases what the server still holds."""
    evacuation: Evacuation = Evacuation.IGNORED
    migration_type: str = ""
    """The `migration_type` of a move that began with this kind."""
    has_migration: bool = True
    """False for the kinds of shelve and unshelve, whose moves have no row in Nova's `migrations`.

    Only the server's own rows tell how far such a move is.
    """
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Status of the move's migration → the task_state that the flow gives the server during that status."""
    begun_status: str = ""
    """The migration's status while Droveway or Nova confirms or reverts; empty for kinds that do neither."""
    end_status: str = ""
    """The migration's status once Droveway or Nova has confirmed or reverted; empty for kinds that do neither."""

    def ending(self, *, done: bool) -> Ending:
        """Return the ending of a flow that was ``done`` or undone; a kind that only goes forward is always done."""
        return self.done if done or self.undone is None else self.undone

    @property
    def leads_to_wait(self) -> bool:
        """Tell whether the move waits for confirm or revert once the flow is done."""
        return self.done.state is State.VERIFYING

    @property
    def stays_there(self) -> bool:
        """Tell whether the server stays at the move's destination, and waits for nothing, once the flow is done."""
        moved = self.carries is Carries.TO_DESTINATION and not self.leads_to_wait
        return moved or self.ends is Way.CONFIRM

    @property
    def ends_wait(self) -> bool:
        """Tell whether such a flow ends a move's wait for confirm or revert; if it is undone, the move waits again."""
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
    done=Ending(State.DONE, never_confirmed=State.CANCELLED),
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
    """Return the record of the kind of this name.

    A kind that only another release knows gets a record without any facts: conductors of that release run its flows.
    """
    return _BY_NAME.get(name, _OF_ANOTHER_RELEASE)


def ending(of_move: str, way: str, *, elsewhere: bool = False) -> Kind:
    """Return the kind of flow that confirms or reverts a move.

    ``of_move`` is the kind of the move, ``way`` one of `Way`.  ``elsewhere`` is explained at `Kind`.  The method
    `Kind.ending` is something else: it returns the states that a move gets.
    """
    wanted = (way, of(of_move).crosses_cells, elsewhere)
    return next(kind for kind in KINDS if (kind.ends, kind.crosses_cells, kind.elsewhere) == wanted)


def names_of(way: Way) -> list[str]:
    """Return the names of the kinds of flow that confirm (or revert) a move."""
    return [kind.name for kind in KINDS if kind.ends is way]
