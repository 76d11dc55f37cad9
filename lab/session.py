"""Opens a lab, whose commands run moves themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from droveway.errors import Refused
from droveway.lab.parts import Parts

if TYPE_CHECKING:
    from droveway.audit.sources import Sources
    from droveway.clients.zookeeper import Coordination
    from droveway.persistence.journal.tables import Move


class Lab(Parts):
    """A lab of this version, which implements the protocol `droveway.cli.sites.OperatedSite`."""

    def storage(self, server: str, source: str, destination: str) -> tuple[str, str, int | None]:
        """Return how the server's disks would get to the destination, the reason for that, and the bytes to send."""
        from droveway.lab import storage

        return storage.variant(self, server, source, destination)

    def wait_until(self, at_rest: Callable[[], bool]) -> bool:
        """Run the lab until nothing in it can go on; while another command runs it, wait until ``at_rest``."""
        from droveway.lab import runner

        return runner.drive(self, at_rest)

    def adopt(self, ignored: Collection[str] = ()) -> list[Move]:
        """Accept the lab's databases as they are, and return the moves that are unfinished in them.

        Each of these moves is parked with what the audit finds of it. The journal gets a new incarnation. The package's
        docstring explains both words.

        Raises `droveway.errors.Refused` while another command runs the lab, and for what cannot be adopted.
        """
        if ignored:
            raise Refused("--ignore-host is for installations: what a lab's hosts have seen is read from their files")
        from droveway.engines.operations.adoption import adopt
        from droveway.lab import lock
        from droveway.lab.adoption import LabMemory

        with lock.taken(self.layout):
            return adopt(LabMemory(self))

    def audit_sources(self, stack: contextlib.ExitStack) -> Sources:  # noqa: ARG002 - nothing has to be opened
        """Return all that there is to compare."""
        from droveway.lab import books

        return books.sources(self)

    def answering(self, stack: contextlib.ExitStack) -> Coordination:
        """Open a session in which the workers answer, for as long as ``stack`` lasts."""
        from droveway.lab import runner

        return stack.enter_context(runner.answering(self))

    def forget(self, moves: Iterable[str], _warn: Callable[[str], object]) -> dict[str, int]:
        """Remove the copies of records of moves that were purged."""
        from droveway.lab.records import InFolder

        InFolder(self.layout.recorded).forget(moves)
        return {}
