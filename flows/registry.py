"""Finds graphs by kind and version: a flow is resumed only by the version that it began with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from droveway.errors import NotFound
from droveway.flows import (
    confirm,
    cross_cell_confirm,
    cross_cell_resize,
    cross_cell_revert,
    cross_cell_revert_elsewhere,
    cross_cell_unshelve,
    delete,
    resize,
    revert,
    shelve,
    unshelve,
)
from droveway.flows.graph import Graph
from droveway.persistence.journal.moves import FlowRef

if TYPE_CHECKING:
    from droveway.flows.step import Step

_OPERATIONS: Final = (
    *(resize, confirm, revert, delete),
    *(cross_cell_resize, cross_cell_confirm, cross_cell_revert, cross_cell_revert_elsewhere),
    *(shelve, unshelve, cross_cell_unshelve),
)

GRAPHS: Final[dict[tuple[str, int], Graph]] = {
    (graph.kind, graph.version): graph for operation in _OPERATIONS for graph in operation.GRAPHS
}


def graph(kind: str, version: int) -> Graph:
    """Return the graph; raises NotFound for one that this release does not know."""
    found = GRAPHS.get((kind, version))
    if found is None:
        raise NotFound(
            f"this release does not know flow {kind}@{version}: run a conductor of the release that began it"
        )
    return found


def latest(kind: str) -> Graph:
    """Return the newest graph of a kind; raises NotFound, which names the kinds."""
    found = versions(kind)
    if not found:
        raise NotFound(f"there is no kind of flow {kind}: the kinds are {', '.join(kinds())}")
    return found[0]


def versions(kind: str) -> list[Graph]:
    """Return the graphs of a kind, the newest first."""
    return sorted((each for each in GRAPHS.values() if each.kind == kind), key=lambda each: -each.version)


def kinds() -> list[str]:
    """Return every kind, in the order of the registry."""
    return list(dict.fromkeys(kind for kind, _version in GRAPHS))


def step(kind: str, name: str) -> type[Step] | None:
    """Find the step of this name in the newest graph of the kind that has it; None where no version has it."""
    found = (each.by_name.get(name) for each in versions(kind))
    return next((each for each in found if each is not None), None)


def reference(kind: str) -> FlowRef:
    """Return kind, version and digest of the graph that a new flow of this kind runs by."""
    return latest(kind).reference()


def past_no_return(kind: str, version: int) -> frozenset[str]:
    """Return the names of the step that is the point of no return and of all steps after it."""
    found = graph(kind, version)
    names = found.names()
    return frozenset(names[names.index(found.no_return.step_name()) :])
