"""Decides what becomes of a step of a move between cells when the database of a cell that it needs is away."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from droveway.persistence.journal.kinds import Carries, Way

if TYPE_CHECKING:
    from droveway.flows.graph import Graph
    from droveway.flows.step import Step
    from droveway.wire.values import Direction


class Verdict(enum.Enum):
    """Says what becomes of the step."""

    WAITS = "waits"
    """The step waits as long as it takes: the flow can neither go on nor be undone without that cell."""
    FAULT = "fault"
    """The step fails at once by the destination's fault, so that the next alternate is tried."""
    UNDONE = "undone"
    """The flow is undone: once the step's deadline has passed, or at once if the cell is declared down."""
    PARKS = "parks"
    """Once its deadline has passed, the move parks.

    The flow is not undone, because Nova may have read both copies of the rows since the mapping was switched.
    """
    OWED = "owed"
    """The step becomes a debt of the cell at once, and the flow goes on without the step."""
    OWED_LATE = "owed-late"
    """Once its deadline has passed, the step becomes a debt of the cell, and the flow goes on without the step."""
    SKIPPED = "skipped"
    """The flow goes on without the step at once: the rows that the step compares or marks are gone with their cell."""
    RESTS = "rests"
    """The move parks at once: the flow can neither go on nor be undone without what is gone with the cell."""


AT_ONCE: Final = frozenset({Verdict.FAULT, Verdict.OWED, Verdict.SKIPPED, Verdict.RESTS})
LATE: Final = frozenset({Verdict.UNDONE, Verdict.PARKS, Verdict.OWED_LATE})
OWED: Final = frozenset({Verdict.OWED, Verdict.OWED_LATE})


def verdict(graph: Graph, name: str, direction: Direction, *, target: bool, home: bool, down: bool = False) -> Verdict:
    """Decide what becomes of the step ``name``.

    ``target``: the cell that is away is the destination's.  ``home``: that cell has the copy of the rows that counts,
    since the server lives there.  ``down``: a person declared that cell down.
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
    """Decide what becomes of a step whose cell is declared down: the flow uses the copy in the other cell, or parks.

    ``home`` says whether the gone cell is the one that `Run.home_cell` names.  If the copy in the other cell may be
    used instead, `Run.home_cell` names the other cell, and ``home`` is false.  So ``home`` is true only if the copy in
    the other cell may not be used instead.
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
        # In that cell a confirm or revert has written only its task_state and status.  They stay there: the move's
        # next confirm or revert accepts them as found.
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
    """Return the place of the step that first touches the server.

    That step is `mark_migrating`, else `stop_guest`, else `show_target`.  Returns the number of names if the graph has
    none of the three.
    """
    marks = [name for name in ("mark_migrating", "stop_guest", "show_target") if name in graph.by_name]
    return names.index(marks[0]) if marks else len(names)


def _name(step: type[Step]) -> str:
    return step.step_name()
