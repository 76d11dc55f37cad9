"""`droveway db`: the journal database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Command, Lister
from droveway.cli.view.spans import seconds
from droveway.errors import Refused

if TYPE_CHECKING:
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.tables import Move

COLUMNS: Final = ("database", "subject", "detail", "mend")
FOUND: Final = 3


class Adopt(Command):
    """Take databases as they are that were restored or swapped: every unfinished move waits for a person then."""

    strict = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Hosts that lie."""
        from droveway.cli.daemon import IGNORE_HELP

        parser = super().get_parser(prog_name)
        parser.add_argument("--ignore-host", action="append", default=[], metavar="HOST", help=IGNORE_HELP)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Park the moves and say which."""
        site = self.site(parsed_args)
        ignored = parsed_args.ignore_host
        if ignored and site.runs_here:
            raise Refused("--ignore-host is for installations: what a lab's hosts have seen is read from their files")
        parked = self._of_lab(parsed_args) if site.runs_here else self._of_installation(site, ignored)
        self.app.stdout.write(f"adopted; {len(parked)} unfinished move{'s' * (len(parked) != 1)} parked\n")
        for move in parked:
            self.app.stdout.write(f"  {move.id[:8]}  {move.kind} {move.server_name}: {move.error}\n")
        return 0

    def _of_lab(self, parsed_args: argparse.Namespace) -> list[Move]:
        return self.lab(parsed_args).adopt()

    def _of_installation(self, site: Site, ignored: Sequence[str]) -> list[Move]:
        """What the daemons have seen stands in ZooKeeper: this command speaks to it."""
        from droveway.cli.daemon import connect
        from droveway.engines.operations import adoption

        session = connect(site.conf)
        try:
            return adoption.adopt(adoption.OfInstallation(session, site.journal, ignored))
        finally:
            session.close()


class Sync(Command):
    """Bring the journal to this version's schema."""

    strict = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Migrate it and say from where to where."""
        from droveway.persistence.journal import migrate

        database = self.site(parsed_args).any_journal()
        before, after = migrate.sync(database)
        database.close()
        print(f"journal: schema {after} (it was {before or 'empty'})")
        return 0


class Check(Lister):
    """Look for what never should be in the journal, and for tables and columns of Nova's that are missing."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """A row for each; exit 3 when there are any."""
        from droveway.persistence import invariants

        site = self.site(parsed_args)
        with site.journal.read() as session:
            found = [("journal", *each) for each in invariants.journal(session)]
        found += [("api", *each) for each in invariants.columns(site.api, invariants.API)]
        for name, database in sorted(site.cell_databases.items()):
            found += [(f"cell {name}", *each) for each in invariants.columns(database, invariants.CELL)]
        self._found = bool(found)
        return COLUMNS, found

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Look, print, and end by what was found."""
        super().run(parsed_args)
        return FOUND if self._found else 0


class Purge(Command):
    """Remove moves that ended long ago, with their history; never one for which a host owes something."""

    strict = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """How long ago."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--older-than",
            metavar="TIME",
            type=seconds,
            required=True,
            help="ended longer ago than this, as 30d or 12h",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Remove them, and say how many rows went."""
        from droveway.lab.records import InFolder
        from droveway.persistence.journal import purge

        site = self.site(parsed_args)
        gone: list[str] = []
        counted = purge.purge(site.journal, parsed_args.older_than, gone)
        if site.runs_here:
            InFolder(self.lab(parsed_args).layout.recorded).forget(gone)
        else:
            counted["nodes in ZooKeeper"] = self._sweep(site, gone)
        for name, count in counted.items():
            print(f"{count:>8}  {name}")
        count = counted.get("moves", 0)
        print(f"{count} move{'s' * (count != 1)} removed")
        return 0

    def _sweep(self, site: Site, gone: list[str]) -> int:
        """What the moves left in ZooKeeper; what could not be reached now goes with the next purge."""
        from droveway.cli.daemon import connect
        from droveway.engines.operations import purging

        try:
            session = connect(site.conf)
        except Refused as error:
            self.app.stderr.write(f"warning: {error}; the nodes of the moves stay until the next purge\n")
            return 0
        try:
            return purging.sweep(session, site.journal, gone)
        finally:
            session.close()
