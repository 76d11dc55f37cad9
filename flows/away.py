"""What becomes of a step of a move between cells that needs a cell whose database does not answer."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from droveway.persistence.journal.kinds import Carries, Way

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
    """At once the flow goes on: what it would have looked at, or marked, is gone with its cell."""
    RESTS = "rests"
    """At once the move parks: what is gone with the cell is needed for either way."""


AT_ONCE: Final = frozenset({Verdict.FAULT, Verdict.OWED, Verdict.SKIPPED, Verdict.RESTS})
LATE: Final = frozenset({Verdict.UNDONE, Verdict.PARKS, Verdict.OWED_LATE})
OWED: Final = frozenset({Verdict.OWED, Verdict.OWED_LATE})


def verdict(graph: Graph, name: str, direction: Direction, *, target: bool, home: bool, down: bool = False) -> Verdict:
    """Judge the step ``name``.

    ``target``: the cell that is away is the destination's; ``home``: the rows there are those that count; ``down``: a
    person declared it down.
    """
    if down:
        return _when_gone(graph, name, direction, target=target, home=home)
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
    first = bool(graph.tried) and name in map(_name, graph.steps)
    return Verdict.WAITS if first else Verdict.UNDONE


def _when_gone(graph: Graph, name: str, direction: Direction, *, target: bool, home: bool) -> Verdict:
    """Judge a step whose cell is declared down: the flow ends by the rows that are left, or rests.

    A cell that is declared down has the rows that count only where no others may stand in for them.
    """
    step, names = graph.by_name.get(name), graph.names()
    confirms = graph.kind_record.ends is Way.CONFIRM
    past_no_return = names.index(name) > names.index(graph.no_return.step_name())
    debt = step.cell_debt or step.debt_when_gone if step is not None else ""
    if direction == "revert":
        if home and not confirms:
            return Verdict.RESTS
        if step is not None and (step.cell_debt or step.undo_debt_when_gone):
            return Verdict.OWED
        # Of a flow that ends a move only marks are left to take back there, and its next one finds them.
        return Verdict.SKIPPED if target and graph.kind_record.ends is not None else Verdict.RESTS
    if home:
        return Verdict.UNDONE if confirms and not past_no_return else Verdict.RESTS
    if past_no_return:
        return Verdict.OWED if debt else Verdict.RESTS
    if graph.kind_record.carries is Carries.TO_DESTINATION and target:
        touched = name not in map(_name, graph.tried) or names.index(name) >= _touches(graph, names)
        return Verdict.UNDONE if touched else Verdict.FAULT
    if graph.kind_record.carries is Carries.BACK and not target:
        return Verdict.UNDONE
    if step is not None and step.skipped_when_gone:
        return Verdict.SKIPPED
    if confirms:
        return Verdict.UNDONE
    return Verdict.OWED if debt else Verdict.RESTS


def _touches(graph: Graph, names: list[str]) -> int:
    """Where the server is touched first: its guest is to be stopped, or its copy is shown."""
    marks = [name for name in ("mark_migrating", "stop_guest", "show_target") if name in graph.by_name]
    return names.index(marks[0]) if marks else len(names)


def _name(step: type[Step]) -> str:
    return step.step_name()
