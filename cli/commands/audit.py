"""Defines `droveway audit`, which compares what databases, services and hosts say of servers."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister
from droveway.errors import Refused
from droveway.printable import printable

if TYPE_CHECKING:
    from droveway.audit.findings import Report
    from droveway.audit.heal.healing import Mend
    from droveway.audit.heal.mending import Healing
    from droveway.audit.sources import Sources
    from droveway.engines.site.site import Site

COLUMNS: Final = ("kind", "subject", "host", "server", "move", "detail", "mend")
PLANNED: Final = (*COLUMNS, "heal", "plan")
FOUND: Final = 3
LOOKING: Final = "comparing databases, services and hosts"

OWED_SECONDS: Final = 30.0
"""Seconds to wait for workers that have something to remove."""

NAMED: Final = 5
"""How many mends the question names at most."""


class Audit(Lister):
    """Compare Placement, the databases, ports, volumes and images with what the hosts really hold."""

    _site: Site
    _sources: Sources
    _healing: Healing | None = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for mending."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--heal",
            action="store_true",
            help="show what would be done about each finding, and do it once you agreed: Droveway removes only what an "
            "ended move provably left, and corrects allocations and bindings of ports that ask for resources",
        )
        parser.add_argument("--yes", action="store_true", help="agree to all that --heal plans, without being asked")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """Return the findings as rows; with --heal each row also says what would be done about it."""
        if parsed_args.yes and not parsed_args.heal:
            raise Refused("--yes agrees to what --heal plans: give both")
        # A heal changes things, so it is refused when a database of the lab was restored, truncated or swapped.
        self.strict = parsed_args.heal
        site = self._site = self.site(parsed_args)
        self._sources = site.audit_sources(self._stack)
        if not parsed_args.heal:
            from droveway.audit import run

            with self.progress(parsed_args, LOOKING):
                report = run.audit(self._sources)
            self._print_summary(report)
            return COLUMNS, [[found.as_dict()[name] for name in COLUMNS] for found in report.findings]
        from droveway.audit.heal import mending

        with self.progress(parsed_args, LOOKING):
            self._healing = mending.plan(self._sources, site.away())
        self._print_summary(self._healing.report)
        return PLANNED, [[mend.as_dict()[name] for name in PLANNED] for mend in self._healing.mends]

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print the findings.

        A table is printed only when there are findings. With --heal, sentences are printed instead of the table, unless
        columns are asked for. Every other format is always printed.
        """
        self._found = bool(data) if self._healing is None else not self._healing.clean
        if self._healing is not None and parsed_args.formatter == "table" and not parsed_args.columns:
            self.app.stdout.writelines(_sentences(self._healing))
        elif data or parsed_args.formatter != "table":
            super().produce_output(parsed_args, column_names, data)
        return 0

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Audit, print, mend what the user agreed to, and return an exit code that says whether findings are left."""
        with contextlib.ExitStack() as self._stack:
            super().run(parsed_args)
            if self._healing is not None and self._healing.able and self._agreed(parsed_args, self._healing):
                return self._heal(parsed_args, self._site, self._healing)
            return FOUND if self._found else 0

    def _print_summary(self, report: Report) -> None:
        counted = ", ".join(f"{count} {name}" for name, count in report.counted.items())
        self.app.stderr.write(f"checked {counted}\n")
        for noted in report.noted:
            self.app.stderr.write(f"noted: {noted.detail}\n")
        count = len(report.findings)
        self.app.stderr.write(f"{_count(count)}\n" if count else "the books balance\n")
        if self._sources.cloud.images is None:
            self.app.stderr.write("not compared: images\n")

    def _agreed(self, parsed_args: argparse.Namespace, healing: Healing) -> bool:
        if parsed_args.yes:
            return True
        count = len(healing.able)
        if not sys.stdin.isatty():
            self.app.stderr.write(f"nothing was changed: droveway audit --heal --yes does what is planned ({count})\n")
            return False
        subjects = [mend.finding.subject for mend in healing.able]
        more = f" and {count - NAMED} more" if count > NAMED else ""
        does = " or ".join(sorted({_does(mend) for mend in healing.able}))
        # The plan also has debts that were written off and become due again; they are no findings.
        found = len(healing.report.findings)
        debts = len(healing.mends) - found
        owed = f" and {debts} debt{'s' * (debts != 1)} that {'were' if debts != 1 else 'was'} written off"
        self.app.stderr.write(
            f"Droveway can mend {count} of {_count(found)}{owed * (debts > 0)}. It will {does}: "
            f"{', '.join(subjects[:NAMED])}{more}.\n"
            f"Type yes to mend {count}: "
        )
        self.app.stderr.flush()
        if sys.stdin.readline().strip() == "yes":
            return True
        self.app.stderr.write("nothing was changed\n")
        return False

    def _heal(self, parsed_args: argparse.Namespace, site: Site, healing: Healing) -> int:
        import getpass

        from droveway.audit.heal import mending

        sources, owed = self._sources, set()
        for mend, outcome in mending.heal(sources, healing, who=getpass.getuser(), away=site.away()):
            self.app.stderr.write(f"{mend.finding.subject}: {outcome}\n")
            if outcome == mending.OWED:
                owed.add(mend.move)
        if owed:
            with self.progress(parsed_args, "waiting for the hosts"):
                _await(site, owed)
        with self.progress(parsed_args, LOOKING):
            left = mending.plan(sources, site.away())
        before, after = len(healing.report.findings), len(left.report.findings)
        self.app.stderr.write(f"{_count(before)} before, {after} after\n")
        for noted in left.report.noted:
            self.app.stderr.write(f"noted: {noted.detail}\n")
        return 0 if left.clean else FOUND


def _count(count: int) -> str:
    return f"{count} finding{'s' * (count != 1)}"


def _does(mend: Mend) -> str:
    return "remove for good" if mend.settlement is None else "put right"


def _sentences(healing: Healing) -> Iterable[str]:
    for mend in healing.mends:
        where = f" on {mend.finding.host}" if mend.finding.host else ""
        yield f"{mend.finding.kind}{where}: {printable(mend.finding.detail)}\n"
        yield f"  {'mend: ' if mend.does else ''}{mend.does or mend.why}\n"


def _await(site: Site, owed: set[str]) -> None:
    """Wait for the workers that have something to remove; what they have not removed by then stays owed."""
    from droveway.persistence.journal import orphans

    ends = time.monotonic() + OWED_SECONDS

    def at_rest() -> bool:
        with site.journal.read() as session:
            return time.monotonic() >= ends or all(orphans.is_over(session, move) for move in owed)

    site.wait_until(at_rest)
