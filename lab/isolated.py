"""The transfer port of a host in an isolated cell, which a lab's other cells do not reach."""

from __future__ import annotations

import socket

from droveway.errors import StepError
from droveway.workers.transfer.endpoints import UnixEndpoint


class IsolatedEndpoint(UnixEndpoint):
    """A socket at which only the workers of one cell are served: a lab's stand-in for a network of its own."""

    def __init__(self, path: str, cell: str, inside: frozenset[str]) -> None:
        super().__init__(path)
        self._cell = cell
        self._inside = inside

    def vouches(self, stream: socket.socket, peer: str) -> bool:
        """Raise StepError for a peer of another cell, which in an installation would not even be connected."""
        if peer not in self._inside:
            raise StepError(isolation(self._cell, peer), code="certificate")
        return super().vouches(stream, peer)


def isolation(cell: str, peer: str) -> str:
    """The sentence that tells a host of another cell that it reaches no disks of this one."""
    return f"cell {cell} is isolated: {peer}, which is in another cell, does not reach its hosts' disks"
