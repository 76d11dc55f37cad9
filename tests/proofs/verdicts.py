"""What a run says that had a defect planted: whether that proves anything, and how it is quoted."""

from __future__ import annotations

import re
import textwrap
from typing import Final

BROKEN: Final = re.compile(
    r"\b(?:Import|ModuleNotFound|Syntax|Indentation|Name|Attribute|Type|UnboundLocal)Error\b"
    r"|the child ended with status|the process was ended by signal"
)
"""What a defect does that was planted badly, or a machine that is too busy: no proof of anything."""

UNREACHED: Final = "the fault never fired"
"""A defect may make a place in a flow that there is not without it: never reached, it says nothing."""

WORDS: Final = 110

_PATH: Final = re.compile(r"(?:/[\w.+-]+){3,}/")
_ID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?\b")


def first_words(text: str) -> str:
    """What is quoted of a trouble: without ids, one line, the last error of a traceback."""
    lines = [line.removeprefix("E ").strip() for line in text.strip().splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:droveway\.\S+|AssertionError|assert)\b", line)]
    told = errors[-1] if text.count("Traceback") and errors else lines[0] if lines else ""
    return textwrap.shorten(_PATH.sub(".../", _ID.sub("ID", told)), WORDS, placeholder=" ...")
