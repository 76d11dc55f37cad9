"""Issues permissions to start a guest.  A permission is good for a short time after the worker issued it.

Before the conductor uses a permission, it reads the server's rows and asks the other host.  What it found is true only
for a while.  A worker that slept may wake when another host already runs the server, for example because Nova has
evacuated it.  ZooKeeper may show nothing of that, so that the fence alone would let the worker start the guest.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from droveway.errors import DestinationFault
from droveway.wire.values import PERMISSION_VOID


class PermissionVoid(DestinationFault):
    """The guest was not started, because the permission to start it is no longer good."""

    code = PERMISSION_VOID


class Permissions:
    """The permissions that this process of the worker has issued; a restart forgets them, which ends them all."""

    def __init__(self, seconds: float, now: Callable[[], float] | None = None) -> None:
        """Make permissions good for ``seconds``; ``now`` is a clock that also counts while the machine sleeps."""
        self._seconds = seconds
        self._now = now or _now
        self._ready: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def ready(self, server: str) -> str:
        """Issue a permission to start the server's guest, good from now on, and return the permission's name.

        The action `prepare_start` calls this, unless the guest belongs to another move that has not ended.
        """
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
            f"the permission to start the guest of server {server} on {host} is no longer good, so the guest was not "
            f"started: a permission ends {self._seconds:g} s after it was issued, or when the worker restarts",
            code=PERMISSION_VOID,
            host=host,
        )


def _now() -> float:
    """Return the seconds of a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
