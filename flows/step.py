"""Defines the base of all steps: a step says where it runs, what it does and how it is undone.

A step may run more than once in each direction.  The base class wraps each run.  Before a step it stops the flow when a
person holds or cancels the move or when the conductor ends.  A freeze stops a flow only before a step that deletes what
cannot be brought back.  The base class turns every exception into one flat `StepError`.  An undo, or a step after the
point of no return, is tried again until a deadline, and then the move is parked.
"""

from __future__ import annotations

import enum
import logging
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, cast

from sqlalchemy import exc

from droveway import deadlines
from droveway.errors import (
    Cancelled,
    Conflict,
    CoordinationLost,
    DestinationFault,
    DrovewayError,
    Evacuated,
    Fenced,
    Parked,
    ServerDeleted,
    StepError,
)
from droveway.flows import evacuation, outcome
from droveway.flows.run import OWED, Context
from droveway.persistence.database import WriteFailed, absence, without_sql
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Evacuation
from droveway.persistence.journal.moves import GONE, PASSED_ON
from droveway.printable import SHORT, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from droveway.flows.run import Ends, Run
    from droveway.flows.stands import Between, Leaves
    from droveway.wire.values import Direction

LOG = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGES: Final = (CoordinationLost, exc.OperationalError, exc.InterfaceError)
"""The errors of a ZooKeeper or database that is away: the step is left without a result, and is entered again."""

LONGEST_PAUSE: Final = 5.0
"""The longest pause in seconds between two tries of a step that must go on."""


class Where(enum.StrEnum):
    """Says where a step runs."""

    CONDUCTOR = "conductor"
    SOURCE = "source"
    DESTINATION = "destination"
    RETURN = "return"
    """The host of the source's cell that a revert brings the server to, in the place of its dead source."""
    HOME = "home"
    """The host that the server is on when the step runs."""


class Step:
    """Runs a step; subclasses write `perform`, and `undo` unless ``no_undo`` says why there is none."""

    where: ClassVar[Where] = Where.CONDUCTOR
    does: ClassVar[str]
    undoes: ClassVar[str] = ""
    no_undo: ClassVar[str] = ""
    deadline: ClassVar[float] = 60.0
    """Seconds that one run of the step may take."""
    destroys: ClassVar[bool] = False
    """Whether the step deletes what cannot be brought back.

    If a freeze (``droveway freeze``) covers the move, the move parks before such a step until the thaw.
    """
    extra_actions: ClassVar[tuple[str, ...]] = ()
    """Other actions that workers must know: a host whose worker is too old is refused when a move is asked for."""
    owed_by_older: ClassVar[bool] = False
    """Whether a worker of an older release, which does not know the action, owes it until it is upgraded."""
    leaves: ClassVar[Leaves]
    """What the step and its undo change in the server's rows in the cell.

    `droveway.flows.put_back` works out from it whether rows are older than the move.  A step that changes none has
    `NOTHING`.  In a move between cells ``leaves`` is about the copy that the server is mapped to, in whichever cell.
    """
    between: ClassVar[Between | None] = None
    """What a step of a move between cells changes in the mapping, or in the copy of one particular cell.

    A `Between` says for each of the two cells what changes in that cell's copy.  What it says is true whether the
    server is mapped to that cell or to the other one.  A step that changes neither the mapping nor the copy of one
    particular cell has None here.  The changes of such a step are in ``leaves``.
    """
    finds: ClassVar[bool] = False
    """Whether the step finds out what undos of its flow have to know.

    A flow whose journal was put back is not undone before it has passed this step again.  When it runs the step again,
    the step returns its earlier finding if the journal still has it.
    """
    cell_debt: ClassVar[str] = ""
    """The debt that is recorded instead of a write, when the database of the cell that is to be written is away.

    If the step has an undo, the debt replaces the undo.  If it has none, the debt replaces the step itself.  The cell
    is always the one that the server is not mapped to.
    """
    debt_when_gone: ClassVar[str] = ""
    """The debt that replaces the step when the cell that the step writes is declared down.

    The flow then goes on without that cell.
    """
    undo_debt_when_gone: ClassVar[str] = ""
    """The debt that replaces the undo when the cell that the undo writes is declared down.

    The flow is then undone without that cell.
    """
    skipped_when_gone: ClassVar[bool] = False
    """Whether the flow leaves this step out when the cell whose copy it compares or marks is declared down."""
    starts: ClassVar[str] = ""
    """The direction in which the step starts a guest; empty: in none."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The names of earlier steps' results that this step reads."""
    gives: ClassVar[str] = ""
    """The name under which later steps read this one's result."""

    def __init__(self, run: Run, *, at_no_return: bool = False, past_no_return: bool = False) -> None:
        self.run_ = run
        self.at_no_return = at_no_return
        self.past_no_return = past_no_return

    @classmethod
    def step_name(cls) -> str:
        """Return the step's name in graphs, history and faults: the class name in snake_case.

        Where one flow does a step in its own way, a class of the same name stands in another module.
        """
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def action_name(cls) -> str:
        """Name the action that a worker carries out for the step; empty for a step that asks no host."""
        return ""

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Look at what is there, do what is missing, and read it back; return a small result for the journal."""
        raise NotImplementedError

    def perform_ended(self, ctx: Context) -> dict[str, Any] | None:  # noqa: ARG002 - most have nothing to clear
        """Clear what is left of the move when Nova has brought it to the flow's end: see `droveway.flows.outcome`."""
        return outcome.noted()

    def passed_by(self, ctx: Context) -> dict[str, Any]:  # noqa: ARG002 - most have nothing to clear
        """Finish a step that was done before the journal was put back (see `Run.went_on`); return its result.

        The rows prove that the step was done, so `perform` is not called again.  Some steps write `passed_by` to remove
        what the step or an earlier step has left on a host and no later step would remove, such as a storage probe.
        Others write it to return what later steps need of this step's result.
        """
        return {}

    def undo(self, ctx: Context) -> dict[str, Any] | None:
        """Bring back what was before, whether `perform` ran not at all, halfway or wholly.

        What it returns is stored in the history; most undos return None.
        """
        raise NotImplementedError(ctx.step)

    def may_have_begun(self, ctx: Context) -> bool:
        """Tell whether this step, which is the point of no return, may have done its work by now."""
        return ctx.run.may_have_begun(ctx.step)

    def undo_evacuated(self, ctx: Context) -> None:
        """Undo the step for a server that Nova evacuated: remove what is the move's own, and bring nothing back."""

    def execute(self, **inputs: Any) -> dict[str, Any]:
        """Run `perform`; ``inputs``: what the step needs of earlier ones."""
        return self._guarded("execute", lambda: self._onward(self._context("execute", inputs, None))) or {}

    def revert(self, result: Any, **inputs: Any) -> dict[str, Any] | None:
        """Run `undo`; ``result``: what `perform` returned, or how it failed."""
        stored = result if isinstance(result, dict) else None
        # After a journal was put back, an undo may lack the result that an earlier step should have given.
        given = {name: value if isinstance(value, dict) else {} for name, value in inputs.items()}
        return self._guarded("revert", lambda: self._backward(self._context("revert", given, stored)))

    def _onward(self, ctx: Context) -> dict[str, Any] | None:
        if self.destroys:
            ctx.run.require_thawed()
        if ctx.run.went_on(ctx.step):
            return self.passed_by(ctx)
        try:
            ctx.run.require_rows_agree(ctx)
            self._mark_again(ctx)
            if outcome.is_reached(ctx):
                return self.perform_ended(ctx)
            if self.where is not Where.CONDUCTOR and (why := self._evacuated_at_first(ctx)):
                # A step that runs on the conductor checks for an evacuation itself, right before it writes.
                raise Evacuated(why)
            return self.perform(ctx)
        except ServerDeleted:
            ctx.run.note_deleted()
            if not (ctx.must_go_on or kinds.of(ctx.run.kind).releases_gone_server):
                raise
            return dict(GONE)
        except (StepError, Conflict):
            why = self._evacuated(ctx)
            if not why:
                raise
            begun = ctx.must_go_on or (self.at_no_return and self.may_have_begun(ctx))
            if begun or kinds.of(ctx.run.kind).evacuation is not Evacuation.UNDONE:
                # What this flow would undo, or do next, belongs to Nova by now.
                ctx.run.abandon(ctx, Evacuated(why))
            ctx.run.note_evacuated(why)
            raise Evacuated(why) from None

    def _backward(self, ctx: Context) -> dict[str, Any] | None:
        if ctx.run.is_passed_on():
            return dict(PASSED_ON)
        if self.no_undo or outcome.is_reached(ctx) or ctx.run.went_back(ctx.step):
            return None
        result = None
        try:
            if not self._undo_evacuated(ctx, self._evacuated_at_first(ctx)):
                ctx.run.require_rows_agree(ctx)
                self._mark_again(ctx)
                result = self.undo(ctx)
        except ServerDeleted:
            # A server without rows has nothing that could be brought back to it.
            ctx.run.note_deleted()
        except (StepError, Conflict):
            # Nova may have evacuated the server while the undo ran.
            if not self._undo_evacuated(ctx, self._evacuated(ctx)):
                raise
        # An undo that its host owes is not done.  What else is owed meanwhile is no part of the undo.
        return dict(OWED) if (self.action_name(), "revert") in ctx.owed else result

    def _undo_evacuated(self, ctx: Context, why: str) -> bool:
        """Undo the step of a server that Nova has evacuated, as ``why`` says; return False where ``why`` is empty."""
        if why and kinds.of(ctx.run.kind).evacuation is not Evacuation.UNDONE:
            ctx.run.abandon(ctx, Evacuated(why))
        if why:
            ctx.run.note_evacuated(why)
            self.undo_evacuated(ctx)
        return bool(why)

    def _evacuated(self, ctx: Context) -> str:
        return ctx.run.evacuated(ctx) if _minds_evacuation(ctx) else ""

    def _evacuated_at_first(self, ctx: Context) -> str:
        return evacuation.why_at_first(ctx) if _minds_evacuation(ctx) else ""

    def _mark_again(self, ctx: Context) -> None:
        """Write the move's task_state again where somebody has reset the server's state.

        The rule depends on the step:

        * A step that starts a guest writes the task_state again only when the step is entered a second time.  The first
          run of that step fails, so that a person sees the reset and retries the move.
        * In an unshelve no other step writes the task_state again.  Before the start of the guest the server is on no
          host.  After the start the task_state is the user's.
        * In other flows every other step writes the task_state again.
        """
        starts = ctx.direction == self.starts
        if outcome.was_tried(ctx) if starts else not kinds.of(ctx.run.kind).begins_offloaded:
            outcome.mark_again(ctx)

    def _context(self, direction: Direction, inputs: dict[str, Any], result: dict[str, Any] | None) -> Context:
        run, name = self.run_, self.step_name()
        move, must_go_on = run.row, self._must_go_on(direction)
        return Context(run, name, direction, move, run.attempt(move), inputs, result, must_go_on=must_go_on)

    def _must_go_on(self, direction: Direction) -> bool:
        return self.past_no_return or direction == "revert"

    def _guarded(self, direction: Direction, body: Callable[[], T]) -> T:
        return guarded(
            self.run_,
            self.step_name(),
            direction,
            body,
            must_go_on=self._must_go_on(direction),
            at_no_return=self.at_no_return,
        )


def _minds_evacuation(ctx: Context) -> bool:
    """Tell whether a flow of this kind has to look whether Nova evacuated its server."""
    return kinds.of(ctx.run.kind).evacuation is not Evacuation.IGNORED


def guarded(
    run: Run,
    name: str,
    direction: Direction,
    body: Callable[[], T],
    *,
    must_go_on: bool,
    at_no_return: bool = False,
) -> T:
    """Run the body of a step, or of the retry; raises only flat StepErrors, Parked or Fenced.

    With ``must_go_on`` a failed body is tried again until the deadline, and then the move is parked.  The same holds
    for a flow whose journal was put back, as long as it does not know what its undos need.
    """
    until = time.monotonic() + run.options.retry_for
    pause = run.options.retry_pause
    said = ""
    while True:
        try:
            must_go_on = must_go_on or (direction == "execute" and run.may_not_turn_back(name))
            run.boundary(name, direction, cancellable=not must_go_on)
            run.probe(name, direction, "before")
            with deadlines.running(name, run.options.step_deadline):
                value = body()
            run.probe(name, direction, "after")
        except (Parked, Fenced):
            raise
        except Exception as error:  # noqa: BLE001 - TaskFlow must never meet an error that it cannot save
            if _is_outage(error):
                # Neither the move nor its host is at fault.  If `_heed_outage` does not say how the step ends, the next
                # claim enters the step again.
                ends = _heed_outage(run, name, direction) or leave(run, name, error)
                if ends.failure is None:
                    return cast("T", dict(OWED) if ends.owed else None)
                failure = ends.failure
                if ends.parks:
                    _park(run, name, direction, failure)
            else:
                failure = _failure(name, error)
            if failure.message != said:
                said = failure.message
                _log_failure(run, name, direction, failure, error)
        else:
            return value
        if not must_go_on and not (at_no_return and not _proves_not_begun(failure)):
            raise failure from None
        # At the point of no return another try helps against neither of these errors.  `start-unknown`: nobody can say
        # whether the guest runs.  `went-off`: the guest was started and is off again, and a start could not keep it on.
        if (at_no_return and failure.error_code in ("start-unknown", "went-off")) or time.monotonic() >= until:
            _park(run, name, direction, failure)
        run.wait(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _log_failure(run: Run, name: str, direction: Direction, failure: StepError, error: Exception) -> None:
    """Log the failure; an unexpected error is logged with its traceback, which is stored nowhere else."""
    what = f"step {name}" if direction == "execute" else f"the undo of step {name}"
    where = f" on host {failure.host}" if failure.host else ""
    unexpected = failure.error_code == "internal" and failure is not error
    LOG.log(
        logging.ERROR if unexpected else logging.INFO,
        "Move %s: %s failed%s: %s: %s",
        run.move_id[:SHORT],
        what,
        where,
        failure.error_code,
        printable(failure.message),
        exc_info=error if unexpected else None,
    )


def _heed_outage(run: Run, name: str, direction: Direction) -> Ends | None:
    try:
        return run.heed_outage(name, direction)
    except (Parked, Fenced):
        raise
    except Exception as error:  # noqa: BLE001 - the journal is away too
        leave(run, name, error)


def _park(run: Run, name: str, direction: Direction, failure: StepError) -> NoReturn:
    try:
        run.park(name, direction, failure)
    except (Parked, Fenced):
        raise
    except Exception as error:  # noqa: BLE001 - to TaskFlow it would be a failed step, and the move would be undone
        leave(run, name, error)


def leave(run: Run, name: str, error: Exception) -> NoReturn:
    """Give the step up without a result, since a database or ZooKeeper is away; raises Parked."""
    why = " ".join((absence(error) or type(error).__name__).split())
    run.leave(f"step {name} of move {run.move_id[:SHORT]} cannot reach what it writes to: {why}")


def _proves_not_begun(failure: StepError) -> bool:
    """Tell whether this failure of the point of no return proves that nothing irreversible happened."""
    return isinstance(failure, (DestinationFault, Cancelled)) or failure.error_code == "not-begun"


def _is_outage(error: Exception) -> bool:
    """Tell whether ZooKeeper or a database was away."""
    return isinstance(error.__cause__ if isinstance(error, WriteFailed) else error, OUTAGES)


def _failure(name: str, error: Exception) -> StepError:
    """Make the flat StepError that is stored."""
    if isinstance(error, StepError):
        return error
    if isinstance(error, DrovewayError):
        return StepError(str(error), code=error.code)
    if (refused := without_sql(error)) is not None:
        return StepError(f"step {name} cannot write what it has to: {refused}", code="internal")
    return StepError(f"step {name} met {type(error).__name__}: {error}", code="internal")
