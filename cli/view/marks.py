"""Gives each state of a move a mark and a colour; a colour is never the only sign, and is used on terminals only."""

from __future__ import annotations

import os
import re
from typing import Any, Final, TextIO

from droveway.cli.view.columns import Pieces

DONE: Final = "✓"
FAILED: Final = "✗"
RUNNING: Final = "▸"
OWED: Final = "·"
_WAITING: Final = "?"
_GREEN: Final = "32"
_YELLOW: Final = "33"
_RED: Final = "31"
_STATES: Final = {
    "done": (DONE, _GREEN),
    "reverted": ("↶", _GREEN),
    "cancelled": ("↶", _GREEN),
    "failed": (FAILED, _RED),
    "needs-operator": ("!", _RED),
    "verifying": (_WAITING, _YELLOW),
    "undoing": (RUNNING, _YELLOW),
    "queued": ("·", ""),
}
_ESCAPE: Final = re.compile("\x1b\\[[0-9;]*m")


class Marked(Pieces):
    """A move's state as a terminal shows it."""

    def __init__(self, value: str, *, coloured: bool) -> None:
        super().__init__(value)
        self._coloured = coloured

    def pieces(self) -> list[str]:
        """Return the state as `✓ done`."""
        return [state(str(self._value), coloured=self._coloured)]


def state(name: str, *, coloured: bool) -> str:
    """Return the state with its mark before it."""
    mark, colour = _STATES.get(name, (RUNNING, ""))
    text = f"{mark} {name}"
    return f"\x1b[{colour}m{text}\x1b[0m" if coloured and colour else text


def is_terminal(out: TextIO | Any) -> bool:
    """Say whether the output is a terminal that can move its cursor."""
    return bool(out.isatty()) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def wants_colour(out: TextIO | Any) -> bool:
    """Say whether the output is a terminal as `is_terminal` has it, and NO_COLOR is not set."""
    return is_terminal(out) and not os.environ.get("NO_COLOR")


def width(line: str) -> int:
    """Return how many columns the line takes; codes of colours take none."""
    return len(_ESCAPE.sub("", line)) if "\x1b" in line else len(line)
