"""What the proofs could find once they can find today: nothing that they try is lost when the code changes its rooms.

`LIVED` has the names as they were when all of them had run on one product.  A proof that is added is not in it.  One
that is renamed on purpose is renamed there too, in the same commit.
"""

from __future__ import annotations

import lzma
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from proofs.crash import points as crash_points
from proofs.matrix import clouds as matrix_clouds
from support import crash_points as samples
from support.protocol.explore import actions
from support.protocol.state import Budget, State, World, first

from droveway.flows import registry
from droveway.flows.graph import Graph

LIVED: Final = Path(__file__).parents[1] / "data" / "lived"
MUTANTS: Final = Path(__file__).parents[2] / "tools" / "mutants"
NONE: Final = Budget(restores=0, sleeps=0, deaths=0, nova=0)
FAULTS: Final = ("restores", "sleeps", "deaths", "nova", "lost_notes", "failures")


def mutants() -> Iterator[str]:
    """The defects that are planted."""
    for path in MUTANTS.glob("*.yaml"):
        yield from (line[:-1] for line in path.read_text().splitlines() if line.endswith(":") and line[0] not in " #")


def model_actions() -> Iterator[str]:
    """What may happen in the model of the protocol, with one fault of each kind."""
    for shared in (False, True):
        for fault in FAULTS:
            yield from _reached(World(shared=shared, twin=True), first(NONE._replace(**{fault: 1}), shared=shared))


def _reached(world: World, start: State) -> Iterator[str]:
    seen, ahead = {start}, deque([start])
    while ahead:
        for name, after in actions(world, ahead.popleft()):
            yield name
            if after not in seen:
                seen.add(after)
                ahead.append(after)


def crash_matrix() -> Iterator[str]:
    """The single points of every graph in every cloud, with one call and one effect within each step."""
    for cloud in matrix_clouds.CLOUDS:
        alternates = len(list(matrix_clouds.spec(cloud).hosts())) > 2
        for kind in registry.kinds():
            graph = registry.latest(kind)
            for point in crash_points.singles(graph, _gaps(graph), alternates=alternates):
                yield f"{cloud} {point}"


def _gaps(graph: Graph) -> crash_points.Gaps:
    within = ("posted", "call.1", "effect.source.1", "effect.destination.1")
    ways = [(way, step) for way in crash_points.paths(graph) for step in crash_points.atoms(graph, way)]
    return {each: within for each in ways if (graph.kind, each[0]) not in samples.SILENT}


@pytest.mark.parametrize("proofs", [mutants, model_actions, crash_matrix])
def test_every_proof_of_before_is_there(proofs: Callable[[], Iterator[str]]) -> None:
    lived = set(lzma.decompress((LIVED / f"{proofs.__name__}.xz").read_bytes()).decode().splitlines())
    assert len(lived) > 200
    assert sorted(lived - set(proofs())) == []
