"""How words of strangers and ids are shown: in one line, with nothing in it that a terminal obeys, and short."""

from __future__ import annotations

import re
from typing import Final

SHORT: Final = 8
"""So many leading letters of an id are shown, and mostly are enough to name what has it."""

_OBEYED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, what turns the direction of writing, and halves of characters."""


def printable(text: str) -> str:
    r"""The text with an escape in the place of each such character: a newline is `\x0a`."""
    return _OBEYED.sub(_escaped, text) if _OBEYED.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    code = f"{ord(found[0]):02x}"
    return f"\\x{code}" if len(code) == len("0a") else f"\\u{code}"
