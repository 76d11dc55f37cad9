"""Makes ids short and texts from outside harmless: in one line, without characters that control a terminal."""

from __future__ import annotations

import re
from typing import Final

SHORT: Final = 8
"""How many leading letters of an id are shown. They mostly are enough to name the thing in a command."""

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, marks that change the direction of writing, and surrogates.

A terminal obeys the first three. A surrogate is half of a character, which cannot be written as UTF-8.
"""


def printable(text: str) -> str:
    r"""Return the text with an escape in the place of each control character: a newline is `\x0a`."""
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    code = f"{ord(found[0]):02x}"
    return f"\\x{code}" if len(code) == len("0a") else f"\\u{code}"
