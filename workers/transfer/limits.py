"""How much of the network the disk transfers may take."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class Bucket:
    """So many bytes a second, spread evenly; for any number of threads."""

    def __init__(self, rate: float) -> None:
        """``rate``: bytes a second, 0 for no limit."""
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0
        """When the next may go, by the monotonic clock."""

    def take(self, count: int) -> float:
        """Take so many bytes and return 0; or take none and return the seconds after which to ask again."""
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
    """What a host may send and receive; bytes a second, 0 for no limit."""

    host: float = 0.0
    each: float = 0.0
    """What it may receive for one server."""
    sending: Bucket = field(init=False)
    receiving: Bucket = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sending", Bucket(self.host))
        object.__setattr__(self, "receiving", Bucket(self.host))

    def of_transfer(self) -> tuple[Bucket, ...]:
        """What the copy of one server's disks has to take from, begun anew."""
        return (self.receiving, Bucket(self.each))
