"""This machine's clock, held against another's: certificates, tokens and what operators read rest on both agreeing."""

from __future__ import annotations

import datetime as dt
from typing import Final

from droveway.errors import Refused

LARGEST_SKEW: Final = dt.timedelta(minutes=5)


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
