"""Prints values for programs that read lines: each value in one line, without control characters."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters import commaseparated, value

from droveway.printable import printable


class Value(value.ValueFormatter):
    """Prints values one after another, without their names."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write one line for each row."""
        super().emit_list(column_names, [_plain(row) for row in data], stdout, parsed_args)

    def emit_one(
        self, column_names: Sequence[str], data: Sequence[Any], stdout: TextIO, parsed_args: argparse.Namespace
    ) -> None:
        """Write one line for each field."""
        super().emit_one(column_names, _plain(data), stdout, parsed_args)


class Csv(commaseparated.CSVLister):
    """Prints values separated by commas, below a line of names."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write one line for each row."""
        super().emit_list(column_names, [_plain(row) for row in data], stdout, parsed_args)


def _plain(row: Sequence[Any]) -> list[Any]:
    values = [each.machine_readable() if isinstance(each, FormattableColumn) else each for each in row]
    return [printable(each) if isinstance(each, str) else each for each in values]
