"""The step wrapper: flat errors, boundaries, and what changes beyond the point of no return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from taskflow.types.failure import Failure

from droveway.errors import Cancelled, CoordinationLost, DestinationFault, Fenced, Parked, StepError
from droveway.flows.run import Context, MoveOptions
from droveway.flows.step import Step
from droveway.persistence.database import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeRun:
    """What the wrapper asks of a run; everything that happens is written down."""

    def __init__(self, *, retry_for: float = 60.0) -> None:
        self.move_id, self.kind, self.flow_uuid = "11111111-1111-4111-8111-111111111111", "toy", "f"
        self.options = MoveOptions(retry_for=retry_for, retry_pause=0.0)
        self.seen: list[str] = []
        self.stop_at_boundary: Exception | None = None
        self.turns_back: Exception | bool = True

    def boundary(self, step: str, direction: str, *, cancellable: bool) -> None:
        self.seen.append(f"boundary {direction} {'cancellable' if cancellable else 'must go on'}")
        if self.stop_at_boundary:
            raise self.stop_at_boundary

    def probe(self, step: str, direction: str, phase: str) -> None:
        self.seen.append(f"{phase} {direction}")

    row: Any = None

    def attempt(self, move: Any) -> None:
        return None

    def went_on(self, step: str) -> bool:
        return False

    def may_not_turn_back(self, step: str) -> bool:
        if isinstance(self.turns_back, Exception):
            raise self.turns_back
        return not self.turns_back

    def evacuated(self, ctx: Any) -> str:
        return ""

    def is_passed_on(self) -> bool:
        return False

    def went_back(self, step: str) -> bool:
        return False

    def require_rows_agree(self, ctx: Any) -> None:
        """Let it go on from anywhere."""

    def wait(self, seconds: float) -> None:
        self.seen.append("wait")

    def park(self, step: str, direction: str, error: StepError) -> NoReturn:
        self.seen.append(f"park {error.error_code}")
        raise Parked(str(error))

    def leave(self, why: str) -> NoReturn:
        self.seen.append("leave")
        raise Parked(why)


class Toy(Step):
    """Does what it is told, call by call."""

    does = "nothing"
    undoes = "nothing"
    script: list[Any]

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        return self._next()

    def undo(self, ctx: Context) -> None:
        self._next()

    def _next(self) -> dict[str, Any] | None:
        what = self.script.pop(0)
        if isinstance(what, Exception):
            raise what
        return what


@pytest.fixture
def toy() -> Callable[..., tuple[Toy, FakeRun]]:
    def make(*script: Any, retry_for: float = 60.0, **where: bool) -> tuple[Toy, FakeRun]:
        run = FakeRun(retry_for=retry_for)
        step = Toy(run, **where)  # type: ignore[arg-type]
        step.script = list(script)
        return step, run

    return make


def test_a_result_comes_back_between_the_probes(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy({"bytes": 1})
    assert step.execute() == {"bytes": 1}
    assert run.seen == ["boundary execute cancellable", "before execute", "after execute"]


def test_any_exception_becomes_a_flat_step_error(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, _run = toy(KeyError("x"))
    with pytest.raises(StepError) as caught:
        step.execute()
    assert caught.value.error_code == "internal"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_destinations_fault_stays_one(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, _run = toy(DestinationFault("full", code="disk-full", host="host2"))
    with pytest.raises(DestinationFault) as caught:
        step.execute()
    assert caught.value.as_dict() == {
        "code": "disk-full",
        "message": "full",
        "host": "host2",
        "fault": "destination",
    }


@pytest.mark.parametrize("error", [Parked("held"), Fenced("lost")])
def test_parking_and_fencing_pass_through(toy: Callable[..., tuple[Toy, FakeRun]], error: Exception) -> None:
    step, run = toy(error, past_no_return=True)
    with pytest.raises(type(error)):
        step.execute()
    assert "wait" not in run.seen


def test_a_cancel_at_the_boundary_runs_nothing(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy({})
    run.stop_at_boundary = Cancelled("cancelled")
    with pytest.raises(Cancelled):
        step.execute()
    assert len(step.script) == 1


def test_beyond_the_point_of_no_return_a_step_tries_again(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy(StepError("no answer"), StepError("no answer"), {"done": True}, past_no_return=True)
    assert step.execute() == {"done": True}
    assert run.seen.count("wait") == 2
    assert "boundary execute must go on" in run.seen


def test_beyond_it_a_step_that_never_succeeds_parks(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy(StepError("no answer", code="overdue"), retry_for=0.0, past_no_return=True)
    with pytest.raises(Parked):
        step.execute()
    assert run.seen[-1] == "park overdue"


def test_an_undo_goes_on_too(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy(StepError("busy"), None)
    step.revert(None)
    assert run.seen.count("wait") == 1


def test_a_start_proved_never_made_is_an_ordinary_failure(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy(DestinationFault("off, start count unchanged", code="start-failed"), at_no_return=True)
    with pytest.raises(DestinationFault):
        step.execute()
    assert "wait" not in run.seen


def test_a_start_that_nobody_can_tell_of_parks_at_once(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy(StepError("who knows", code="start-unknown"), at_no_return=True)
    with pytest.raises(Parked):
        step.execute()
    assert run.seen[-1] == "park start-unknown"


def test_at_the_point_of_no_return_a_doubtful_failure_is_never_undone(
    toy: Callable[..., tuple[Toy, FakeRun]],
) -> None:
    step, _run = toy(StepError("worker away", code="host-unreachable"), {"started": True}, at_no_return=True)
    assert step.execute() == {"started": True}


@pytest.mark.parametrize("where", [{}, {"past_no_return": True}])
def test_an_outage_leaves_the_step_for_the_next_claim(
    toy: Callable[..., tuple[Toy, FakeRun]], where: dict[str, bool]
) -> None:
    step, run = toy(CoordinationLost("the session is gone"), **where)
    with pytest.raises(Parked):
        step.execute()
    assert run.seen[-1] == "leave"


def _refused_write(why: type[DBAPIError]) -> WriteFailed:
    failure = WriteFailed("the journal refused a write")
    failure.__cause__ = why("UPDATE moves", {}, Exception("told"))
    return failure


@pytest.mark.parametrize("where", [{}, {"past_no_return": True}])
def test_a_journal_that_is_away_leaves_the_step_too(
    toy: Callable[..., tuple[Toy, FakeRun]], where: dict[str, bool]
) -> None:
    step, run = toy(_refused_write(OperationalError), **where)
    with pytest.raises(Parked):
        step.execute()
    assert run.seen[-1] == "leave"


def test_a_write_that_the_journal_refuses_for_good_fails_the_step(
    toy: Callable[..., tuple[Toy, FakeRun]], caplog: pytest.LogCaptureFixture
) -> None:
    """Left for the next claim it would be refused for ever.  U17: the reason has neither statement nor values."""
    caplog.set_level("INFO")
    step, run = toy(_refused_write(DataError))
    with pytest.raises(StepError) as failed:
        step.execute()
    assert str(failed.value) == (
        "step toy cannot write what it has to: the database refused a statement (DataError); the conductor's log has "
        "the traceback and what the server said"
    )
    assert "leave" not in run.seen
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Move {run.move_id[:8]}: step toy failed: internal: ")
    assert record.exc_info is not None


def test_a_failed_step_is_one_line_of_the_log_however_often_it_is_tried(
    toy: Callable[..., tuple[Toy, FakeRun]], caplog: pytest.LogCaptureFixture
) -> None:
    """U16: what a host said is in it in one line, with nothing in it that a terminal would obey."""
    caplog.set_level("INFO")
    error = StepError("no room\n\x1b[2J", code="disk-full", host="host1")
    step, run = toy(error, error, error, {}, past_no_return=True)
    step.execute()
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.exc_info is None
    assert record.getMessage() == (
        f"Move {run.move_id[:8]}: step toy failed on host host1: disk-full: no room\\x0a\\x1b[2J"
    )


@pytest.mark.parametrize("why", [OperationalError, DataError])
def test_a_step_that_cannot_even_park_is_never_a_failed_one(
    toy: Callable[..., tuple[Toy, FakeRun]], monkeypatch: pytest.MonkeyPatch, why: type[DBAPIError]
) -> None:
    """The guest runs on its new host: to TaskFlow a failure would undo the move."""
    step, run = toy(StepError("who knows"), past_no_return=True, retry_for=0.0)

    def refuse(_step: str, _direction: str, _error: StepError) -> NoReturn:
        raise _refused_write(why)

    monkeypatch.setattr(run, "park", refuse)
    with pytest.raises(Parked):
        step.execute()
    assert run.seen[-1] == "leave"


def test_a_step_that_must_not_be_turned_back_from_parks(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    """So of a flow whose journal was put back, where its undos would not know what they are to bring back."""
    step, run = toy(StepError("away", code="host-unreachable"), retry_for=0.0)
    run.turns_back = False
    with pytest.raises(Parked):
        step.execute()
    assert run.seen == ["boundary execute must go on", "before execute", "park host-unreachable"]


def test_nobody_turns_back_while_the_rows_cannot_be_read(toy: Callable[..., tuple[Toy, FakeRun]]) -> None:
    step, run = toy({})
    run.turns_back = CoordinationLost("away")
    with pytest.raises(Parked):
        step.execute()
    assert run.seen == ["leave"]


def test_an_undo_is_given_nothing_of_what_a_step_before_it_failed_to_give(
    toy: Callable[..., tuple[Toy, FakeRun]], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _run = toy()
    seen: list[Context] = []
    monkeypatch.setattr(Toy, "undo", lambda _step, ctx: seen.append(ctx))
    failed = Failure.from_exception(StepError("away", code="host-unreachable"))
    step.revert(None, storage=failed, reserved={"volume": 1})
    assert seen[0].inputs == {"storage": {}, "reserved": {"volume": 1}}
