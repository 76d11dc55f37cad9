"""`droveway doctor`: whether an installation has what it needs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from droveway.cli.base import Lister

if TYPE_CHECKING:
    from droveway.doctor.run import Check

COLUMNS = ("level", "finding", "subject", "detail", "mend")


class Doctor(Lister):
    """Look at ZooKeeper, databases, services, the certificate, workers and this host; nothing is changed."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Any]:
        """A row for each thing; exit 1 when one of them is a warning, 2 when one is a failure."""
        from droveway.doctor import run

        with self.progress(parsed_args, "looking") as shown:
            found = run.examine(self.configuration(parsed_args), shown.over(self.checks(run)))
        self._worst = run.worst(found)
        return COLUMNS, [(str(each.level), each.code, each.subject, each.detail, each.mend) for each in found]

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """What is looked at, of `droveway.doctor.run`."""
        chosen: Iterable[Check] = run.CHECKS
        return chosen

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Look, print, and end by what was found."""
        super().run(parsed_args)
        return self._worst


class Upgrade(Doctor):
    """Tell whether conductors of this release can take over: the journal's schema, live flows, workers."""

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """Only what differs between releases."""
        chosen: Iterable[Check] = run.UPGRADE
        return chosen
