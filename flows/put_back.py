"""What the cell's rows of a server say after each step of its move: older rows are those of a database put back.

Each step says in ``leaves`` what it and its undo change.  `left` walks a history through that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from droveway.flows import registry
from droveway.flows.stands import NOTHING, START, Stands
from droveway.wire.values import Direction


class Ran(NamedTuple):
    """A step that was done, or undone."""

    kind: str
    """The graph's."""
    step: str
    direction: Direction = "execute"
    attempt: int = 0
    """The alternate that the move was on."""


def after(found: Stands, ran: Ran) -> Stands:
    """What stands after this step of this graph, of what stood before it; a step that no graph has changes nothing."""
    step = registry.step(ran.kind, ran.step)
    leaves = NOTHING if step is None else step.leaves
    if ran.direction == "execute":
        if leaves.names_alternate:
            found = dataclasses.replace(found, attempt=ran.attempt)
        return dataclasses.replace(found, **leaves.does)
    changes = dict(leaves.undoes)
    if found.status is None:
        # The undo of a step that never came to insert the migration finds none, and makes none.
        changes.pop("status", None)
    return dataclasses.replace(found, **changes)


def left(history: Iterable[Ran]) -> Stands:
    """What stands after all these steps of a move, in their order, from its first one on."""
    found = START
    for ran in history:
        found = after(found, ran)
    return found
