"""An opened lab, whose commands carry moves on by themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from droveway.errors import Refused
from droveway.lab.parts import Parts

if TYPE_CHECKING:
    from droveway.persistence.journal.tables import Move


class Lab(Parts):
    """A lab of this version: a `droveway.engines.site.site.Site`."""

    def storage(self, server: str, source: str, destination: str) -> tuple[str, str, int | None]:
        """How the server's disks would get there, why so, and the bytes over the wire."""
        from droveway.lab import storage

        return storage.variant(self, server, source, destination)

    def settle(self, at_rest: Callable[[], bool]) -> bool:
        """Run the lab until nothing in it can go on, or wait for the command that does, until ``at_rest``."""
        from droveway.lab import runner

        return runner.drive(self, at_rest)

    def adopt(self, ignored: Collection[str] = ()) -> list[Move]:
        """Park every unfinished move with what the audit finds of it, and begin a new incarnation; the moves.

        Raises `droveway.errors.Refused` while another command runs the lab, and for what cannot be adopted.
        """
        if ignored:
            raise Refused("--ignore-host is for installations: what a lab's hosts have seen is read from their files")
        from droveway.engines.operations.adoption import adopt
        from droveway.lab import lock
        from droveway.lab.adoption import OfLab

        with lock.taken(self.layout):
            return adopt(OfLab(self))
