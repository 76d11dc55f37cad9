"""Defines `droveway doctor` and `droveway upgrade check`, which examine an installation."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister
from droveway.printable import printable

if TYPE_CHECKING:
    from droveway.doctor.run import Check

COLUMNS: Final = ("level", "finding", "subject", "detail", "mend")
_WIDTH: Final = 100
_INDENT: Final = " " * 9
"""As wide as the longest level and two spaces."""


class Doctor(Lister):
    """Look at ZooKeeper, databases, services, the certificate, workers and this host; nothing is changed."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """Return a row for each finding; the exit code is 1 for a warning and 2 for a failure."""
        from droveway.doctor import run

        with self.progress(parsed_args, "looking") as shown:
            found = run.examine(self.configuration(parsed_args), shown.over(self.checks(run)))
        self._worst = run.worst(found)
        return COLUMNS, [(str(each.level), each.code, each.subject, each.detail, each.mend) for each in found]

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print sentences for people, or records for programs."""
        if parsed_args.formatter != "table" or parsed_args.columns:
            return super().produce_output(parsed_args, column_names, data)
        out = self.app.stdout
        out.writelines(lines(data, shutil.get_terminal_size().columns if out.isatty() else _WIDTH))
        return 0

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """Return the checks of `droveway.doctor.run` to make."""
        chosen: Iterable[Check] = run.CHECKS
        return chosen

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the checks, print the findings, and return the exit code."""
        super().run(parsed_args)
        return self._worst


def lines(rows: Iterable[Sequence[str]], width: int) -> Iterator[str]:
    """Lay the findings out for people in lines of ``width`` columns, longer only for a longer word.

    A finding that nothing is wrong with has no mend.
    """
    from droveway.doctor.findings import FINE

    fill = textwrap.TextWrapper(width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    for level, code, subject, detail, mend in rows:
        said = [f"{subject}: {detail}"] if code == FINE else [f"{subject}: {detail} ({code})", mend]
        for number, text in enumerate(said):
            fill.initial_indent = f"{level:<{len(_INDENT)}}" if number == 0 else _INDENT
            yield fill.fill(printable(text)) + "\n"


class Upgrade(Doctor):
    """Say whether conductors of this release can take over: the journal's schema, running flows, workers."""

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """Return only the checks of what differs between releases."""
        chosen: Iterable[Check] = run.UPGRADE
        return chosen
