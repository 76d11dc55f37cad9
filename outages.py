"""Logs what a daemon meets again and again, without filling the log.

That is a service that does not answer, a record that the daemon refuses, or a stranger that it turns away. Each is
logged once, or once a minute, however often the daemon meets it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

MOST_LOGGED: Final = 1000
"""How many refused things are remembered as logged; beyond that the oldest is forgotten, and logged again if met."""

AGAIN: Final = 60.0
"""Seconds between two lines on the same outage, and between two of the same complaint."""

LONGEST: Final = 400
"""How many characters of a complaint are logged: some of it may be a stranger's words."""


class Outage:
    """One service or database that one loop needs, and that may be away."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """Take ``what`` as the beginning of each line: who waits, and for what."""
        self._log = log
        self._what = what
        self._said: float | None = None

    def note(self, why: object) -> None:
        """Log that it is away: at once, and then once a minute."""
        if self._said is None or time.monotonic() - self._said >= AGAIN:
            self._said = time.monotonic()
            self._log.warning("%s: %s", self._what, " ".join(str(why).split()))

    def over(self) -> None:
        """Log that it answers again, if it was away."""
        if self._said is not None:
            self._said = None
            self._log.warning("%s no longer: it answers again", self._what)


class Once:
    """Logs each thing once, and again when the reason is another one than last time."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._logged: dict[str, str] = {}

    def log_once(self, what: str, why: object) -> None:
        """Log ``why`` of the thing that ``what`` names, unless the last line on it said the same."""
        text = " ".join(str(why).split())
        if self._logged.get(what) == text:
            return
        self._logged[what] = text
        if len(self._logged) > MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._log.log(self._level, "%s: %s", what, text)


class Seldom:
    """Logs each kind of complaint at most once a minute: strangers can cause complaints as often as they like.

    Threads may share it.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        """Take ``what`` as the beginning of each line: who complains."""
        self._log = log
        self._what = what
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log_once(self, kind: str, why: object, *, trace: bool = False) -> None:
        """Log a complaint, unless one of its kind was logged within the last minute.

        In that case the complaint is only counted, and the next line of its kind says how many were counted. Unlike
        `Once.log_once`, this logs the same complaint again after a minute.
        ``kind`` is one of a few names in the code, never a stranger's word. ``trace`` adds the traceback of the
        exception that is being handled.
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
    """Return the words in one line of bounded length, without control characters."""
    text = " ".join(str(words)[: 4 * LONGEST].split())
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
