"""`droveway db`: the journal database."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from droveway.cli.base import Command

if TYPE_CHECKING:
    from droveway.engines.site import Site
    from droveway.persistence.journal import Move


class Adopt(Command):
    """Take databases as they are that were restored or swapped: every unfinished move waits for a person then."""

    strict = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Park the moves and say which."""
        site = self.site(parsed_args)
        parked = self._of_lab(parsed_args) if site.runs_here else self._of_installation(site)
        self.app.stdout.write(f"adopted; {len(parked)} unfinished move{'s' * (len(parked) != 1)} parked\n")
        for move in parked:
            self.app.stdout.write(f"  {move.id[:8]}  {move.kind} {move.server_name}: {move.error}\n")
        return 0

    def _of_lab(self, parsed_args: argparse.Namespace) -> list[Move]:
        from droveway.lab import adoption

        return adoption.adopt(self.lab(parsed_args))

    def _of_installation(self, site: Site) -> list[Move]:
        """What the daemons have seen stands in ZooKeeper: this command speaks to it."""
        from droveway.cli.daemon import connect
        from droveway.engines import adoption

        session = connect(site.conf)
        try:
            return adoption.adopt(session, site.journal)
        finally:
            session.close()


class Sync(Command):
    """Bring the journal to this version's schema."""

    strict = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Migrate it and say from where to where."""
        from droveway.persistence import migrate

        database = self.site(parsed_args).any_journal()
        before, after = migrate.sync(database)
        database.close()
        print(f"journal: schema {after} (it was {before or 'empty'})")
        return 0
