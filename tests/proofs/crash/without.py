"""A step's effect taken out of a graph: the step says what it says in an undisturbed run, and does nothing.

Of a step that only looks this takes the refusal out: whatever it would see, it says that all is well.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from droveway.errors import DrovewayError
from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.flows.step import Step

Answers = Mapping[str, dict[str, Any]]
"""By step: what it returned in an undisturbed run."""

BETWEEN: Final = ":"


class Effect(NamedTuple):
    """The effect of one step of a kind's newest graph."""

    kind: str
    step: str

    def __str__(self) -> str:
        return BETWEEN.join(self)


def parse(text: str) -> Effect:
    """The effect that `str` of it named; raises DrovewayError when no graph has it."""
    found = next((each for each in effects() if str(each) == text), None)
    if found is None:
        raise DrovewayError(f"there is no step {text}: name KIND{BETWEEN}STEP, as flow graph KIND shows its steps")
    return found


def effects() -> Iterator[Effect]:
    """One for each step of each kind's newest graph."""
    for kind in registry.kinds():
        for step in registry.latest(kind).walk():
            yield Effect(kind, step.step_name())


@contextlib.contextmanager
def taken_out(effect: Effect, answers: Answers) -> Iterator[None]:
    """Let the step do nothing for as long as the block runs, wherever this process runs a flow of its kind."""
    graph = registry.latest(effect.kind)
    step = next(each for each in graph.walk() if each.step_name() == effect.step)
    registry.GRAPHS[effect.kind, graph.version] = _with(graph, step, _idle(step, answers[effect.step]))
    try:
        yield
    finally:
        registry.GRAPHS[effect.kind, graph.version] = graph


def _idle(step: type[Step], answer: dict[str, Any]) -> type[Step]:
    """The step with a body that only answers."""

    def perform(_self: Step, _ctx: Any) -> dict[str, Any]:
        return dict(answer)

    return type(step.__name__, (step,), {"title": step.step_name(), "perform": perform})


def _with(graph: Graph, step: type[Step], other: type[Step]) -> Graph:
    def placed(steps: tuple[type[Step], ...]) -> tuple[type[Step], ...]:
        return tuple(other if each is step else each for each in steps)

    return dataclasses.replace(
        graph,
        steps=placed(graph.steps),
        tried=placed(graph.tried),
        after=placed(graph.after),
        no_return=other if graph.no_return is step else graph.no_return,
    )
