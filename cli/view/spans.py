"""Reads numbers, spans of time and moments as operators type them."""

from __future__ import annotations

import argparse
import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Final

UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
LONGEST: Final = 365 * 86400
"""The longest span that is accepted, in seconds."""


MOST: Final = 10**9
"""The largest number that is accepted where nothing else bounds it; every database has room for it."""

_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_SPAN: Final = re.compile(r"(\d+) ?(s|m|min|h|d)?")


def number(what: str, least: int, most: int = MOST, *, rest: str = "") -> Callable[[str], int]:
    """Return what reads a whole number from ``least`` to ``most``.

    Its error says that the text is no ``what`` and which numbers are, and ends with ``rest``.
    """

    def read(text: str) -> int:
        if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is no {what}: give {least} to {most}{rest}")
        return int(text)

    return read


def seconds(text: str) -> int:
    """Return the seconds of a span of time such as 90, 90s, 30min, 24h or 2d."""
    match = _SPAN.fullmatch(text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text} is no time: write 90s, 30min, 24h or 2d")
    span = int(match[1]) * UNITS[match[2] or "s"]
    if span > LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is more than a year: write at most 365d")
    return span


def seconds_or_none(text: str) -> int:
    """Return the seconds of a span of time; 0 for the text ``0``, which means no time at all. It never returns None."""
    return 0 if text == "0" else seconds(text)


def timeout(text: str) -> float:
    """Return a number of seconds, with or without a fraction, to wait at most."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds: give 0 to {LONGEST}")
    return found


def moment(text: str) -> dt.datetime | dt.timedelta:
    """Read a date, with or without a time, as a moment (UTC, without a zone); read an age such as 2h as a timedelta."""
    if _SPAN.fullmatch(text):
        return dt.timedelta(seconds=seconds(text))
    try:
        found = dt.datetime.fromisoformat(text)
        return found.astimezone(dt.UTC).replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text} is no moment: write how long ago it was, such as 2h or 3d, or its date, such as 2026-11-30 or "
            "2026-11-30T09:31Z (UTC)"
        ) from None
