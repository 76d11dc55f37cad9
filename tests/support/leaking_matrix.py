"""The crash matrix over a graph that has a step which nobody told it of, and which leaks; a program.

Its first argument says when: when it is undone, or when it is done again.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Final

from proofs.matrix import command as matrix

from droveway.flows import registry
from droveway.flows.run import Context
from droveway.flows.steps.ports import ReservePorts

ELSEWHERE: Final = "host3"


class BindAnew(ReservePorts):
    """Binds the ports on the destination, and leaves the bindings there."""

    def undo(self, ctx: Context) -> None:
        """Forget them."""


class BindTwice(ReservePorts):
    """Binds the ports on the destination, and on another host too when they are bound there already."""

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One binding a port, or two."""
        host = self.new_host(ctx)
        bound = [port.id for port in ctx.run.cloud.network.ports(ctx.move.server) if host in port.bindings]
        for port in bound:
            ctx.run.cloud.network.ensure_binding(port, ELSEWHERE, {})
        return super().perform(ctx)


LEAKING: Final = {"undone": BindAnew, "again": BindTwice}


def main() -> int:
    """Run the matrix with the step in the graph of resize, in the place of the one that it stands for."""
    leaking = LEAKING[sys.argv[1]]
    graph = registry.GRAPHS["resize", 1]
    tried = tuple(leaking if step is ReservePorts else step for step in graph.tried)
    registry.GRAPHS["resize", 1] = dataclasses.replace(graph, tried=tried)
    return matrix.main(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
