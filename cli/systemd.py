"""Tells systemd that a service is ready, is alive, or stops (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"

_MICROSECONDS: Final = 1_000_000


def notify(state: str) -> None:
    """Send the state to the service manager; nothing is sent when none waits for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        # A name that begins with @ is in the abstract namespace.
        manager.connect("\0" + address[1:] if address.startswith("@") else address)
        manager.sendall(state.encode())


def watchdog() -> float | None:
    """Return the seconds within which the manager wants to hear from the service; None when it does not."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    if not asked or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(asked) / _MICROSECONDS
