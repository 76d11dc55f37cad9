"""Does what an operator asks of an installation as a whole, where a lab has its own way."""

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
    """A lab, or an installation that daemons run, with what its operator does to it as a whole."""

    def adopt(self, ignored: Collection[str]) -> list[Move]:
        """Take databases as they are that were restored; the moves that are parked for it.

        ``ignored``: hosts whose workers are not asked how far they have seen the journal.
        """

    def audit_sources(self, stack: contextlib.ExitStack) -> Sources:
        """Return what there is to compare; what it opens is left to ``stack``."""

    def answering(self, stack: contextlib.ExitStack) -> Coordination:
        """Open a session in which the workers answer, for as long as ``stack`` lasts."""

    def forget(self, moves: Iterable[str], warn: Callable[[str], object]) -> dict[str, int]:
        """Remove what is kept beside the journal of moves that were purged; how much there was, by what it is."""


class DaemonSite(Installation):
    """An installation with what its operator does to it: an `OperatedSite`."""

    def adopt(self, ignored: Collection[str]) -> list[Move]:
        """Take the journal as it is: what the daemons have seen of it stands in ZooKeeper."""
        from droveway.engines.operations import adoption

        with contextlib.ExitStack() as stack:
            return adoption.adopt(adoption.OfInstallation(self.answering(stack), self.journal, ignored))

    def audit_sources(self, stack: contextlib.ExitStack) -> Sources:
        """Return all but images; hosts are looked at by asking their workers, all over one session."""
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
        """What each host holds; where ZooKeeper or a worker does not answer, why nobody knows."""
        from droveway.audit.read import hosts as read_hosts
        from droveway.engines.conductor.host_channel import HostChannel
        from droveway.persistence.nova import catalog

        hosts = {host.name for host in catalog.hosts(self.api, self.cell_databases)}
        try:
            channel = HostChannel(session())
            found = channel.query(hosts, pinned=self.conf.upgrade_levels.worker)
            standing = channel.nodes()
        except (CoordinationLost, Refused) as error:
            return read_hosts.answered({}, dict.fromkeys(hosts, str(error)))
        return read_hosts.answered(
            {host: each.held for host, each in found.items() if not each.why},
            {host: each.why for host, each in found.items() if each.why},
            standing,
        )

    def answering(self, stack: contextlib.ExitStack) -> Coordination:
        """Open a session with ZooKeeper; raises `droveway.errors.Refused` when none answers."""
        from droveway.clients.zookeeper import connect_configured

        session = connect_configured(self.conf)
        stack.callback(session.close)
        return session

    def forget(self, moves: Iterable[str], warn: Callable[[str], object]) -> dict[str, int]:
        """Remove what the moves left in ZooKeeper; what cannot be reached now goes with the next purge."""
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
