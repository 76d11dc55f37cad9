"""Defines values that people read in another form than programs."""

from __future__ import annotations

import abc
import datetime as dt
import itertools
from typing import Any, Final

from cliff import columns

from droveway.printable import SHORT, printable

NONE: Final = "-"
"""The text for a server that is on no host."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WIDEST: Final = 60
_STEP: Final = 1024
_FINE: Final = 10


class Pieces(columns.FormattableColumn[Any], abc.ABC):
    """A value that a table breaks nowhere but between its pieces, however narrow the table has to be."""

    @abc.abstractmethod
    def pieces(self) -> list[str]:
        """Return the parts, each of which stays in one line."""

    def human_readable(self) -> str:
        """Return the pieces as one text."""
        return " ".join(self.pieces())


class Time(Pieces):
    """A moment (UTC, without a zone): in ISO format for programs, for people also how long ago it was."""

    def pieces(self) -> list[str]:
        """Return the date, the time of day, and how long ago that was."""
        return [] if self._value is None else [*f"{utc(self._value)},".split(" "), relative(self._value)]

    def machine_readable(self) -> str | None:
        """Return the moment as `2026-11-21T15:43:06Z`."""
        return None if self._value is None else f"{self._value.isoformat(timespec='seconds')}Z"


class Took(columns.FormattableColumn[Any]):
    """How long something ran: seconds for programs, `1.4 s` for people; empty while it still runs."""

    def human_readable(self) -> str:
        """Return the span in its two largest units."""
        return "" if self._value is None else span(self._value)


class Short(Pieces):
    """An id, of which people see the first letters."""

    def pieces(self) -> list[str]:
        """Return the letters that tables show."""
        return [printable(self._value[:SHORT])]


class Blank(columns.FormattableColumn[Any]):
    """A value that may be missing: null for programs, nothing for people."""

    def human_readable(self) -> str:
        """Return the value as text."""
        return "" if self._value is None else printable(str(self._value))


class Dashed(Blank):
    """A name that may be missing: null for programs, a dash for people."""

    def human_readable(self) -> str:
        """Return the name, or the dash."""
        return super().human_readable() or NONE


class Joined(columns.FormattableColumn[Any]):
    """A list: unchanged for programs, lines of text for people."""

    def human_readable(self) -> str:
        """Return one line for each item; a record is shown by its values."""
        return "\n".join(_line(item) for item in self._value)


class Facts(columns.FormattableColumn[Any]):
    """A record: unchanged for programs, `key=value` for people."""

    def human_readable(self) -> str:
        """Return the facts that are set, cut to the room of a table."""
        text = printable(", ".join(f"{key}={_fact(value)}" for key, value in (self._value or {}).items()))
        return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _fact(value: Any) -> str:
    """Write a value without the quotes of a programming language, also one inside of another."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_fact(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_fact, value)) + "]"
    return str(value)


def utc(moment: dt.datetime) -> str:
    """Return the moment (UTC, without a zone) as `2026-11-30 09:31:07Z`."""
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def dated(moment: dt.datetime) -> str:
    """Return the moment (UTC, without a zone) and how long ago it was, as `2026-11-30 09:31:07Z, 2 h ago`."""
    return f"{utc(moment)}, {relative(moment)}"


def relative(moment: dt.datetime) -> str:
    """Return how long ago the moment (UTC, without a zone) was, or in how long it comes."""
    seconds = (dt.datetime.now(dt.UTC).replace(tzinfo=None) - moment).total_seconds()
    span = duration(abs(seconds))
    return f"{span} ago" if seconds >= 0 else f"in {span}"


def duration(seconds: float) -> str:
    """Return a span of time in its largest unit, as `3 min`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def span(seconds: float) -> str:
    """Return a span of time in its two largest units, as `2 min 10 s`; below ten seconds with a tenth."""
    if seconds < _FINE:
        return f"{seconds:.1f} s"
    for (large, name), (small, below) in itertools.pairwise(_UNITS):
        if seconds >= large:
            rest = int(seconds % large // small)
            return f"{int(seconds // large)} {name}" + (f" {rest} {below}" if rest else "")
    return f"{int(seconds)} s"


def _line(item: Any) -> str:
    text = "  ".join(str(value) for value in item.values()) if isinstance(item, dict) else str(item)
    return printable(text)


def size(count: int) -> str:
    """Return a number of bytes in a unit that people read, as `12.4 GiB`."""
    number, unit = _scaled(count, count)
    return f"{number} {unit}"


def part(done: int, total: int) -> str:
    """Return a part of a number of bytes in the unit of the whole, as `7.9 of 12.4 GiB`."""
    whole, unit = _scaled(total, total)
    return f"{_scaled(done, total)[0]} of {whole} {unit}"


def _scaled(count: int, largest: int) -> tuple[str, str]:
    size_of_unit, unit = 1, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if largest < size_of_unit * _STEP:
            break
        size_of_unit, unit = size_of_unit * _STEP, larger
    return (str(count) if unit == "B" else f"{count / size_of_unit:.1f}"), unit
