"""What a daemon says of servers that are away, of records that it refuses and of strangers that it turns away.

Once, or once a minute, however often it meets them.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

MOST_LOGGED: Final = 1000
"""So many refused things are remembered as told; of more than that, the oldest would be told again."""

AGAIN: Final = 60.0
"""Seconds between two lines on the same outage, and between two of the same complaint."""

LONGEST: Final = 400
"""So much of a complaint is said, in characters: some of it may be a stranger's words."""


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
        self._logged: dict[str, str] = {}

    def log_once(self, what: str, why: object) -> None:
        """``what`` names the thing; it may be met again at each look."""
        text = " ".join(str(why).split())
        if self._logged.get(what) == text:
            return
        self._logged[what] = text
        if len(self._logged) > MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._log.log(self._level, "%s: %s", what, text)


class Seldom:
    """Complaints that strangers cause as often as they like: each kind is said once a minute; for any thread."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """``what`` says who complains."""
        self._log = log
        self._what = what
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log_once(self, kind: str, why: object, *, trace: bool = False) -> None:
        """``kind`` is one of a few, never a stranger's word; of one kind those in between are counted.

        ``trace``: with the exception that is being handled.
        """
        now = time.monotonic()
        with self._lock:
            said = self._said.get(kind)
            if said is not None and now - said < AGAIN:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._said[kind] = now
            more = self._left_out.pop(kind, 0)
        since = f" (and {more} more like it since the last line)" if more else ""
        self._log.warning("%s: %s%s", self._what, _harmless(why), since, exc_info=trace)


def _harmless(words: object) -> str:
    """In one line of bounded length, with nothing in it that a terminal would obey."""
    text = " ".join(str(words)[: 4 * LONGEST].split())
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
