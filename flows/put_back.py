"""Works out what the rows of a server are expected to say after each step of its move.

Other modules compare the rows with that, to find a database that was *put back*: an operator has restored it from an
older copy.  This module itself restores nothing.  `droveway.flows.older_rows` finds a cell database that was put back:
its rows say what an earlier step left.  ``droveway move settle`` then writes what the move had left there.

Each step declares in ``leaves`` what the step and its undo change in the copy that the server is mapped to, and in
``between`` what they change in the copy of each cell.  `left` applies that to a history of steps.
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
    """Names a step that was done or undone."""

    kind: str
    """The kind of the step's graph."""
    step: str
    direction: Direction = "execute"
    attempt: int = 0
    """The alternate that the move was on."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """Holds what the rows of a server say in both cells of its move; a move within a cell has only the source's."""

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
        """Return both copies, with that cell's replaced."""
        stands = stands if stands.here else GONE
        if side is Side.DESTINATION:
            return dataclasses.replace(self, target=stands)
        return dataclasses.replace(self, source=stands)


def begun(kind: Kind) -> Copies:
    """Return what the rows say before the first step of a move of that kind."""
    return Copies(OFFLOADED if kind.begins_offloaded else START)


def waiting(attempt: int, *, between: bool) -> Copies:
    """Return what the rows say while the server waits for confirm or revert on that alternate.

    ``between``: the move leads into another cell.
    """
    there = dataclasses.replace(WAITS, attempt=attempt)
    if not between:
        return Copies(there)
    return Copies(dataclasses.replace(LEFT_BEHIND, attempt=attempt), there, Side.DESTINATION)


def after(found: Copies, ran: Ran) -> Copies:
    """Return what the rows say after a step, where they said ``found`` before.

    Returns ``found`` for a step that is in none of the graphs.
    """
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
    """Return what one copy says after a step or its undo, where it said ``found`` before."""
    if ran.direction == "execute":
        if leaves.names_alternate:
            found = dataclasses.replace(found, attempt=ran.attempt)
        return dataclasses.replace(found, **leaves.does)
    changes = dict(leaves.undoes)
    if found.status is None:
        # The undo of a step that never inserted the migration finds no migration, and inserts none.
        changes.pop("status", None)
    return dataclasses.replace(found, **changes)


def left(kind: Kind, history: Iterable[Ran]) -> Copies:
    """Return what the rows say after the whole ``history``, oldest step first, of a move that began with that kind."""
    found = begun(kind)
    for ran in history:
        found = after(found, ran)
    return found
