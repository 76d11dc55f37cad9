"""`droveway audit`: whether the books balance."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from droveway.cli.base import Lister

COLUMNS = ("kind", "subject", "host", "server", "move", "detail", "mend")
FOUND = 3


class Audit(Lister):
    """Compare Placement, the databases, ports, volumes and images with what the hosts really hold."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """Findings as rows; exit 3 when there are any."""
        from droveway.lab import books

        report = books.balance(self.lab(parsed_args))
        counted = ", ".join(f"{count} {name}" for name, count in report.counted.items())
        self.app.stderr.write(f"checked {counted}\n")
        for noted in report.noted:
            self.app.stderr.write(f"noted: {noted.detail}\n")
        count = len(report.findings)
        self.app.stderr.write(f"{count} finding{'s' * (count > 1)}\n" if count else "the books balance\n")
        return COLUMNS, [[found.as_dict()[name] for name in COLUMNS] for found in report.findings]

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print the findings, in a table only when there are any."""
        self._found = bool(data)
        if data or parsed_args.formatter != "table":
            super().produce_output(parsed_args, column_names, data)
        return 0

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Audit, print, and end by what was found."""
        super().run(parsed_args)
        return FOUND if self._found else 0
