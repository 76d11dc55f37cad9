"""Retries an operation on the next alternate, a host with its cell, when the last one failed by its own fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from droveway.errors import Cancelled, DestinationFault, StepError
from droveway.flows.other_graph import across
from droveway.flows.step import OUTAGES, guarded, leave
from droveway.persistence.journal import attempts, kinds, moves

if TYPE_CHECKING:
    from droveway.flows.run import Run


NEXT_GRAPH: Final = "next-graph"
"""The code of the StepError that ends a flow whose next alternate needs a graph of another kind."""


class Alternates:
    """Hands out the alternates in order: the next one is tried only after a fault of the destination.

    While the journal is away, `takes_next` leaves the flow to the next claim.  It must not raise otherwise: TaskFlow
    would leave the flow failed with nothing undone (measured).
    """

    title: ClassVar[str] = "alternates"

    def __init__(self, run: Run) -> None:
        self.run_ = run

    def execute(self, candidates: dict[str, Any], *, tried: int) -> dict[str, Any]:
        """Return number, cell and host of the next alternate, once the journal has recorded it.

        Raises StepError (``next-graph``) where that alternate needs a graph of another kind.
        """
        number = candidates.get("first", 1) + tried

        def record() -> dict[str, Any]:
            if number > len(candidates["chosen"]):
                self._name_next_graph(candidates["later"][0])
            chosen = candidates["chosen"][number - 1]
            if kinds.of(self.run_.kind).elsewhere:
                self.run_.begin_return(candidates["before"] + number, chosen)
            else:
                with self.run_.write() as session:
                    attempts.begin(session, self.run_.move_id, number, chosen)
            return {"attempt": number, "cell": chosen["cell"], "host": chosen["host"]}

        return guarded(self.run_, self.title, "execute", record, must_go_on=False)

    def _name_next_graph(self, alternate: dict[str, Any]) -> NoReturn:
        """Record the graph by which the move continues, then end this flow: raises StepError (``next-graph``)."""
        kind = str(across(self.run_.kind))
        graph = self.run_.graph_of(kind).reference
        with self.run_.write() as session:
            moves.name_following(session, self.run_.move_id, self.run_.flow_uuid, graph)
        raise StepError(
            f"the next alternate is host {alternate['host']} of cell {alternate['cell']}: the move continues as {kind}",
            code=NEXT_GRAPH,
        )

    def takes_next(
        self, candidates: dict[str, Any], *, tried: int, failed_by: Callable[[type[Exception]], bool]
    ) -> bool:
        """Tell whether to try the next alternate; when not, the whole flow is undone.

        The next alternate is tried if all of this is true:

        * The last alternate failed by a fault of the destination.  ``failed_by`` tells whether it failed by an error of
          the given class.
        * Another alternate is left.
        * Nobody has asked to cancel the move or to delete its server.

        Raises Parked when the journal does not say the last: nothing is decided then, and the next claim asks again.
        """
        known = len(candidates["chosen"]) + len(candidates.get("later", ()))
        left = candidates.get("first", 1) + tried <= known
        destination = failed_by(DestinationFault) and not failed_by(Cancelled)
        try:
            move = self.run_.move()
        except OUTAGES as error:
            leave(self.run_, self.title, error)
        ends = move.cancel_requested or move.delete_requested
        return left and destination and not ends

    def revert(self) -> None:
        """Record that the move is being undone, unless another flow continues it.

        The undos have left nothing on the destination by now.  The journal keeps the attempts as evidence.
        """

        def record() -> None:
            with self.run_.write() as session:
                if not moves.following(session, self.run_.move_id, self.run_.flow_uuid):
                    attempts.set_undoing(session, self.run_.move_id)

        guarded(self.run_, self.title, "revert", record, must_go_on=True)
