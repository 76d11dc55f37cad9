"""What a step is given: the claimed move and everything that it may read, write and command."""

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
"""The code of the StepError for a host that a person declared down, and whose worker is away."""

QUERY_SECONDS: Final = 60.0
"""How long a host may take for an action that moves no disks."""


@dataclasses.dataclass(frozen=True)
class MoveOptions:
    """The configured numbers that steps heed; times in seconds."""

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
    """The level of what is spoken to workers; None for this release's own."""
    rules: Rules = dataclasses.field(default_factory=Rules)
    """What is configured of the choice of a destination."""


class Ends(NamedTuple):
    """How a step ends that lost its cell."""

    failure: StepError | None
    """None where the cell owes what the step would have done."""
    parks: bool = False
    """Whether the move rests with that failure."""


class OtherGraph(NamedTuple):
    """The graph of another kind than a flow's, by which its move may go on."""

    reference: FlowRef
    lacking: str
    """Why the move's source cannot take part in it; empty when it can."""
    ineligible: Mapping[str, str]
    """The reason against each host that is to take no server by it."""


class Run(Protocol):
    """One claimed flow of one move.  Every write goes through the fence of its epoch."""

    move_id: str
    flow_uuid: str
    kind: str
    shown: Shown
    """What the server's rows show of the steps of its graph."""
    epoch: int
    journal: Database
    api: Database
    cells: Cells
    cloud: Cloud
    options: MoveOptions
    row: Move
    """The move's row as it was at the last boundary."""

    def move(self) -> Move:
        """The move's row as it is now."""

    def attempt(self, move: Move) -> MoveAttempt | None:
        """The alternate that the move is on, or None before the first."""

    def returning(self) -> MoveAttempt | None:
        """The host that a revert tries now in the place of a dead source; None in any other flow, and before that."""

    def begin_return(self, number: int, chosen: dict[str, Any]) -> None:
        """Record that it tries this host now, as its ``number``-th."""

    def home_cell(self) -> str:
        """Name the cell that the server lives in now: a move between cells reads its mapping."""

    def write(self) -> AbstractContextManager[orm.Session]:
        """A journal transaction that holds the claim; raises `droveway.errors.Fenced` when it is lost."""

    def boundary(self, step: str, direction: Direction, *, cancellable: bool) -> None:
        """Between two steps: Parked for a stop or a hold; Cancelled for a cancel or a delete, if ``cancellable``."""

    def went_on(self, step: str) -> bool:
        """Whether a journal that was put back does not know that this step was done, as the server's rows show it."""

    def went_back(self, step: str) -> bool:
        """Whether a journal that was put back does not know that this step was undone, as the server's rows show it."""

    def is_behind(self) -> bool:
        """Tell whether the flow may have gone further than its journal knows, which was put back and adopted."""

    def may_not_turn_back(self, step: str) -> bool:
        """Tell whether such a flow parks at this step rather than fail, since its undos would not know enough."""

    def require_way(self, ctx: Context) -> None:
        """Raise StepError for a step from a place that the move has left since its journal was copied.

        Raises Parked where the server's rows are older than the move: its cell was put back from a copy.
        """

    def step_runs(self) -> Sequence[StepRun]:
        """All runs of the move's steps, of this flow and of those before it, oldest first; the last is this one."""

    def wait(self, seconds: float) -> None:
        """Wait, at most ``seconds``; ends early with Parked when the conductor stops."""

    def park(self, step: str, direction: Direction, error: StepError) -> NoReturn:
        """Rest as needs-operator with this error; raises Parked."""

    def heed_outage(self, step: str, direction: Direction) -> Ends | None:
        """How a step ends that lost a database.

        None where it is to be entered again: a cell is not away for too long yet, or no cell is.
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
        """The server's rows are gone: whatever is left of it is to be released once the flow has ended."""

    def evacuated(self, ctx: Context) -> str:
        """What the move ends with when Nova has evacuated its server; empty when it has not."""

    def note_evacuated(self, why: str) -> None:
        """Nova took the server: the forward flow ends as cancelled once it is undone, with this reason."""

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

        ``entered``: the step's own direction; ``after``: the host that has to show its own copy of the server's disks,
        whole, before the debt is paid.
        """

    def void(self, step: str, *, host: str) -> bool:
        """Take back that the host owes this flow's step; whether it owed it, and so never carried it out."""

    def declared_down(self, host: str) -> bool:
        """Whether a person made sure that the host is off, and its worker is still away."""

    def may_have_begun(self, step: str) -> bool:
        """Whether any run of the step in this flow, on this alternate, asked a host for it before this one."""

    def keep(self, step: str, *, host: str, details: msgspec.Struct, deadline: float) -> None:
        """Record that the host keeps the move's source, for as long as was asked, and is to purge it then."""

    def owing_cells(self) -> Mapping[str, str]:
        """The reason against each cell that owes what a move of the server left there."""

    def owes(self, host: str) -> bool:
        """Whether the host owes an undo of this move already and is still away."""

    def ineligible(self) -> Mapping[str, str]:
        """The reason against each host that is to take no server."""

    @property
    def asked_as(self) -> str:
        """Name the flow whose uuid Nova's action carries: the move's first, where this one goes on for that."""

    def goes_on(self) -> bool:
        """Tell whether the flow goes on for one before it, whose first steps were done and not undone."""

    def is_passed_on(self) -> bool:
        """Tell whether the journal names a flow that goes on for this one: what both begin with stands."""

    def graph_of(self, kind: str) -> OtherGraph:
        """Look up the graph of another kind."""

    def require_thawed(self) -> None:
        """Raise Parked while the move is frozen, before anything is deleted that cannot be brought back."""

    def workers(self) -> Mapping[str, Registration]:
        """The workers that are up now, by host."""

    def intent(self, service: str, call: str) -> AbstractContextManager[None]:
        """Record a cloud write before it is sent, and close the record after it."""

    def probe(self, step: str, direction: Direction, phase: str) -> None:
        """Where faults are injected: before, after."""


@dataclasses.dataclass(frozen=True)
class Context:
    """One run of one step in one direction."""

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
        """Ask a host for an action of this step as `Run.command` does; ``direction``: where it is not the step's."""
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
        """Let a host owe an action of this step as `Run.owe` does; ``direction``: where it is not the step's."""
        self.run.owe(
            self.step,
            host=host,
            action=action,
            details=details,
            deadline=deadline,
            direction=direction or self.direction,
            entered=self.direction,
            after=after,
        )

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
        """Whether the flow is one of a move between cells."""
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
        """The alternate that the move is on; only steps inside `alternates` and later flows have one."""
        if self.attempt is None:
            raise StepError(f"step {self.step} needs a destination, but the move has none yet", code="internal")
        return self.attempt

    @property
    def same_host(self) -> bool:
        """Whether source and destination are one host; never where the move leads to no host."""
        if self.attempt is None and kinds.of(self.run.kind).carries is kinds.Carries.NOWHERE:
            return False
        return self.destination.host == self.move.source_host and self.destination.cell == self.move.source_cell
