"""Spans of time as operators type them."""

from __future__ import annotations

import argparse
import re
from typing import Final

UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
LONGEST: Final = 365 * 86400
"""Seconds."""


def seconds(text: str) -> int:
    """A span of time as 90, 90s, 30min, 24h or 2d."""
    match = re.fullmatch(r"(\d+) ?(s|m|min|h|d)?", text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text} is no time: write 90s, 30min, 24h or 2d")
    span = int(match[1]) * UNITS[match[2] or "s"]
    if span > LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is more than a year: write at most 365d")
    return span


def seconds_or_none(text: str) -> int:
    """A span of time, or 0 for none."""
    return 0 if text == "0" else seconds(text)
