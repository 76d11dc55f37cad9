"""The one retry of every operation: the next (cell, host) when the last one failed through its own fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from taskflow import retry

from droveway.errors import Cancelled, DestinationFault
from droveway.flows.step import guarded
from droveway.persistence.journal import attempts
from droveway.persistence.journal.states import State

if TYPE_CHECKING:
    from droveway.flows.run import Run


class AlternateRetry(retry.Retry):
    """Hands out the candidates in order; answers RETRY only for the destination's faults.

    `on_failure` is total: an exception in it would leave the flow failed with nothing undone (measured).
    """

    title: ClassVar[str] = "alternates"

    def __init__(self, run: Run) -> None:
        super().__init__(name=self.title, provides="destination", requires=("candidates",))
        self.run_ = run

    def execute(self, candidates: dict[str, Any], history: Any, **_inputs: Any) -> dict[str, Any]:
        """The next alternate: its number, cell and host; recorded in the journal before anything relies on it."""
        number = candidates.get("first", 1) + len(history)

        def record() -> dict[str, Any]:
            chosen = candidates["chosen"][number - 1]
            with self.run_.write() as session:
                attempts.begin(session, self.run_.move_id, number, chosen)
            return {"attempt": number, "cell": chosen["cell"], "host": chosen["host"]}

        return guarded(self.run_, self.title, "execute", record, must_go_on=False)

    def on_failure(self, candidates: dict[str, Any], history: Any, **_inputs: Any) -> retry.Decision:
        """RETRY for a destination's fault while alternates are left, else REVERT."""
        left = candidates.get("first", 1) + len(history) <= len(candidates["chosen"])
        destination = history.caused_by(DestinationFault, index=-1) and not history.caused_by(Cancelled, index=-1)
        move = self.run_.move()
        ends = move.cancel_requested or move.delete_requested
        return retry.RETRY if left and destination and not ends else retry.REVERT

    def revert(self, history: Any, **_inputs: Any) -> None:  # noqa: ARG002 - TaskFlow's signature
        """Nothing of the destination is left by now; the journal keeps the attempts as evidence."""

        def record() -> None:
            with self.run_.write() as session:
                attempts.undoing(session, self.run_.move_id, State.UNDOING)

        guarded(self.run_, self.title, "revert", record, must_go_on=True)
