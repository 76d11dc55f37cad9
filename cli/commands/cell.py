"""`droveway cell`: the cells."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from droveway.cli.base import Lister, ShowOne, Subject
from droveway.cli.view.columns import Joined, Short

LISTED: Final = ("name", "id", "disabled", "hosts", "servers")


class List(Lister):
    """The cells."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Rows by name."""
        from droveway.persistence.nova import catalog

        found = catalog.cells_of(self.site(parsed_args).api)
        return LISTED, [(each.name, Short(each.id), each.disabled, each.hosts, each.servers) for each in found]


class Show(ShowOne):
    """One cell, with its hosts."""

    subject = Subject("cell", "its name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Its facts."""
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        cell = catalog.find_cell(site.api, parsed_args.cell)
        names = [host.name for host in catalog.hosts(site.api, site.cell_databases) if host.cell == cell.name]
        return self.dict2columns(dataclasses.asdict(cell) | {"host_names": Joined(names)})
