"""Compares clocks.

This machine's clock is compared with another machine's, since certificates, tokens and the times that operators read
need both to agree. The database's clock is compared with this process's monotonic clock. Droveway deletes kept disks
when the database's clock reaches a date. If somebody sets that clock forward, the disks must not be deleted too early.
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
"""A clock has jumped when it advanced more than this many seconds too far, or too little, between two readings."""

DRIFT: Final = 0.001
"""The share by which a clock may run too fast or too slow without a jump: twice the highest rate at which NTP slews."""

MOST_JUMPS: Final = 100
"""The largest number of jumps that are kept apart. When there are more, one jump replaces all of them."""


def now() -> dt.datetime:
    """Return this machine's time as databases return theirs: UTC, without a zone."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def require(theirs: dt.datetime, whose: str) -> None:
    """Raise `droveway.errors.Refused` when this machine's clock is off by more than `LARGEST_SKEW`.

    ``theirs`` is the other clock's time in UTC, without a zone, read just now.
    """
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
    """A jump of a clock by so many ``seconds``: forward when positive, back when negative.

    ``until`` is about the time that the clock showed right after the jump. The jump counts for a wait that began before
    this time (`Steady.passed`). It does not count for a wait that began later, since the beginning of that wait was
    read from the clock after the jump. ``until`` is not exact, but an error makes a wait longer, never shorter.
    """

    seconds: float
    until: dt.datetime


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What the clock showed, and this process's monotonic time before and after it was asked."""

    shown: dt.datetime
    asked: float
    answered: float


class Steady:
    """Follows a clock that others set, by comparing it with this process's monotonic clock.

    So a wait does not end early because somebody set the clock forward. A process notices only the jumps between two of
    its own readings.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jumps: list[_Jump] = []
        self._last: _Reading | None = None

    def observe(self, shown: dt.datetime, asked: float) -> None:
        """Note a reading of the clock; ``asked`` is this process's monotonic time right before the clock was read."""
        reading = _Reading(shown, asked, time.monotonic())
        with self._lock:
            last, self._last = self._last, reading
            if last is not None:
                self._compare(last, reading)

    def passed(self, deadline: dt.datetime, since: dt.datetime, now: dt.datetime) -> bool:
        """Say whether a wait that began at ``since`` has reached its ``deadline``; all three are times of the clock.

        Jumps forward since then do not shorten the wait.
        """
        with self._lock:
            ahead = sum(jump.seconds for jump in self._jumps if since < jump.until)
        return deadline <= now - dt.timedelta(seconds=max(0.0, ahead))

    def _compare(self, last: _Reading, reading: _Reading) -> None:
        # At most and at least so many seconds passed between the two moments at which the clock was read.
        most, least = reading.answered - last.asked, reading.asked - last.answered
        told, slack = (reading.shown - last.shown).total_seconds(), JUMP + DRIFT * most
        if told > most + slack:
            # The jump also counts for a wait that began after the jump and before this reading. That wait lasts longer
            # than it has to, and never ends too early.
            self._note(_Jump(told - most, reading.shown))
        elif told < least - slack:
            # The clock showed this right after the jump, if it jumped right after the last reading, else a later time.
            self._note(_Jump(told - least, reading.shown - dt.timedelta(seconds=most)))

    def _note(self, jump: _Jump) -> None:
        way = "ahead" if jump.seconds > 0 else "back"
        LOG.warning(
            "The database's clock jumped %s by %.0f s: let the database's machine follow NTP. Droveway still deletes "
            "nothing before its time",
            way,
            abs(jump.seconds),
        )
        self._jumps.append(jump)
        if len(self._jumps) > MOST_JUMPS:
            # One jump replaces all of them, so that the list stays short. Without this, each wait is delayed by the sum
            # of the jumps since that wait began: the last jump, the last two jumps, and so on. The new jump has the
            # largest of these sums. So it delays every wait at least as long, and no wait ends too early.
            sums = itertools.accumulate(jump.seconds for jump in reversed(self._jumps))
            self._jumps = [_Jump(max(0.0, *sums), max(jump.until for jump in self._jumps))]
