"""The states of a move: what each means for an operator, and which may follow which."""

from __future__ import annotations

import enum
from typing import Final

from droveway.errors import IllegalTransition


class State(enum.StrEnum):
    """Names the states of a move.

    A new state has to be added to the tables of this module, `BEGUN` among them.  It may also belong in the lists of
    states of other modules: ``_GOING_ON`` in persistence/journal/requests.py, ``GOING`` in cli/commands/move.py and
    ``_EXPECTED`` in audit/checks/migrations.py.
    """

    QUEUED = "queued"
    RUNNING = "running"
    VERIFYING = "verifying"
    CONFIRMING = "confirming"
    REVERTING = "reverting"
    UNDOING = "undoing"
    DELETING = "deleting"
    NEEDS_OPERATOR = "needs-operator"
    DONE = "done"
    REVERTED = "reverted"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({State.DONE, State.REVERTED, State.FAILED, State.CANCELLED})
"""The states of a move that is over: no flow of it will run again, and its server may have a new move."""

UNDONE: Final = frozenset({State.FAILED, State.CANCELLED})
"""The states of a move that ended with everything undone that it had done."""

BEGUN: Final = frozenset({State.RUNNING, State.UNDOING, State.CONFIRMING, State.REVERTING, State.DELETING})
"""The states of a move whose flow runs.

If such a move has `Move.waits_for`, it waits for the database of a cell, or for Nova's API database.
"""

ADVICE: Final[dict[State, str]] = {
    State.QUEUED: "nothing to do: it starts when a conductor is free",
    State.RUNNING: "nothing to do",
    State.VERIFYING: "look at the server, then: droveway move confirm {move}  or  droveway move revert {move}",
    State.CONFIRMING: "nothing to do: the source's copy is being removed",
    State.REVERTING: "nothing to do: the server is on its way back to its source",
    State.UNDOING: "nothing to do: what was done is being undone",
    State.DELETING: "nothing to do: the server is being deleted",
    State.NEEDS_OPERATOR: "mend what the reason names, then: droveway move retry {move}",
    State.DONE: "nothing to do: the move is complete",
    State.REVERTED: "nothing to do: the server is back as it was",
    State.FAILED: "nothing to do: the server is as it was; the reason says why",
    State.CANCELLED: "nothing to do: the server is as it was",
}

_NEXT: Final[dict[State, frozenset[State]]] = {
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.DELETING}),
    State.RUNNING: frozenset(
        {State.VERIFYING, State.DONE, State.UNDOING, State.FAILED, State.CANCELLED, State.DELETING}
    ),
    State.VERIFYING: frozenset({State.CONFIRMING, State.REVERTING, State.CANCELLED, State.DELETING}),
    State.CONFIRMING: frozenset({State.DONE, State.VERIFYING, State.CANCELLED, State.DELETING}),
    State.REVERTING: frozenset({State.REVERTED, State.VERIFYING, State.CANCELLED, State.DELETING}),
    State.UNDOING: frozenset({State.FAILED, State.CANCELLED, State.DELETING}),
    State.DELETING: frozenset({State.DONE, State.CANCELLED}),
    State.NEEDS_OPERATOR: frozenset(),
}


def check_transition(old: State, new: State) -> None:
    """Raise `droveway.errors.IllegalTransition` unless ``new`` may follow ``old``."""
    if State.NEEDS_OPERATOR in (old, new) and old not in ENDED and new is not old:
        return
    if new not in _NEXT.get(old, frozenset()):
        raise IllegalTransition(f"a move that is {old} cannot become {new}")
