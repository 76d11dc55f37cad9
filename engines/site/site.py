"""What moves are carried out in: databases and services, whichever way they are found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.clients.cloud import Cloud
    from droveway.persistence.database import Database
    from droveway.persistence.nova.cells import Cells


class Parts(Protocol):
    """What a site consists of: options, databases and services, each opened when it is first used, and hosts."""

    @property
    def runs_here(self) -> bool:
        """Whether the commands themselves carry moves on; else daemons do."""

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
        """Nova's cell databases, by the cells' names."""

    @property
    def known_cells(self) -> Mapping[str, Database]:
        """The same, whether they answer or not; asking for ``cell_databases`` may raise where one does not."""

    @property
    def cells(self) -> Cells:
        """Access to the cell databases behind the fence."""

    @property
    def cloud(self) -> Cloud:
        """The cloud's services."""

    def any_journal(self) -> Database:
        """The journal, whatever schema it has; the caller closes it."""

    def away(self) -> frozenset[str]:
        """The hosts whose workers are known to be away."""

    def super_conductors(self) -> list[str]:
        """Name the hosts on which a super conductor of Nova is up; raises DatabaseUnusable where nobody can tell."""

    def require_away(self, host: str) -> None:
        """Raise `droveway.errors.Refused` while the host's worker may be up, NotFound for an unknown host."""

    def require_all_away(self, hosts: Collection[str]) -> None:
        """Raise `droveway.errors.Refused` while the worker of one of these hosts may be up."""

    def is_run(self) -> bool:
        """Whether anybody carries moves on now, as far as can be told."""

    def stays_in_place(self, host: str) -> bool:
        """Whether the host's hypervisor can cold migrate a server to the host that it is on."""

    def unreachable(self, source: str, destination: str) -> str | None:
        """Why the destination's worker does not reach the source's transfer port; None where only they can tell."""

    def shares_storage(self, one: str, other: str) -> bool | None:
        """Whether both hosts keep their servers in one directory; None where only they can tell."""


class Site(Parts, Protocol):
    """A lab, or an installation that daemons run."""

    def storage(self, server: str, source: str, destination: str) -> tuple[str, str, int | None]:
        """How the server's disks would get there, why so, and the bytes over the wire: None when nobody knows yet."""

    def wait_until(self, at_rest: Callable[[], bool]) -> bool:
        """Return once ``at_rest`` says so, having carried on what can go on; whether that was done here."""
