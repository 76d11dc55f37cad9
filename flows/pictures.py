"""Writes graphs as text, mermaid and dot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from droveway.flows.alternates import Alternates
from droveway.flows.graph import NO_RETURN, Graph
from droveway.flows.step import Step


def text(graph: Graph) -> str:
    """Write one line a step, tab-separated: name, where, undo or why none, and PONR on the point of no return."""
    return "\n".join("\t".join(row) for row in _rows(graph))


def mermaid(graph: Graph) -> str:
    """Write a mermaid flowchart; the steps that are tried once for each alternate are in one box."""
    lines = ["flowchart TD"]
    names = graph.names()
    if graph.tried:
        lines.append(f"  subgraph {Alternates.title}")
        lines += [f"    {step.step_name()}" for step in graph.tried]
        lines.append("  end")
    lines += [f"  {first} --> {second}" for first, second in itertools.pairwise(names)]
    lines.append(f"  style {graph.no_return.step_name()} stroke-width:4px")
    return "\n".join(lines)


def dot(graph: Graph) -> str:
    """Write a Graphviz digraph."""
    names = graph.names()
    lines = [f'digraph "{graph.kind}@{graph.version}" {{', "  node [shape=box];"]
    lines += [f'  "{name}";' for name in names]
    lines += [f'  "{first}" -> "{second}";' for first, second in itertools.pairwise(names)]
    lines += [f'  "{graph.no_return.step_name()}" [penwidth=3];', "}"]
    return "\n".join(lines)


def _rows(graph: Graph) -> Iterator[tuple[str, ...]]:
    for step in graph.steps:
        yield _row(step, graph)
    if graph.tried:
        yield (Alternates.title, "conductor", "the next alternate, or all is undone")
    for step in (*graph.tried, *graph.after):
        yield _row(step, graph)


def _row(step: type[Step], graph: Graph) -> tuple[str, ...]:
    undo = step.undoes if not step.no_undo else f"none: {step.no_undo}"
    row = (step.step_name(), step.where.value, undo)
    return (*row, NO_RETURN) if step is graph.no_return else row
