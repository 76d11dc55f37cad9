"""Defines `droveway freeze` and `droveway thaw`.

While everything, a cell or a host is frozen, conductors claim none of its moves and hosts delete none of its copies.
"""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Command, Lister
from droveway.cli.view.columns import Blank, Time

if TYPE_CHECKING:
    from droveway.engines.site.installation import Installation
    from droveway.persistence.journal.freezes import Scope

LISTED: Final = ("scope", "name", "reason", "who", "at")


class _Scoped(Command):
    """A command on everything, a cell or a host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for the scope; without one it is everything."""
        parser = super().get_parser(prog_name)
        only = parser.add_mutually_exclusive_group()
        only.add_argument("--cell", metavar="CELL", help="only moves from or to this cell")
        only.add_argument("--host", metavar="HOST", help="only moves from or to this host, which takes no servers then")
        return parser

    def scope(self, site: Installation, parsed_args: argparse.Namespace) -> tuple[Scope, str]:
        """Return the scope; raises `droveway.errors.NotFound` for an unknown cell or host.

        The API database has both names, so no cell's database needs to answer.
        """
        from droveway.persistence.nova import catalog

        if parsed_args.cell is not None:
            return "cell", catalog.find_cell(site.api, parsed_args.cell).name
        if parsed_args.host is not None:
            catalog.require_mapped(site.api, parsed_args.host)
            return "host", parsed_args.host
        return "all", ""


class Freeze(_Scoped):
    """Stop conductors from claiming moves and from deleting copies until a thaw.

    A move that a conductor has claimed already goes on, but waits before a step that deletes a copy.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the reason."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", metavar="TEXT", help="why; shown with every move that waits for it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the row by which conductors stop."""
        from droveway.persistence.journal import freezes

        site = self.installation(parsed_args)
        scope, name = self.scope(site, parsed_args)
        with site.journal.write() as session:
            freezes.freeze(session, scope, name, who=getpass.getuser(), reason=parsed_args.reason)
        option = f" --{scope} {name}" if name else ""
        print(f"{_named(scope, name)} is frozen: no move is claimed and nothing deleted until  droveway thaw{option}")
        return 0


class Thaw(_Scoped):
    """End a freeze of the same scope; the others stay."""

    def scope(self, site: Installation, parsed_args: argparse.Namespace) -> tuple[Scope, str]:
        """Return the scope; a name that is frozen needs to be known to Nova no longer.

        Otherwise nobody could end the freeze of a host that has left Nova.
        """
        from droveway.persistence.journal import freezes

        typed: tuple[tuple[Scope, str], ...] = (("cell", parsed_args.cell), ("host", parsed_args.host))
        with site.journal.read() as session:
            frozen = {(row.scope, row.name) for row in freezes.listing(session)}
        for each in typed:
            if each in frozen:
                return each
        return super().scope(site, parsed_args)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Delete the row."""
        from droveway.persistence.journal import freezes

        site = self.installation(parsed_args)
        scope, name = self.scope(site, parsed_args)
        with site.journal.write() as session:
            freezes.thaw(session, scope, name)
        print(f"the freeze of {_named(scope, name)} has ended")
        return 0


def _named(scope: Scope, name: str) -> str:
    return f"{scope} {name}" if name else "everything"


class List(Lister):
    """List what is frozen, since when, and by whom."""

    def nothing(self, _parsed_args: argparse.Namespace) -> str:
        """Return the sentence that no cell and no host is frozen, nor everything."""
        return "nothing is frozen"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, the oldest first."""
        from droveway.persistence.journal import freezes

        with self.installation(parsed_args).journal.read() as session:
            found = freezes.listing(session)
        return LISTED, [(row.scope, row.name, Blank(row.reason), row.who, Time(row.at)) for row in found]
