"""Makes the TaskFlow flow of a graph: one task for each step, and one retry for the alternates.

Steps and graphs know nothing of TaskFlow: `droveway.flows` says what is done in which order, and this module lets
TaskFlow do it.
"""

from __future__ import annotations

import collections
from typing import Any

from taskflow import retry, task
from taskflow.patterns import linear_flow
from taskflow.types import sets

from droveway.flows.alternates import Alternates
from droveway.flows.graph import Graph
from droveway.flows.run import Run
from droveway.flows.step import Step


def build(graph: Graph, run: Run) -> linear_flow.Flow:
    """Make the flow for one run of a graph."""
    flow = linear_flow.Flow(f"{graph.kind}@{graph.version}")
    steps = {type(step): StepTask(step) for step in graph.make(run)}
    flow.add(*(steps[step] for step in graph.steps))
    if graph.tried:
        tried = linear_flow.Flow(Alternates.title, retry=AlternateRetry(Alternates(run)))
        flow.add(tried.add(*(steps[step] for step in graph.tried)))
    return flow.add(*(steps[step] for step in graph.after))


class StepTask(task.Task):
    """Runs a step, and undoes it."""

    def __init__(self, step: Step) -> None:
        super().__init__(
            name=step.step_name(), provides=step.gives or None, requires=step.needs, revert_requires=step.needs
        )
        self._step = step

    def _build_arg_mapping(self, _method: Any, requires: Any = None, **_others: Any) -> tuple[Any, Any, Any]:
        # TaskFlow would inspect the signature of every step of every flow, and they are all alike.
        named = collections.OrderedDict((name, name) for name in requires or ())
        return named, sets.OrderedSet(named), sets.OrderedSet()

    def execute(self, **inputs: Any) -> dict[str, Any]:
        """Do the step, for TaskFlow."""
        return self._step.execute(**inputs)

    def revert(
        self,
        result: Any,
        flow_failures: Any,  # noqa: ARG002 - TaskFlow's signature
        **inputs: Any,
    ) -> dict[str, Any] | None:
        """Undo the step, for TaskFlow."""
        return self._step.revert(result, **inputs)


class AlternateRetry(retry.Retry):
    """Runs the steps of one alternate after another, as `droveway.flows.alternates.Alternates` says."""

    def __init__(self, alternates: Alternates) -> None:
        super().__init__(name=Alternates.title, provides="destination", requires=("candidates",))
        self._alternates = alternates

    def execute(self, candidates: dict[str, Any], history: Any, **_inputs: Any) -> dict[str, Any]:
        """Choose the next alternate, for TaskFlow."""
        return self._alternates.execute(candidates, tried=len(history))

    def on_failure(self, candidates: dict[str, Any], history: Any, **_inputs: Any) -> retry.Decision:
        """Decide between the next alternate and undoing the flow, for TaskFlow."""

        def failed_by(kind: type[Exception]) -> bool:
            caused: bool = history.caused_by(kind, index=-1)
            return caused

        takes_next = self._alternates.takes_next(candidates, tried=len(history), failed_by=failed_by)
        return retry.RETRY if takes_next else retry.REVERT

    def revert(self, history: Any, **_inputs: Any) -> None:  # noqa: ARG002 - TaskFlow's signature
        """Record that no alternate is tried any more, for TaskFlow."""
        self._alternates.revert()
