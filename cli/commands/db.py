"""Defines `droveway db`: the journal database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from droveway.cli.base import Command, Lister
from droveway.cli.view.spans import seconds
from droveway.printable import SHORT

COLUMNS: Final = ("database", "subject", "detail", "mend")
FOUND: Final = 3


class Adopt(Command):
    """Go on with databases that were restored or swapped, as they are; every open move then waits for an operator."""

    strict = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for hosts whose workers are not asked."""
        from droveway.cli.daemon import IGNORE_HELP

        parser = super().get_parser(prog_name)
        parser.add_argument("--ignore-host", action="append", default=[], metavar="HOST", help=IGNORE_HELP)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Park the moves and print which."""
        site = self.site(parsed_args)
        with self.progress(parsed_args, "adopting the databases"):
            parked = site.adopt(parsed_args.ignore_host)
        self.app.stdout.write(f"adopted; {len(parked)} unfinished move{'s' * (len(parked) != 1)} parked\n")
        for move in parked:
            self.app.stdout.write(f"  {move.id[:SHORT]}  {move.kind} {move.server_name}: {move.error}\n")
        return 0


class Sync(Command):
    """Bring the journal to this version's schema."""

    strict = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Migrate the journal, and print the schemas before and after."""
        from droveway.persistence.journal import migrate

        database = self.site(parsed_args).any_journal()
        with self.progress(parsed_args, "migrating the journal"):
            before, after = migrate.sync(database)
        database.close()
        print(f"journal: schema {after} (it was {before or 'empty'})")
        return 0


class Check(Lister):
    """Find what must never be in the journal, and tables and columns that are missing in Nova's databases."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """Return a row for each finding; the exit code is 3 when there are any."""
        from droveway.persistence import invariants
        from droveway.persistence.database import DatabaseAway

        site = self.site(parsed_args)
        with self.progress(parsed_args, "reading the journal") as shown:
            with site.journal.read() as session:
                found = [("journal", *each) for each in invariants.journal(session)]
            found += [("api", *each) for each in invariants.columns(site.api, invariants.API)]
            for name, database in shown.over(sorted(site.known_cells.items())):
                cell = f"cell {name}"
                try:
                    database.require(f"of {cell}")
                except DatabaseAway as error:
                    found.append((cell, "database", str(error), f"start the database of {cell}"))
                    continue
                found += [(cell, *each) for each in invariants.columns(database, invariants.CELL)]
        self._found = bool(found)
        return COLUMNS, found

    def nothing(self, _parsed_args: argparse.Namespace) -> str:
        """Return the sentence that all is as it should be."""
        return "nothing was found: the databases hold what they should"

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the checks, print the findings, and return the exit code."""
        super().run(parsed_args)
        return FOUND if self._found else 0


class Purge(Command):
    """Remove moves that ended long ago, with their history; a move for which a host owes something stays."""

    strict = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the age."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--older-than",
            metavar="TIME",
            type=seconds,
            required=True,
            help="ended longer ago than this, such as 30d or 12h",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Remove them, and print how many rows were removed."""
        from droveway.persistence.journal import purge

        site = self.site(parsed_args)
        gone: list[str] = []
        with self.progress(parsed_args, "removing moves") as shown:
            counted = purge.purge(site.journal, parsed_args.older_than, gone, shown.over)
        counted |= site.forget(gone, self.app.stderr.write)
        for name, count in counted.items():
            print(f"{count:>8}  {name}")
        count = counted.get("moves", 0)
        print(f"{count} move{'s' * (count != 1)} removed")
        return 0
