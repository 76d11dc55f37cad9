"""Finds free ports for the servers of a served lab."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Ports that the kernel gives to no outgoing connection; so a server that was killed can listen at its port again."""


def free_port() -> int:
    """Return a port on which nobody listens."""
    while True:
        # Seeded randomness would give each process of a test run the same ports.
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
