"""Tables for people: columns side by side, several lines in a cell where it has them.

cliff's own formatter looks up the width of each character, which takes longer than a listing may.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters import base

from droveway.cli.view import marks
from droveway.printable import printable


class TableFormatter(base.ListFormatter, base.SingleFormatter):
    """Prints aligned columns under their names; numbers to the right."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """No options."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,  # noqa: ARG002 - cliff's signature
    ) -> None:
        """A line a row, below a line of names."""
        rows = [[_lines(value) for value in row] for row in data]
        right = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(column_names))]
        _write(stdout, [[[name] for name in column_names], *rows], right)

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,  # noqa: ARG002 - cliff's signature
    ) -> None:
        """A line a field."""
        _write(
            stdout, [[[name], _lines(value)] for name, value in zip(column_names, data, strict=True)], [False, False]
        )


def _lines(value: Any) -> list[str]:
    # Only a column makes lines of its own; what came from a row or a host stays in the one that it is in.
    return value.human_readable().split("\n") if isinstance(value, FormattableColumn) else [printable(str(value))]


def _is_number(lines: list[str]) -> bool:
    return len(lines) == 1 and lines[0].isdecimal()


def _write(stdout: TextIO, rows: Sequence[Sequence[list[str]]], right: Sequence[bool]) -> None:
    widths = [max(marks.width(line) for row in rows for line in row[index]) for index in range(len(right))]
    for row in rows:
        for number in range(max(map(len, row))):
            cells = [lines[number] if number < len(lines) else "" for lines in row]
            placed = [
                _padded(cell, width, to_right=to_right)
                for cell, width, to_right in zip(cells, widths, right, strict=True)
            ]
            stdout.write("  ".join(placed).rstrip() + "\n")


def _padded(cell: str, width: int, *, to_right: bool) -> str:
    room = " " * (width - marks.width(cell))
    return room + cell if to_right else cell + room
