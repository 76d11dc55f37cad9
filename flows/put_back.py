"""What the rows of a server say after each step of its move: older rows are those of a database put back.

Each step says in ``leaves`` what it and its undo change in the copy that the server is mapped to, and in ``between``
what of either cell's copy.  `left` walks a history through that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from droveway.flows import registry
from droveway.flows.stands import GONE, LEFT_BEHIND, NOTHING, OFFLOADED, START, WAITS, Leaves, Side, Stands
from droveway.wire.values import Direction

if TYPE_CHECKING:
    from droveway.persistence.journal.kinds import Kind


class Ran(NamedTuple):
    """A step that was done, or undone."""

    kind: str
    """The graph's."""
    step: str
    direction: Direction = "execute"
    attempt: int = 0
    """The alternate that the move was on."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """What the rows of a server say in the cells of its move; within a cell there is no other copy."""

    source: Stands
    target: Stands = GONE
    mapped: Side = Side.SOURCE
    """Whose cell the server is mapped to."""

    def of(self, side: Side) -> Stands:
        """Return the copy in the cell of one of the two hosts."""
        return self.target if side is Side.DESTINATION else self.source

    @property
    def home(self) -> Stands:
        """Return the copy that the server is mapped to."""
        return self.of(self.mapped)

    def change(self, side: Side, stands: Stands) -> Copies:
        """Return the same with another copy in that cell."""
        stands = stands if stands.here else GONE
        if side is Side.DESTINATION:
            return dataclasses.replace(self, target=stands)
        return dataclasses.replace(self, source=stands)


def begun(kind: Kind) -> Copies:
    """What stands before the first step of a move of that kind."""
    return Copies(OFFLOADED if kind.begins_offloaded else START)


def waiting(attempt: int, *, between: bool) -> Copies:
    """What stands while the server waits for confirm or revert on that alternate, in another cell or in its own."""
    there = dataclasses.replace(WAITS, attempt=attempt)
    if not between:
        return Copies(there)
    return Copies(dataclasses.replace(LEFT_BEHIND, attempt=attempt), there, Side.DESTINATION)


def after(found: Copies, ran: Ran) -> Copies:
    """What stands after this step of this graph, of what stood before it; a step that no graph has changes nothing."""
    step = registry.step(ran.kind, ran.step)
    if step is None:
        return found
    if step.between is None:
        return found.change(found.mapped, changed(found.home, step.leaves, ran))
    between, done = step.between, ran.direction == "execute"
    for side, other, leaves in (
        (Side.SOURCE, Side.DESTINATION, between.source),
        (Side.DESTINATION, Side.SOURCE, between.target),
    ):
        if leaves is NOTHING:
            continue
        stands = found.of(side)
        if done and between.takes:
            theirs = found.of(other)
            stands = dataclasses.replace(stands, **{name: getattr(theirs, name) for name in between.takes})
        found = found.change(side, changed(stands, leaves, ran))
    if between.maps is not None:
        found = dataclasses.replace(found, mapped=between.maps[0 if done else 1])
    return found


def changed(found: Stands, leaves: Leaves, ran: Ran) -> Stands:
    """What one copy says once a step or its undo has left that in it."""
    if ran.direction == "execute":
        if leaves.names_alternate:
            found = dataclasses.replace(found, attempt=ran.attempt)
        return dataclasses.replace(found, **leaves.does)
    changes = dict(leaves.undoes)
    if found.status is None:
        # The undo of a step that never came to insert the migration finds none, and makes none.
        changes.pop("status", None)
    return dataclasses.replace(found, **changes)


def left(kind: Kind, history: Iterable[Ran]) -> Copies:
    """What stands after all these steps of a move that began with that kind, in their order, from its first one on."""
    found = begun(kind)
    for ran in history:
        found = after(found, ran)
    return found
