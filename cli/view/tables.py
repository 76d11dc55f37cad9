"""Prints tables for people, whose cells may have several lines.

Cliff's own formatter looks up the width of each character, which takes too long for a listing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters import base

from droveway.cli.view import marks
from droveway.cli.view.columns import Pieces
from droveway.printable import printable

_GAP: Final = "  "
_NARROWEST: Final = 8
"""The width of a column below which no word is broken to make a table fit."""
_TIED: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line may be broken, which textwrap respects."""
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Cell(NamedTuple):
    """The lines of one cell."""

    lines: list[str]
    whole: bool = False
    """Whether its words may not be broken."""


class TableFormatter(base.ListFormatter, base.SingleFormatter):
    """Prints aligned columns under their names, numbers to the right."""

    left_out: Sequence[str] = ()
    """The columns of the last list that were left out, since with them it could not fit."""
    room: int = 0
    """How many columns of the terminal the last list could take; 0 for any number."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add none: `droveway.cli.base` has the options, so that only tables need the import of this module."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write one line for each row, below a line of names.

        While the table cannot fit, columns that ``parsed_args.spare`` names are left out, the first one first.
        """
        rows = [[Cell([name], whole=True) for name in column_names], *([_cell(value) for value in row] for row in data)]
        self.room = _room(stdout, parsed_args)
        names, self.left_out = list(column_names), []
        for name in (each for each in parsed_args.spare if each in names):
            if not self.room or _least(rows) <= self.room:
                break
            at = names.index(name)
            names.remove(name)
            self.left_out.append(name)
            rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        right = [len(rows) > 1 and all(_is_number(row[index]) for row in rows[1:]) for index in range(len(names))]
        _write(stdout, rows, right, self.room)

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write one line for each field."""
        rows = [[Cell([name], whole=True), _cell(value)] for name, value in zip(column_names, data, strict=True)]
        _write(stdout, rows, [False, False], _room(stdout, parsed_args))


def _room(stdout: TextIO, parsed_args: argparse.Namespace) -> int:
    """Return how many columns a table may take; 0 for any number."""
    if parsed_args.max_width is not None:
        return int(parsed_args.max_width)
    return shutil.get_terminal_size().columns if parsed_args.fit_width or stdout.isatty() else 0


def _cell(value: Any) -> Cell:
    if isinstance(value, Pieces):
        return Cell([" ".join(piece.replace(" ", _TIED) for piece in value.pieces())], whole=True)
    # Only a FormattableColumn may make several lines. A text from a row or a host stays in one line.
    lines = value.human_readable().split("\n") if isinstance(value, FormattableColumn) else [printable(str(value))]
    return Cell(lines)


def _is_number(cell: Cell) -> bool:
    return len(cell.lines) == 1 and cell.lines[0].isdecimal()


def _write(stdout: TextIO, rows: Sequence[Sequence[Cell]], right: Sequence[bool], room: int) -> None:
    columns = list(zip(*rows, strict=True))
    widths = [max(marks.width(line) for cell in column for line in cell.lines) for column in columns]
    taken = len(_GAP) * (len(columns) - 1)
    if room and sum(widths) + taken > room:
        widths = _narrowed(columns, widths, room - taken)
    for row in rows:
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, wrapped))):
            texts = [lines[number] if number < len(lines) else "" for lines in wrapped]
            placed = [
                _padded(text, width, to_right=to_right)
                for text, width, to_right in zip(texts, widths, right, strict=True)
            ]
            stdout.write(_GAP.join(placed).rstrip().replace(_TIED, " ") + "\n")


def _least(rows: Sequence[Sequence[Cell]]) -> int:
    """Return how many columns of the terminal the table takes when it is as narrow as it gets."""
    _, broken = _limits(list(zip(*rows, strict=True)))
    return sum(broken) + len(_GAP) * (len(broken) - 1)


def _limits(columns: Sequence[Sequence[Cell]]) -> tuple[list[int], list[int]]:
    """Return the least width of each column with whole words, and with words broken."""
    whole = [max(marks.width(word) for cell in column for word in _words(cell)) for column in columns]
    return whole, [min(width, _unbreakable(column)) for width, column in zip(whole, columns, strict=True)]


def _narrowed(columns: Sequence[Sequence[Cell]], widths: Sequence[int], room: int) -> list[int]:
    """Return the widths with which the columns fit, the widest ones narrowed first.

    Words are broken only where that makes the table fit, and ids, times and names of columns not even then. A table
    that cannot be made to fit is as narrow as it gets with whole words.
    """
    whole, broken = _limits(columns)
    narrowed, least = list(widths), broken if sum(broken) <= room < sum(whole) else whole
    while sum(narrowed) > room and narrowed != least:
        shrinking = [index for index, width in enumerate(narrowed) if width > least[index]]
        narrowed[max(shrinking, key=narrowed.__getitem__)] -= 1
    return narrowed


def _unbreakable(column: Sequence[Cell]) -> int:
    """Return the least width of the column: that of its longest unbreakable word, or `_NARROWEST` if that is more."""
    kept = [word for cell in column for word in _words(cell) if cell.whole or _ID.search(word)]
    return max([_NARROWEST, *map(marks.width, kept)])


def _words(cell: Cell) -> list[str]:
    return [word for line in cell.lines for word in line.split(" ")]


def _wrapped(cell: Cell, width: int) -> list[str]:
    wrapped: list[str] = []
    for line in cell.lines:
        fits = marks.width(line) <= width
        wrapped += [line] if fits else textwrap.wrap(line, width, break_on_hyphens=False, expand_tabs=False)
    return wrapped


def _padded(cell: str, width: int, *, to_right: bool) -> str:
    room = " " * (width - marks.width(cell))
    return room + cell if to_right else cell + room
