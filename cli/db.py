"""`droveway db`: the journal database."""

from __future__ import annotations

import argparse

from droveway.cli.base import Command


class Adopt(Command):
    """Take databases as they are that were restored or swapped: every unfinished move waits for a person then."""

    strict = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Park the moves and say which."""
        from droveway.lab import adoption

        parked = adoption.adopt(self.lab(parsed_args))
        self.app.stdout.write(f"adopted; {len(parked)} unfinished move{'s' * (len(parked) != 1)} parked\n")
        for move in parked:
            self.app.stdout.write(f"  {move.id[:8]}  {move.kind} {move.server_name}: {move.error}\n")
        return 0


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
