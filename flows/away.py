"""What becomes of a step of a move between cells that needs a cell whose database does not answer."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from droveway.flows.graph import Graph
    from droveway.flows.step import Step
    from droveway.wire.values import Direction


class Verdict(enum.Enum):
    """What the step comes to."""

    WAITS = "waits"
    """For as long as it takes: neither way on nor back leads past that cell."""
    FAULT = "fault"
    """At once the destination's fault: the next alternate is tried."""
    UNDONE = "undone"
    """Once its deadline has passed, the flow is undone."""
    PARKS = "parks"
    """Once its deadline has passed, the move parks: since the mapping was switched others may have met both copies."""
    OWED = "owed"
    """At once the cell owes it, and the undo goes on."""
    OWED_LATE = "owed-late"
    """Once its deadline has passed, the cell owes it, and the flow goes on."""
    SKIPPED = "skipped"
    """At once the flow goes on: what it would have looked at is gone with its cell."""


AT_ONCE: Final = frozenset({Verdict.FAULT, Verdict.OWED, Verdict.SKIPPED})
LATE: Final = frozenset({Verdict.UNDONE, Verdict.PARKS, Verdict.OWED_LATE})
OWED: Final = frozenset({Verdict.OWED, Verdict.OWED_LATE})


def verdict(graph: Graph, name: str, direction: Direction, *, target: bool, home: bool, down: bool = False) -> Verdict:
    """Judge the step ``name``.

    ``target``: the cell that is away is the destination's; ``home``: the server's mapping names it; ``down``: a
    person declared it down.
    """
    names, no_return = graph.names(), graph.names().index(graph.no_return.step_name())
    at, step = names.index(name), graph.by_name.get(name)
    owes = step is not None and bool(step.cell_debt) and not home
    if direction == "revert":
        return Verdict.OWED if owes else Verdict.WAITS
    if at > no_return:
        return Verdict.OWED_LATE if owes else Verdict.WAITS
    switch = graph.shown.switch
    if at == no_return or (switch and at >= names.index(switch)):
        return Verdict.PARKS
    if name in map(_name, graph.tried) and at < _touches(graph, names):
        return Verdict.FAULT if target and not home else Verdict.WAITS
    if down and not home and step is not None and step.confirmed_without and not switch:
        return Verdict.SKIPPED  # a confirm keeps what runs, and the copy is removed there when the cell is back
    first = bool(graph.tried) and name in map(_name, graph.steps)
    return Verdict.WAITS if first else Verdict.UNDONE


def _touches(graph: Graph, names: list[str]) -> int:
    """Where the server is touched first: its guest is to be stopped, or its copy is shown."""
    marks = [name for name in ("mark_migrating", "stop_guest", "show_target") if name in graph.by_name]
    return names.index(marks[0]) if marks else len(names)


def _name(step: type[Step]) -> str:
    return step.step_name()
