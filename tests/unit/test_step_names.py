"""A step has one name: its class, the graph, the action that a worker does for it, and the files say the same."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from droveway.flows import registry
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import HostStep

STEPS: Final = {
    f"{step.__module__.removeprefix('droveway.flows.steps.')}.{step.__name__}": step
    for graph in registry.GRAPHS.values()
    for step in graph.walk()
}


def snake_case(name: str) -> str:
    return "_".join(re.findall(r"[A-Z][a-z0-9]*", name)).lower()


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_is_called_like_its_class(step: type[Step]) -> None:
    name = snake_case(step.__name__)
    assert step.step_name() == name, f"call the class of the step {step.step_name()} like it, in a module of its flow"
    named = [each.__qualname__ for each in step.__mro__ if "step_name" in vars(each)]
    assert named == [Step.__qualname__], f"the name of {step.__qualname__} is its class's: take out step_name"


@pytest.mark.parametrize("step", [each for each in STEPS.values() if issubclass(each, HostStep)], ids=str)
def test_an_action_has_the_name_of_its_step_or_says_its_own(step: type[HostStep]) -> None:
    said: list[Any] = [vars(each)["action"] for each in step.__mro__ if "action" in vars(each)]
    assert said[0] in ("", step.action_name())
    assert said[0] != step.step_name(), f"take action out of {step.__qualname__}: it is the step's name already"


@pytest.mark.parametrize("graph", registry.GRAPHS.values(), ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_a_graph_has_no_two_steps_of_one_name(graph: Any) -> None:
    names = graph.names()
    assert len(names) == len(set(names)), f"{graph.kind} has a step twice: history and faults could not tell them apart"
