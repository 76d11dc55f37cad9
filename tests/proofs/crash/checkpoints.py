"""Where the points of one flow may begin: snapshots of a lab whose flow was paused every few steps, and went on.

A point begins at the last of them that lies at least one whole step before it, so that the steps just before it are
run by the process that it hits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proofs.crash import points as crash_points
from proofs.crash.points import Path, Point
from proofs.crash.script import Script
from support.labs.snapshot import Snapshot

from droveway.flows.graph import Graph

STRIDE: Final = 2
"""Steps between two checkpoints."""


@dataclass(frozen=True)
class Checkpoint:
    """A flow that rests, paused, once ``passed`` of its path's steps were stored; none: it was not asked for yet."""

    snapshot: Snapshot
    passed: int


class Checkpoints:
    """The checkpoints of one kind of flow on one path."""

    def __init__(self, graph: Graph, path: Path, first: Snapshot) -> None:
        self._graph = graph
        self._path = path
        self._order = crash_points.atoms(graph, path)
        if path != "execute":
            self._order.reverse()
        self._found = [Checkpoint(first, 0)]

    def make(self, pause: Callable[[Checkpoint, Script], Snapshot]) -> None:
        """Make them all; ``pause`` runs the flow on from one of them until the script has paused it."""
        ends = self._graph.no_return.step_name()
        last = len(self._order) if self._path != "execute" else self._order.index(ends)
        for passed in range(STRIDE, last, STRIDE):
            spot = crash_points.point(self._graph.kind, self._path, self._order[passed - 1], "pause", "after").first
            start = self._found[-1]
            script = self.script((spot,), start)
            self._found.append(Checkpoint(pause(start, script), passed))

    def before(self, point: Point) -> Checkpoint:
        """Where the point begins: in a bad world before the flow was asked for."""
        if point.first.effect == "bad":
            return self._found[0]
        step = point.first.step
        place = self._order.index(step) if step in self._order else len(self._order)
        return [each for each in self._found if each.passed < place or not each.passed][-1]

    def script(self, spots: tuple[crash_points.Spot, ...], start: Checkpoint) -> Script:
        """A script for a flow that goes on from there."""
        script = Script(self._path, spots, self._graph.no_return.step_name())
        script.turned_back(already=self._path != "execute" and start.passed > 0)
        return script
