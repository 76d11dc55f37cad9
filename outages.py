"""What a daemon says of servers that are away and of records that it refuses: once, however often it meets them."""

from __future__ import annotations

import logging
import time
from typing import Final

MOST_TOLD: Final = 1000
"""So many refused things are remembered as told; of more than that, the oldest would be told again."""

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


class Once:
    """Tells of each thing once, until something else is to be told of it."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._told: dict[str, str] = {}

    def tell(self, what: str, why: object) -> None:
        """``what`` names the thing; it may be met again at each look."""
        text = " ".join(str(why).split())
        if self._told.get(what) == text:
            return
        self._told[what] = text
        if len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        self._log.log(self._level, "%s: %s", what, text)
