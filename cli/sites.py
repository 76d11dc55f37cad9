"""Defines what an operator does to a site as a whole: `OperatedSite` for any site, `DaemonSite` for an installation.

A site is a lab or an installation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from droveway.engines.site.installation import Installation
from droveway.engines.site.site import Site
from droveway.errors import CoordinationLost, Refused

if TYPE_CHECKING:
    from droveway.audit.records import HostsSeen
    from droveway.audit.sources import Sources
    from droveway.clients.zookeeper import Coordination
    from droveway.persistence.journal.tables import Move


class OperatedSite(Site, Protocol):
    """A lab or an installation, with what its operator does to it as a whole."""

    def adopt(self, ignored: Collection[str]) -> list[Move]:
        """Go on with restored databases as they are: park every unfinished move, and return the parked moves.

        The workers of the ``ignored`` hosts are not asked which steps of moves they have seen.
        """

    def audit_sources(self, stack: contextlib.ExitStack) -> Sources:
        """Return all that an audit reads; whatever this opens is closed with ``stack``."""

    def answering(self, stack: contextlib.ExitStack) -> Coordination:
        """Open a session in which the workers answer, for as long as ``stack`` lasts."""

    def forget(self, moves: Iterable[str], warn: Callable[[str], object]) -> dict[str, int]:
        """Remove the things outside the journal that purged moves left; return how many of each kind were removed."""


class DaemonSite(Installation):
    """An installation as an `OperatedSite`."""

    def adopt(self, ignored: Collection[str]) -> list[Move]:
        """Go on with the journal as it is; ZooKeeper and the workers say which steps of moves they have seen."""
        from droveway.engines.operations import adoption

        with contextlib.ExitStack() as stack:
            return adoption.adopt(adoption.OfInstallation(self.answering(stack), self.journal, ignored))

    def audit_sources(self, stack: contextlib.ExitStack) -> Sources:
        """Return all that an audit reads; hosts are read by their workers, over one session with ZooKeeper."""
        from droveway.audit.sources import Sources

        session = functools.cache(lambda: self.answering(stack))
        return Sources(
            api=self.api,
            cells=self.cells,
            journal=self.journal,
            cloud=self.cloud,
            read_hosts=lambda: self._read_hosts(session),
        )

    def _read_hosts(self, session: Callable[[], Coordination]) -> HostsSeen:
        """Return what each host has, or why it could not be read, when ZooKeeper or its worker does not answer."""
        from droveway.audit.read import hosts as read_hosts
        from droveway.engines.conductor.host_channel import HostChannel
        from droveway.persistence.nova import catalog

        answering = catalog.answering(self.known_cells)
        hosts = {host.name for host in catalog.hosts(self.api, answering)}
        # The hosts of a cell that is away may hold something of the other cells' servers.
        for cell in self.known_cells.keys() - answering.keys():
            hosts.update(catalog.hosts_of(self.api, cell))
        try:
            channel = HostChannel(session())
            found = channel.query(hosts, pinned=self.conf.upgrade_levels.worker)
            nodes = channel.nodes()
        except (CoordinationLost, Refused) as error:
            return read_hosts.answered({}, dict.fromkeys(hosts, str(error)))
        return read_hosts.answered(
            {host: each.held for host, each in found.items() if not each.why},
            {host: each.why for host, each in found.items() if each.why},
            nodes,
        )

    def answering(self, stack: contextlib.ExitStack) -> Coordination:
        """Open a session with ZooKeeper; raises `droveway.errors.Refused` when none answers."""
        from droveway.clients.zookeeper import connect_configured

        session = connect_configured(self.conf)
        stack.callback(session.close)
        return session

    def forget(self, moves: Iterable[str], warn: Callable[[str], object]) -> dict[str, int]:
        """Remove the moves' nodes in ZooKeeper; nodes that cannot be reached now are removed by the next purge."""
        from droveway.engines.operations import purging

        gone = 0
        with contextlib.ExitStack() as stack:
            try:
                session = self.answering(stack)
            except Refused as error:
                warn(f"warning: {error}; the nodes of the moves stay until the next purge\n")
            else:
                gone = purging.remove_move_nodes(session, self.journal, moves)
        return {"nodes in ZooKeeper": gone}
