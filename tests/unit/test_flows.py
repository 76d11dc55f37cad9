"""The graphs: their order is the declared one, their shape is pinned, and every step says how it is undone.

docs/contributor/why-this-order.rst gives the reasons for the order.
"""

from __future__ import annotations

import pytest
from support import pinned_graphs

from droveway.errors import NotFound
from droveway.flows import pictures, registry
from droveway.flows.graph import Graph
from droveway.flows.step import Step

GRAPHS = pytest.mark.parametrize(
    "graph", list(registry.GRAPHS.values()), ids=lambda graph: f"{graph.kind}{graph.version}"
)


@GRAPHS
def test_the_order_is_the_declared_one(graph: Graph) -> None:
    """RC-01: each operation is a graph of its own, in the order that was decided."""
    then = pinned_graphs.pinned(graph)
    now = {"steps": graph.names(), "no_return": graph.no_return.step_name()}
    assert now == {name: then.get(name) for name in now}, pinned_graphs.wrong(graph)


def test_resize_and_migrate_share_one_graph() -> None:
    """R0-01: only flavor and host rules differ."""
    assert registry.latest("resize").names() == registry.latest("migrate").names()


@GRAPHS
def test_every_step_is_undone_or_says_why_not(graph: Graph) -> None:
    """RC-02: every step has an undo; one that has none says why, and only then does it lack the method."""
    for step in graph.walk():
        has_undo = step.undo is not Step.undo
        assert bool(step.undoes) != bool(step.no_undo), step.step_name()
        assert has_undo or step.no_undo, step.step_name()


@GRAPHS
def test_nothing_beyond_the_point_of_no_return_has_an_undo(graph: Graph) -> None:
    steps = list(graph.walk())
    beyond = steps[steps.index(graph.no_return) + 1 :]
    assert beyond, f"{graph.kind} ends with its no_return: name an earlier step, or let one follow that ends the flow"
    assert all(step.no_undo for step in beyond)


@GRAPHS
def test_what_a_step_needs_is_given_before(graph: Graph) -> None:
    given = {"candidates", "destination"} if graph.tried else set()
    for step in graph.walk():
        assert set(step.needs) <= given, step.step_name()
        given |= {step.gives} - {""}


@GRAPHS
def test_a_released_graph_never_changes(graph: Graph) -> None:
    """What a change asks for is in `pinned_graphs.wrong`."""
    assert pinned_graphs.facts(graph) == pinned_graphs.pinned(graph), pinned_graphs.wrong(graph)


def test_every_pinned_graph_is_still_there() -> None:
    strays = pinned_graphs.strays()
    assert not strays, "; ".join(strays)


@GRAPHS
def test_a_picture_names_every_step(graph: Graph) -> None:
    for picture in (pictures.text(graph), pictures.mermaid(graph), pictures.dot(graph)):
        assert all(name in picture for name in graph.names())
    lines = pictures.text(graph).split("\n")
    assert [line.split("\t")[0] for line in lines] == graph.names()
    assert [line.split("\t")[0] for line in lines if line.endswith("\tPONR")] == [graph.no_return.step_name()]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(NotFound, match="the kinds are resize, migrate"):
        registry.latest("rebuild")
