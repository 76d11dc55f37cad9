"""Says what moves need to run: databases and services, whether of a lab or of an installation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.clients.cloud import Cloud
    from droveway.persistence.database import Database
    from droveway.persistence.nova.cells import Cells


class Parts(Protocol):
    """The parts of a site: options, hosts, and databases and services, each of which is opened at its first use."""

    @property
    def runs_here(self) -> bool:
        """Whether the commands themselves run moves; otherwise daemons do."""

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The options."""

    @property
    def journal(self) -> Database:
        """Droveway's journal."""

    @property
    def api(self) -> Database:
        """Nova's API database."""

    @property
    def cell_databases(self) -> Mapping[str, Database]:
        """The databases of Nova's cells, by the cells' names.

        To take one that does not answer may raise DatabaseUnusable, which names its cell.
        """

    @property
    def known_cells(self) -> Mapping[str, Database]:
        """The databases of Nova's cells, by the cells' names, whether they answer or not."""

    @property
    def cells(self) -> Cells:
        """Fenced access to the cell databases."""

    @property
    def cloud(self) -> Cloud:
        """The cloud's services."""

    def any_journal(self) -> Database:
        """Open the journal, whatever schema it has; the caller closes it."""

    def away(self) -> frozenset[str]:
        """Return the hosts whose workers are known to be away."""

    def super_conductors(self) -> list[str]:
        """Name the hosts on which a super conductor of Nova is up; raises DatabaseUnusable where nobody can tell."""

    def require_away(self, host: str) -> None:
        """Raise `droveway.errors.Refused` while the host's worker may be up, NotFound for an unknown host."""

    def require_all_away(self, hosts: Collection[str]) -> None:
        """Raise `droveway.errors.Refused` while the worker of one of these hosts may be up."""

    def runs_moves(self) -> bool:
        """Tell whether a daemon or a command runs this site's moves now, as far as can be told."""

    def migrates_to_same_host(self, host: str) -> bool:
        """Tell whether the host's hypervisor can cold migrate a server to the host that it is on."""

    def unreachable(self, source: str, destination: str) -> str | None:
        """Say why the destination's worker does not reach the source's transfer port.

        Empty when it does; None when only the hosts can tell.
        """

    def shares_storage(self, one: str, other: str) -> bool | None:
        """Tell whether both hosts keep their servers in one directory; None when only the hosts can tell."""


class Site(Parts, Protocol):
    """A lab, or an installation that daemons run."""

    def storage(self, server: str, source: str, destination: str) -> tuple[str, str, int | None]:
        """Return how the server's disks would get to the destination, the reason for that, and the bytes to send.

        The first value is the ``storage`` of a plan: ``same-host``, ``shared``, ``copy`` or ``unknown``.  The bytes are
        None when nobody knows them yet.
        """

    def wait_until(self, at_rest: Callable[[], bool]) -> bool:
        """Wait until ``at_rest`` returns True, in a lab by running moves; return whether moves were run here."""
