"""An opened lab, whose commands carry moves on by themselves."""

from __future__ import annotations

from collections.abc import Callable

from droveway.lab.parts import Parts


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
