"""Permissions to start a guest: good for a while from when the worker said that it is ready, and then no more.

Before it grants one, the conductor reads the server's rows and asks the other host.  What it found is no proof for
ever: a worker that slept since may wake when the server is somebody else's, and its fence may not be told yet.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from droveway.errors import DestinationFault
from droveway.wire.values import PERMISSION_VOID


class PermissionVoid(DestinationFault):
    """The guest was not started, since nobody can say any more whether it may be."""

    code = PERMISSION_VOID


class Permissions:
    """What one process of a worker has said that it is ready for; a restart forgets it, and with it all permissions."""

    def __init__(self, seconds: float, now: Callable[[], float] | None = None) -> None:
        """``seconds``: so long is a permission good; ``now``: a clock that also counts while the machine sleeps."""
        self._seconds = seconds
        self._now = now or _now
        self._ready: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def ready(self, server: str) -> str:
        """The name of a permission that may be granted from now on."""
        name, now = uuid.uuid4().hex, self._now()
        with self._lock:
            self._ready = {each: told for each, told in self._ready.items() if now - told[1] < self._seconds}
            self._ready[name] = server, now
        return name

    def require(self, name: str, server: str, host: str) -> None:
        """Raise PermissionVoid unless the permission is for this server and still good."""
        with self._lock:
            known, since = self._ready.get(name, ("", 0.0))
        if known == server and self._now() - since < self._seconds:
            return
        raise PermissionVoid(
            f"the permission to start the guest of server {server} on {host} was not used within {self._seconds:g} s "
            "of the worker's word that it is ready, so the guest was not started",
            code=PERMISSION_VOID,
            host=host,
        )


def _now() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
