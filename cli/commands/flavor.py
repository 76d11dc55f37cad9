"""Defines `droveway flavor`: the flavors."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from droveway.cli.base import Lister, ShowOne, Subject
from droveway.cli.view.columns import Facts
from droveway.cli.view.spans import number

LISTED: Final = ("name", "vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb", "disabled", "extra_specs")


class List(Lister):
    """List the flavors, the small ones first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options that narrow the list."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--min-disk",
            metavar="GB",
            type=number("size of a disk", 0, rest=" GB"),
            default=0,
            help="only those with at least this root disk",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by size."""
        from droveway.persistence.nova import catalog

        found = [each for each in catalog.flavors(self.site(parsed_args).api) if each.root_gb >= parsed_args.min_disk]
        rows = [dataclasses.asdict(each) | {"extra_specs": Facts(each.extra_specs)} for each in found]
        return LISTED, [[row[name] for name in LISTED] for row in rows]


class Show(ShowOne):
    """Show one flavor."""

    subject = Subject("flavor", "its name or id")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.nova import catalog

        flavor = catalog.find_flavor(self.site(parsed_args).api, parsed_args.flavor)
        return self.dict2columns(dataclasses.asdict(flavor) | {"extra_specs": Facts(flavor.extra_specs)})
