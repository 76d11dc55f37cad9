"""Clocks held against each other.

This machine's against another's, since certificates, tokens and what operators read rest on both agreeing; and the
database's against one that nobody sets, since what is deleted at a date has to last until then.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import logging
import threading
import time
from typing import Final

from droveway.errors import Refused

LOG = logging.getLogger(__name__)

LARGEST_SKEW: Final = dt.timedelta(minutes=5)

JUMP: Final = 2.0
"""Seconds that a clock may be off from what passed and is still said to follow it."""

DRIFT: Final = 0.001
"""Seconds a second by which a clock may run faster or slower: twice what NTP slews."""


MOST_JUMPS: Final = 100
"""So many jumps are told apart."""


def now() -> dt.datetime:
    """This machine's clock as databases give theirs: UTC, naive."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def require(theirs: dt.datetime, whose: str) -> None:
    """Raise `droveway.errors.Refused` when this machine's clock is off; ``theirs`` is UTC, naive, read just now."""
    skew = now() - theirs
    if abs(skew) > LARGEST_SKEW:
        minutes = abs(skew).total_seconds() / 60
        way = "ahead of" if skew > dt.timedelta() else "behind"
        raise Refused(
            f"this machine's clock is {minutes:.0f} minutes {way} that of {whose}: let both follow NTP (timedatectl "
            "tells whether it does), then start again"
        )


@dataclasses.dataclass(frozen=True)
class _Jump:
    """A clock's jump: what it showed before that is earlier than ``until``."""

    seconds: float
    until: dt.datetime


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What the clock showed between two moments of this process's own."""

    shown: dt.datetime
    asked: float
    answered: float


class Steady:
    """A clock that others set, held against this process's own, which nobody sets: so a jump ends no wait.

    A jump is known to who looked before and after it; a process that starts takes the clock as it finds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jumps: list[_Jump] = []
        self._last: _Reading | None = None

    def observe(self, shown: dt.datetime, asked: float) -> None:
        """The clock showed this; ``asked``: what this process's monotonic clock showed before it was asked."""
        reading = _Reading(shown, asked, time.monotonic())
        with self._lock:
            last, self._last = self._last, reading
            if last is not None:
                self._compare(last, reading)

    def passed(self, deadline: dt.datetime, since: dt.datetime, now: dt.datetime) -> bool:
        """Whether it is so late, ``now``, for what was to wait from ``since`` until the ``deadline`` by that clock."""
        with self._lock:
            ahead = sum(jump.seconds for jump in self._jumps if since < jump.until)
        return deadline <= now - dt.timedelta(seconds=max(0.0, ahead))

    def _compare(self, last: _Reading, reading: _Reading) -> None:
        most, least = reading.answered - last.asked, reading.asked - last.answered
        told, slack = (reading.shown - last.shown).total_seconds(), JUMP + DRIFT * most
        if told > most + slack:
            # What was written since the jump, and looks older, has to wait a little longer.
            self._note(_Jump(told - most, reading.shown))
        elif told < least - slack:
            self._note(_Jump(told - least, reading.shown - dt.timedelta(seconds=most)))

    def _note(self, jump: _Jump) -> None:
        way = "ahead" if jump.seconds > 0 else "back"
        LOG.warning(
            "The database's clock jumped %s by %.0f s; what is deleted at a date is not deleted before its time has "
            "passed: let the database's machine follow NTP",
            way,
            abs(jump.seconds),
        )
        self._jumps.append(jump)
        if len(self._jumps) > MOST_JUMPS:
            # As one that delays no less than any part of them.
            sums = itertools.accumulate(jump.seconds for jump in reversed(self._jumps))
            self._jumps = [_Jump(max(0.0, *sums), max(jump.until for jump in self._jumps))]
