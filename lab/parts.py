"""Opens the parts of a lab when they are first used: its databases, services and hypervisors."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Self

from droveway.errors import NotFound, Refused
from droveway.lab import packages
from droveway.lab.isolated import isolation
from droveway.lab.layout import Identity, LabHost, Layout, read_identity
from droveway.persistence.database import Database, DatabaseUnusable, sqlite_url
from droveway.persistence.journal import migrate

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.clients.embedded.cloud import EmbeddedCloud
    from droveway.lab.boot_guests import BootGuests
    from droveway.persistence.nova.cells import Cells
    from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

    Guests = Sandbox | BootGuests
    """Hypervisors whose guests answer a lab (`probe_guest`) and keep a mark for it (`write_mark`)."""


class Parts:
    """The parts of a lab of this version; the class implements the protocol `droveway.engines.site.site.Parts`."""

    runs_here = True

    def __init__(self, layout: Layout, identity: Identity) -> None:
        self.layout = layout
        self.identity = identity
        self._hypervisors: dict[str, Guests] = {}

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open the lab in the directory; raises `droveway.errors.Refused` when there is none that can be used."""
        packages.require()
        layout = Layout(root.absolute())
        return cls(layout, read_identity(layout))

    @functools.cached_property
    def api(self) -> Database:
        """Return Nova's API database."""
        return _open_database(self.layout.api)

    @functools.cached_property
    def cell_databases(self) -> dict[str, Database]:
        """Return Nova's cell databases, by the cells' names."""
        names = sorted({host.cell for host in self.identity.hosts.values()})
        return {name: _open_database(self.layout.cell(name)) for name in names}

    @property
    def known_cells(self) -> dict[str, Database]:
        """Return `cell_databases`, since all cells of a lab are files and so always answer."""
        return self.cell_databases

    def super_conductors(self) -> list[str]:
        """Return none, since no Nova runs beside a lab."""
        return []

    @functools.cached_property
    def cells(self) -> Cells:
        """Return fenced access to the cell databases: a write fails when another conductor has claimed the move."""
        from droveway.persistence.nova.cells import Cells

        return Cells(self.cell_databases)

    @functools.cached_property
    def journal(self) -> Database:
        """Return Droveway's journal, which has this version's schema."""
        database = _open_database(self.layout.journal)
        migrate.check(database)
        return database

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """Return the options of the lab's droveway.conf."""
        from droveway.conf import settings

        return settings.load(self.layout.configuration)

    @functools.cached_property
    def cloud(self) -> EmbeddedCloud:
        """Return the services in this process: the real Placement, and the lab's own ports, volumes and images."""
        from droveway.clients.embedded.cloud import embedded_cloud

        files = self.layout
        return embedded_cloud(
            placement=files.placement, database=files.services, volumes=files.volumes, images=files.images
        )

    def any_journal(self) -> Database:
        """Return the journal, whatever schema it has."""
        return Database(sqlite_url(self.layout.journal))

    def away(self) -> frozenset[str]:
        """Return the hosts whose workers an operator has stopped."""
        from droveway.lab.stopped import stopped_workers

        return frozenset(stopped_workers(self.layout))

    def require_away(self, host: str) -> None:
        """Raise `droveway.errors.Refused` while the host's worker may be up, NotFound for an unknown host."""
        self.host(host)
        self.require_all_away([host])

    def require_all_away(self, hosts: Collection[str]) -> None:
        """Raise `droveway.errors.Refused` while the worker of one of these hosts may be up."""
        for host in sorted({*hosts} - self.away()):
            raise Refused(
                f"the worker of host {host} is up, so the host is not off: droveway lab worker stop {host} first"
            )
        if hosts and self.runs_moves():
            raise Refused(
                f"another command runs this lab and may have started the worker of host {', '.join(hosts)} before the "
                "worker was stopped: wait until that command ends"
            )

    def runs_moves(self) -> bool:
        """Say whether any command is running the lab now."""
        from droveway.lab import lock

        return lock.is_held(self.layout)

    def migrates_to_same_host(self, host: str) -> bool:
        """Say whether the host's hypervisor can cold migrate a server of the host to the host itself."""
        return self.host(host).same_host_cold_migrate

    def unreachable(self, source: str, destination: str) -> str:
        """Return why the destination's worker cannot reach the source's transfer port; empty when it can."""
        here, there = self.host(source), self.host(destination)
        return isolation(here.cell, destination) if here.isolated and here.cell != there.cell else ""

    def shares_storage(self, one: str, other: str) -> bool:
        """Say whether both hosts share an instances directory."""
        here, there = self.host(one), self.host(other)
        return here.shared is not None and here.shared == there.shared

    def host(self, name: str) -> LabHost:
        """Return what the lab knows of a host; raises `droveway.errors.NotFound`."""
        if name not in self.identity.hosts:
            raise NotFound(f"host {name} is unknown: droveway host list shows the hosts")
        return self.identity.hosts[name]

    def hypervisor(self, host: str) -> Guests:
        """Return the host's hypervisor."""
        if host not in self._hypervisors:
            self._hypervisors[host] = self._open_hypervisor(host, self.host(host))
        return self._hypervisors[host]

    def _open_hypervisor(self, name: str, host: LabHost) -> Guests:
        if self.identity.hypervisor == "libvirt":
            from droveway.lab import daemons

            return daemons.hypervisor(self.layout, self.identity, name)
        from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

        return Sandbox(
            name,
            self.layout.host(name),
            guests_log=self.layout.guests_log,
            volumes=self.layout.volumes,
            memory_mb=host.memory_mb,
            same_host_cold_migrate=host.same_host_cold_migrate,
        )

    def close(self) -> None:
        """Close every connection; guests go on."""
        for hypervisor in self._hypervisors.values():
            hypervisor.close()
        self._hypervisors.clear()
        for name in ("api", "journal"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()
        for database in self.__dict__.get("cell_databases", {}).values():
            database.close()
        if "cloud" in self.__dict__:
            self.cloud.close()


def _open_database(path: Path) -> Database:
    # SQLite would make an empty database when the file does not exist.
    if not path.exists():
        raise DatabaseUnusable(f"the database {path} is missing: restore it, or make a new lab")
    return Database(sqlite_url(path))
