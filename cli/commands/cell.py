"""Defines `droveway cell`: the cells."""

from __future__ import annotations

import argparse
import dataclasses
import getpass
from collections.abc import Iterable, Sequence
from typing import Any, Final

from droveway.cli.base import Command, Lister, ShowOne, Subject
from droveway.cli.view.columns import Blank, Joined, Short

LISTED: Final = ("name", "id", "disabled", "down", "hosts", "servers")


class List(Lister):
    """List the cells."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by name."""
        from droveway.persistence.journal import cells_down
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        with site.journal.read() as session:
            down = cells_down.find(session)
        return LISTED, [
            (each.name, Short(each.id), each.disabled, Blank(down.get(each.name)), each.hosts, each.servers)
            for each in catalog.cells_of(site.api)
        ]


class Show(ShowOne):
    """Show one cell, with its hosts."""

    subject = Subject("cell", "its name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import cells_down
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        cell = catalog.find_cell(site.api, parsed_args.cell)
        with site.journal.read() as session:
            down = cells_down.find(session).get(cell.name)
        names = catalog.hosts_of(site.api, cell.name)
        return self.dict2columns(dataclasses.asdict(cell) | {"down": Blank(down), "host_names": Joined(names)})


class OfCell(Command):
    """A command on one cell."""

    subject = Subject("cell", "its name or id")


class Down(OfCell):
    """Declare a cell to be gone, its hosts and its database: no move waits for it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option that says how that is known."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--i-made-sure",
            metavar="TEXT",
            required=True,
            help="how you know that its hosts and its database are off and stay off; kept with the cell",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Record that the cell is down; `cell up` takes that back."""
        from droveway.engines.operations import cells

        site, who = self.site(parsed_args), getpass.getuser()
        name = cells.declare_down(site, parsed_args.cell, reason=parsed_args.i_made_sure, who=who)
        print(f"cell {name} is declared down: no move waits for it; to take that back: droveway cell up {name}")
        return 0


class Up(OfCell):
    """Let a cell take part again that was declared down.

    Droveway first cleans up in its database what moves left there meanwhile, then its hosts do what they owe.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Record that the cell is up; refused while its database does not answer."""
        from droveway.engines.operations import cells

        name = cells.declare_up(self.site(parsed_args), parsed_args.cell)
        print(
            f"cell {name} is up: it takes part in moves again; Droveway first cleans up its database, then its hosts "
            "do what they owe"
        )
        return 0
