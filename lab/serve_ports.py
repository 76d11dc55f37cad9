"""Finds free ports for the servers of a served lab."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Below those from which the kernel gives each connection its own: a server that is killed keeps its port."""


def free_port() -> int:
    """Return a port on which nobody listens."""
    while True:
        # No seeded chance: each process of a run would choose the same ones.
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
