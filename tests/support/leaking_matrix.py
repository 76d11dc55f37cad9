"""The crash matrix over a graph that has a step which nobody told it of, and whose undo does nothing; a program."""

from __future__ import annotations

import dataclasses
import sys
from typing import ClassVar

from droveway.flows import registry
from droveway.flows.step import Context
from droveway.flows.steps.ports import ReservePorts
from droveway.lab import matrix


class BindAnew(ReservePorts):
    """Binds the ports on the destination, and leaves the bindings there."""

    title: ClassVar[str] = "bind_anew"

    def undo(self, ctx: Context) -> None:
        """Forget them."""


def main() -> int:
    """Run the matrix with the step in the graph of resize, in the place of the one that it stands for."""
    graph = registry.GRAPHS["resize", 1]
    tried = tuple(BindAnew if step is ReservePorts else step for step in graph.tried)
    registry.GRAPHS["resize", 1] = dataclasses.replace(graph, tried=tried)
    return matrix.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
