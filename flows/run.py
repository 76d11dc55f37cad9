"""Defines what a step is given: the claimed move, and all that the step may read, write and command."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import msgspec
from sqlalchemy import orm

from droveway.clients.cloud import Cloud
from droveway.errors import StepError
from droveway.flows.observed import Observed, observe
from droveway.flows.stands import Shown
from droveway.persistence.database import Database
from droveway.persistence.journal import kinds
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.step_runs import StepRun
from droveway.persistence.journal.tables import Move, MoveAttempt
from droveway.persistence.nova.cells import Cells
from droveway.scheduler.requests import Rules
from droveway.wire.commands import Registration
from droveway.wire.values import Direction

UNREACHABLE: Final = "host-unreachable"
"""The code of the StepError for a host whose worker was away for too long."""


DECLARED_DOWN: Final = "declared-down"
"""The code of the StepError for a host that is declared down and whose worker is away."""

OWED: Final = {"owed": True}
"""The result of a step, or of an undo, that a host or a cell owes."""

QUERY_SECONDS: Final = 60.0
"""How long a host may take for an action that moves no disks."""


@dataclasses.dataclass(frozen=True)
class MoveOptions:
    """Holds the configured values that steps use; times in seconds."""

    max_attempts: int = 3
    allow_resize_to_same_host: bool = False
    cross_cell: bool = False
    """Whether servers may leave their cell."""
    shutdown_timeout: float = 60.0
    retry_for: float = 60.0
    """How long an undo, or a step beyond the point of no return, is tried again before the move is parked."""
    retry_pause: float = 0.2
    """The first pause between two such tries; it doubles up to 5 s."""
    step_deadline: float = 600.0
    """How long one try of a step may wait for the cloud's services, all its requests together."""
    level: int | None = None
    """The protocol level of commands to workers, lowered while older workers still run; None: this release's own."""
    rules: Rules = dataclasses.field(default_factory=Rules)
    """The configured rules by which a destination is chosen."""


class Ends(NamedTuple):
    """Says how a step ends whose cell is away."""

    failure: StepError | None
    """The error with which the step fails; None where the flow goes on without the step."""
    parks: bool = False
    """Whether the move parks with that error, so that a person has to see to it."""
    owed: bool = False
    """Whether the cell owes the step that the flow goes on without."""


class OtherGraph(NamedTuple):
    """Describes a graph of another kind, by which a flow's move may continue."""

    reference: FlowRef
    source_refusal: str
    """Why the move cannot use that graph, such as a worker on its source host that is too old; empty when it can."""
    ineligible: Mapping[str, str]
    """Host that is to take no server by that graph → the reason."""


class Run(Protocol):
    """Runs one claimed flow of one move.

    A *claim* here is a conductor's right to run the flow, and not a claim of resources in Placement.  Each claim has a
    number, its *epoch*.  Every write of this run is refused once another claim of the move has a higher epoch.
    """

    move_id: str
    flow_uuid: str
    kind: str
    shown: Shown
    """The groups of the graph's steps, by what rows of the server prove of them (`Graph.shown`)."""
    epoch: int
    journal: Database
    api: Database
    cells: Cells
    cloud: Cloud
    options: MoveOptions
    row: Move
    """The move's row as it was when the present step began (at its last `boundary`)."""

    def move(self) -> Move:
        """Read the move's row as it is now."""

    def attempt(self, move: Move) -> MoveAttempt | None:
        """Return the alternate that the move is on; None before the first."""

    def returning(self) -> MoveAttempt | None:
        """Return the host that a revert tries in a dead source's place; None before the first, and in other flows."""

    def begin_return(self, number: int, chosen: dict[str, Any]) -> None:
        """Record that the revert tries this host now in the place of its dead source, as the ``number``-th."""

    def home_cell(self) -> str:
        """Name the cell that the server lives in now; in a move between cells its mapping says so."""

    def write(self) -> AbstractContextManager[orm.Session]:
        """Open a journal transaction that holds the claim; raises `droveway.errors.Fenced` when it is lost."""

    def boundary(self, step: str, direction: Direction, *, cancellable: bool) -> None:
        """Check between two steps whether the flow is to go on.

        Raises Parked when the conductor stops or the move is held.  Raises Cancelled, if ``cancellable``, when the move
        is to be cancelled or its server to be deleted.
        """

    def went_on(self, step: str) -> bool:
        """Tell whether the server's rows prove this step done, which a journal that was put back does not know."""

    def went_back(self, step: str) -> bool:
        """Tell whether the server's rows prove this step undone, which a journal that was put back does not know."""

    def is_behind(self) -> bool:
        """Tell whether the flow may have gone further than its journal knows: the journal was put back and adopted."""

    def may_not_turn_back(self, step: str) -> bool:
        """Tell whether a flow that may have gone further parks at this step instead of failing.

        Its undos would not know what they are to bring back.
        """

    def require_rows_agree(self, ctx: Context) -> None:
        """Check that the server's rows agree with the journal, before a step changes anything.

        Raises StepError where the journal was put back from a copy, and the move had gone past this step after that
        copy was made.  Raises Parked where the rows are older than the move: the database of their cell was put back.
        """

    def step_runs(self) -> Sequence[StepRun]:
        """Return all runs of the move's steps, of all its flows, oldest first; the last is the present one."""

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``; raises Parked as soon as the conductor stops."""

    def park(self, step: str, direction: Direction, error: StepError) -> NoReturn:
        """Put the move into the state needs-operator with this error; raises Parked."""

    def heed_outage(self, step: str, direction: Direction) -> Ends | None:
        """Decide how a step ends that could not reach a database.

        Returns None where the step is to be tried again by the next claim: no cell is away, or none for too long yet.
        """

    def leave(self, why: str) -> NoReturn:
        """Leave the step without a result, for the next claim to enter again; raises Parked."""

    def command(
        self,
        step: str,
        direction: Direction,
        *,
        host: str,
        action: str,
        details: msgspec.Struct,
        deadline: float,
        command_direction: Direction | None = None,
        part: str = "",
    ) -> dict[str, Any]:
        """Have the host's worker carry out the action and return its value; raises its StepError.

        ``command_direction`` is the action's own direction where it differs from the step's; ``part`` tells several
        commands of one step apart.
        """

    def note_deleted(self) -> None:
        """Record that the server was deleted: what is left of it is released once the flow has ended."""

    def evacuated(self, ctx: Context) -> str:
        """Return the reason with which the move ends when Nova has evacuated its server; empty when it has not."""

    def note_evacuated(self, why: str) -> None:
        """Record that Nova evacuated the server: once undone, the forward flow ends as cancelled for this reason."""

    def abandon(self, ctx: Context, error: StepError) -> NoReturn:
        """End the flow and its move as cancelled with this error, everything left as it is; raises Parked."""

    def owe(
        self,
        step: str,
        *,
        host: str,
        action: str,
        details: msgspec.Struct,
        deadline: float,
        direction: Direction = "revert",
        entered: Direction = "revert",
        after: str = "",
    ) -> None:
        """Record a debt: the host still has to carry out the action (``execute``), or its undo (``revert``).

        ``direction`` is that of the action which is owed: `execute` for the action, `revert` for its undo.  ``entered``
        is the direction in which the flow entered the step.  The two are mostly the same: a step owes its
        action, and the undo of a step owes the undo of the action.  They differ if the undo of a step owes an action
        (``direction`` `execute`, ``entered`` `revert`), and if a step on the way forward owes an undo (``direction``
        `revert`, ``entered`` `execute`).  ``after`` is a host that has to show its own copy of the server's disks,
        whole, before the debt is paid.  ``deadline`` is the time for the action in seconds.
        """

    def void(self, step: str, *, host: str) -> bool:
        """Cancel the host's debt for this step of this flow; return whether there was one.

        If so, the host has never carried the step out, and there is nothing to undo.
        """

    def declared_down(self, host: str) -> bool:
        """Tell whether the host is declared down and its worker is still away."""

    def may_have_begun(self, step: str) -> bool:
        """Tell whether an earlier run of this step, in this flow and on this alternate, may have asked a host."""

    def keep(self, step: str, *, host: str, details: msgspec.Struct, deadline: float) -> None:
        """Record that the host keeps the source's disks for as long as was asked, and is to purge them then."""

    def owing_cells(self) -> Mapping[str, str]:
        """Return the cells that the server may not enter: cell → the reason.

        Such a cell still owes the clean-up of a move of this server, or is declared down.
        """

    def owes(self, host: str) -> bool:
        """Tell whether the host owes an undo of this move already and is still away."""

    def ineligible(self) -> Mapping[str, str]:
        """Return the hosts that are to take no server: host → the reason."""

    @property
    def asked_as(self) -> str:
        """Return the flow uuid that the request id of Nova's instance action has.

        It is the uuid of this flow.  If this flow continues an earlier one of the move, it is that of the move's first
        flow, which began the action.
        """

    def goes_on(self) -> bool:
        """Tell whether the flow continues an earlier one, whose first steps were done and not undone.

        `went_on` tells something else: whether the rows prove one step done.
        """

    def is_passed_on(self) -> bool:
        """Tell whether the journal names a flow that continues this one.

        The first steps, with which both graphs begin, are then not undone: the other flow relies on them.
        """

    def graph_of(self, kind: str) -> OtherGraph:
        """Look up the graph of another kind."""

    def require_thawed(self) -> None:
        """Raise Parked while the move is frozen; called before anything is deleted that cannot be brought back."""

    def workers(self) -> Mapping[str, Registration]:
        """Return the workers that are up now, by host."""

    def intent(self, service: str, call: str) -> AbstractContextManager[None]:
        """Record a cloud write before it is sent, and close the record after it."""

    def probe(self, step: str, direction: Direction, phase: str) -> None:
        """Let tests inject a fault here; ``phase`` is before or after."""


@dataclasses.dataclass(frozen=True)
class Context:
    """Holds what one run of one step in one direction works on."""

    run: Run
    step: str
    direction: Direction
    move: Move
    attempt: MoveAttempt | None
    inputs: dict[str, Any]
    """What earlier steps of the flow provided, by name."""
    result: dict[str, Any] | None = None
    """In an undo: what the step's execute returned, or None when it never stored a result."""
    must_go_on: bool = False
    """Whether the step cannot give up any more: it is an undo, or past the point of no return."""
    owed: list[tuple[str, Direction]] = dataclasses.field(default_factory=list)
    """What hosts owe of the step since this run of it: each action with its direction."""

    def command(
        self,
        host: str,
        action: str,
        details: msgspec.Struct,
        *,
        deadline: float = QUERY_SECONDS,
        direction: Direction | None = None,
        part: str = "",
    ) -> dict[str, Any]:
        """Ask a host for an action of this step as `Run.command` does; ``direction``: if it is not the step's own."""
        return self.run.command(
            self.step,
            self.direction,
            host=host,
            action=action,
            details=details,
            deadline=deadline,
            command_direction=direction,
            part=part,
        )

    def owe(
        self,
        host: str,
        action: str,
        details: msgspec.Struct,
        *,
        deadline: float = QUERY_SECONDS,
        direction: Direction | None = None,
        after: str = "",
    ) -> None:
        """Let a host owe an action of this step as `Run.owe` does; ``direction``: if it is not the step's own."""
        way = direction or self.direction
        self.run.owe(
            self.step,
            host=host,
            action=action,
            details=details,
            deadline=deadline,
            direction=way,
            entered=self.direction,
            after=after,
        )
        self.owed.append((action, way))

    @functools.cached_property
    def observed(self) -> Observed | None:
        """Read the server's rows once, when the step first looks at them; None for a server that is gone."""
        move, run = self.move, self.run
        with run.cells.database(self.cell).reading() as connection:
            return observe(connection, move.server, move.id, f"req-{run.asked_as}")

    @functools.cached_property
    def cell(self) -> str:
        """Name the cell that the server lives in, read once, when the step first needs it."""
        return self.run.home_cell()

    def cell_of(self, host: str) -> str:
        """Name the cell that one of the move's hosts is in."""
        there = self.attempt is not None and host == self.attempt.host
        return self.destination.cell if there else self.move.source_cell

    @property
    def crosses_cells(self) -> bool:
        """Tell whether the flow is one of a move between cells."""
        return kinds.of(self.run.kind).crosses_cells

    @functools.cached_property
    def returning(self) -> MoveAttempt | None:
        """Return the host that a revert tries now in the place of a dead source; None in any other flow."""
        return self.run.returning() if kinds.of(self.run.kind).elsewhere else None

    @property
    def return_host(self) -> str:
        """Name the host that a revert brings the server back to: its source, or the one in the place of that."""
        return self.move.source_host if self.returning is None else self.returning.host

    @property
    def destination(self) -> MoveAttempt:
        """Return the alternate that the move is on; raises StepError before the first was chosen."""
        if self.attempt is None:
            raise StepError(f"step {self.step} needs a destination, but the move has none yet", code="internal")
        return self.attempt

    @property
    def same_host(self) -> bool:
        """Tell whether source and destination are one host; never in a move that leads to no host."""
        if self.attempt is None and kinds.of(self.run.kind).carries is kinds.Carries.NOWHERE:
            return False
        return self.destination.host == self.move.source_host and self.destination.cell == self.move.source_cell
