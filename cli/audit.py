"""`droveway audit`: whether the books balance."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from droveway.cli.base import Lister

if TYPE_CHECKING:
    from droveway.audit.findings import Report
    from droveway.engines.site import Site
    from droveway.lab.session import Lab

COLUMNS = ("kind", "subject", "host", "server", "move", "detail", "mend")
FOUND = 3


class Audit(Lister):
    """Compare Placement, the databases, ports, volumes and images with what the hosts really hold."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """Findings as rows; exit 3 when there are any."""
        site = self.site(parsed_args)
        report = _of_lab(self.lab(parsed_args)) if site.runs_here else _of_installation(site)
        counted = ", ".join(f"{count} {name}" for name, count in report.counted.items())
        self.app.stderr.write(f"checked {counted}\n")
        for noted in report.noted:
            self.app.stderr.write(f"noted: {noted.detail}\n")
        count = len(report.findings)
        self.app.stderr.write(f"{count} finding{'s' * (count > 1)}\n" if count else "the books balance\n")
        if not site.runs_here:
            self.app.stderr.write(
                "not compared: what lies on the hosts, which their workers alone can see, and images\n"
            )
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


def _of_lab(lab: Lab) -> Report:
    from droveway.lab import books

    return books.balance(lab)


def _of_installation(site: Site) -> Report:
    from droveway.audit import run
    from droveway.audit.sources import Sources

    return run.audit(
        Sources(
            api=site.api,
            cells=site.cells,
            journal=site.journal,
            placement=site.placement,
            network=site.cloud.network,
            volumes=site.cloud.volumes,
            images=None,
            hypervisors={},
        )
    )
