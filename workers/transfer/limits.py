"""Limits how much of the network the disk transfers take."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class Bucket:
    """Lets so many bytes pass in a second, spread evenly; any number of threads may share it."""

    def __init__(self, rate: float) -> None:
        """Let ``rate`` bytes pass in a second; 0 for no limit."""
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0
        """When the next bytes may pass, by the monotonic clock."""

    def take(self, count: int) -> float:
        """Take ``count`` bytes and return 0; or take none and return the seconds after which to ask again."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            if now < self._free:
                return self._free - now
            self._free = now + count / self._rate
            return 0.0


@dataclass(frozen=True)
class Limits:
    """How much a host may send and receive; bytes a second, 0 for no limit."""

    host: float = 0.0
    each: float = 0.0
    """How much it may receive for one server."""
    sending: Bucket = field(init=False)
    receiving: Bucket = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sending", Bucket(self.host))
        object.__setattr__(self, "receiving", Bucket(self.host))

    def of_transfer(self) -> tuple[Bucket, ...]:
        """Return the buckets that the copy of one server's disks takes from: the host's, and a new one of this copy."""
        return (self.receiving, Bucket(self.each))
