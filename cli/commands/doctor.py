"""Defines `droveway doctor` and `droveway upgrade check`, which examine an installation."""

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
        """Return a row for each finding; the exit code is 1 for a warning and 2 for a failure."""
        from droveway.doctor import run

        with self.progress(parsed_args, "looking") as shown:
            found = run.examine(self.configuration(parsed_args), shown.over(self.checks(run)))
        self._worst = run.worst(found)
        return COLUMNS, [(str(each.level), each.code, each.subject, each.detail, each.mend) for each in found]

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """Return the checks of `droveway.doctor.run` to make."""
        chosen: Iterable[Check] = run.CHECKS
        return chosen

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the checks, print the findings, and return the exit code."""
        super().run(parsed_args)
        return self._worst


class Upgrade(Doctor):
    """Say whether conductors of this release can take over: the journal's schema, running flows, workers."""

    def checks(self, run: ModuleType) -> Iterable[Check]:
        """Return only the checks of what differs between releases."""
        chosen: Iterable[Check] = run.UPGRADE
        return chosen
