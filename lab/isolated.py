"""Serves the transfer port of a host in an isolated cell, which the lab's other cells cannot reach."""

from __future__ import annotations

import socket

from droveway.errors import StepError
from droveway.workers.transfer.endpoints import UnixEndpoint


class IsolatedEndpoint(UnixEndpoint):
    """A socket that serves only the workers of one cell; in a lab it stands for a separate network."""

    def __init__(self, path: str, cell: str, inside: frozenset[str]) -> None:
        super().__init__(path)
        self._cell = cell
        self._inside = inside

    def vouches(self, stream: socket.socket, peer: str) -> bool:
        """Raise StepError for a peer of another cell, which in an installation could not connect at all."""
        if peer not in self._inside:
            raise StepError(isolation(self._cell, peer), code="certificate")
        return super().vouches(stream, peer)


def isolation(cell: str, peer: str) -> str:
    """Return why ``peer``, a host of another cell, cannot reach the disks of this cell's hosts."""
    return f"cell {cell} is isolated: {peer}, which is in another cell, does not reach its hosts' disks"
