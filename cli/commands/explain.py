"""Defines `droveway explain`: what an error code means, what the system did, and what to do."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from droveway.cli.base import Lister, Subject
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.errors import NotFound

COLUMNS: Final = ("code", "means", "did", "do")
_WIDTH: Final = 100
_NEAR: Final = 0.5


class Explain(Lister):
    """Explain an error code; without one, all of them."""

    subject = Subject("code", "as `move show` has it under error_code", optional=True)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return one row for each code."""
        if parsed_args.code is not None and parsed_args.code not in EXPLANATIONS:
            raise NotFound(_unknown(parsed_args.code))
        wanted = EXPLANATIONS if parsed_args.code is None else [parsed_args.code]
        return COLUMNS, [(code, *EXPLANATIONS[code]) for code in wanted]

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print sentences for people, or records for programs."""
        if parsed_args.formatter != "table" or parsed_args.columns:
            return super().produce_output(parsed_args, column_names, data)
        self.app.stdout.write(_line(data) if parsed_args.code is None else _page(column_names, *data))
        return 0


def _unknown(code: str) -> str:
    near = difflib.get_close_matches(code, EXPLANATIONS, n=3, cutoff=_NEAR)
    near += [each for each in EXPLANATIONS if code and code in each and each not in near][: 3 - len(near)]
    mend = f"did you mean {', '.join(near)}?" if near else "droveway explain lists the codes"
    return f"there is no error code {code}: {mend}"


def _line(rows: Sequence[Sequence[str]]) -> str:
    width = max(len(code) for code, *_ in rows)
    return "".join(f"{code:<{width}}  {means}\n" for code, means, *_ in rows)


def _page(names: Sequence[str], row: Sequence[str]) -> str:
    width = max(map(len, names))
    return "".join(
        textwrap.fill(text, _WIDTH, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 2)) + "\n"
        for name, text in zip(names, row, strict=True)
    )
