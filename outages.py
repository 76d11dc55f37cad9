"""Servers that are away: what a daemon says while it waits for one."""

from __future__ import annotations

import logging
import time
from typing import Final

AGAIN: Final = 60.0
"""Seconds between two lines on the same outage."""


class Outage:
    """One server that one loop needs, which may be away."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """``what`` says who waits, and for what."""
        self._log = log
        self._what = what
        self._said: float | None = None

    def note(self, why: object) -> None:
        """It is away; said at once, and then once a minute."""
        if self._said is None or time.monotonic() - self._said >= AGAIN:
            self._said = time.monotonic()
            self._log.warning("%s: %s", self._what, " ".join(str(why).split()))

    def over(self) -> None:
        """It has answered; said when it was away."""
        if self._said is not None:
            self._said = None
            self._log.warning("%s no longer: it answers again", self._what)
