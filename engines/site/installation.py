"""Opens the databases and services that the configuration of an installation names.

In an installation daemons run the moves.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import sqlalchemy as sa
from oslo_config import cfg

from droveway import clocks
from droveway.clients.cloud import Cloud
from droveway.clients.configured import Services
from droveway.clients.placement import SAME_HOST_TRAIT
from droveway.conf.services import GROUPS
from droveway.errors import Refused
from droveway.persistence.database import Database, DatabaseAway, database_time
from droveway.persistence.journal import daemons, migrate, used_cells
from droveway.persistence.nova import catalog, super_conductors
from droveway.persistence.nova.api import CELL_NAME, CellMapping
from droveway.persistence.nova.cell_urls import cell_url
from droveway.persistence.nova.cells import Cells

LOG = logging.getLogger(__name__)

POLL: Final = 0.1
"""Seconds between two looks at the journal."""


class _Known(dict[str, Database]):
    """Maps the name of each cell of Nova's to its database; raises `droveway.errors.Refused` for any other name."""

    def __missing__(self, cell: str) -> Database:
        raise Refused(used_cells.why(cell))


class _Answering(Mapping[str, Database]):
    """Hands out the database of a cell only while it answers, so that a cell that is away bars no work in the others.

    Raises `droveway.persistence.database.DatabaseUnusable`, which names the cell, where it does not answer.
    """

    def __init__(self, known: Mapping[str, Database]) -> None:
        self._known = known

    def __getitem__(self, cell: str) -> Database:
        database = self._known[cell]
        database.require(f"of cell {cell}")
        return database

    def __contains__(self, cell: object) -> bool:
        return cell in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Installation:
    """Implements `droveway.engines.site.site.Site`; ``conf`` is from `droveway.conf.settings.load_deployment`."""

    runs_here = False

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        self.services = Services(conf)

    @functools.cached_property
    def journal(self) -> Database:
        """Droveway's journal; raises as `droveway.persistence.journal.migrate.check` for another version's schema."""
        database = self.any_journal()
        migrate.check(database)
        return database

    @functools.cached_property
    def api(self) -> Database:
        """Nova's API database."""
        return self._database("api_database")

    @functools.cached_property
    def known_cells(self) -> dict[str, Database]:
        """The databases of Nova's cells, all but cell0, by the cells' names, whether they answer or not.

        Raises `droveway.errors.Refused` where two cells have one name.
        """
        columns = CELL_NAME.label("name"), CellMapping.uuid, CellMapping.database_connection
        with self.api.read() as session:
            mappings = session.execute(sa.select(*columns).where(CellMapping.uuid != super_conductors.CELL0)).all()
        default = self.conf.database.connection
        ids: dict[str, str] = {}
        for mapping in mappings:
            if ids.setdefault(mapping.name, mapping.uuid) != mapping.uuid:
                raise Refused(
                    f"the cells {ids[mapping.name]} and {mapping.uuid} are both named {mapping.name}, and a move knows "
                    f"a cell by its name: nova-manage cell_v2 update_cell --cell_uuid {mapping.uuid} --name NAME"
                )
        urls = {mapping.name: str(mapping.database_connection) for mapping in mappings}
        return _Known({name: Database(cell_url(url, default, name)) for name, url in urls.items()})

    @functools.cached_property
    def cell0(self) -> Database | None:
        """Return the database of Nova's cell0, whether it answers or not; None where Nova has no such cell."""
        with self.api.read() as session:
            wanted = sa.select(CellMapping.database_connection).where(CellMapping.uuid == super_conductors.CELL0)
            url = session.scalar(wanted)
        return None if url is None else Database(cell_url(str(url), self.conf.database.connection, "cell0"))

    @functools.cached_property
    def cell_databases(self) -> Mapping[str, Database]:
        """The databases of Nova's cells, all but cell0, by the cells' names, each of which answers when it is taken."""
        return _Answering(self.known_cells)

    @functools.cached_property
    def cells(self) -> Cells:
        """Fenced access to the cell databases, those that do not answer now among them."""
        return Cells(self.known_cells)

    @functools.cached_property
    def cloud(self) -> Cloud:
        """The cloud's services."""
        return self.services.cloud()

    def any_journal(self) -> Database:
        """Open the journal, whatever schema it has."""
        return self._database("journal")

    def away(self) -> frozenset[str]:
        """Return the hosts whose workers are away, as conductors last saw it; none while no conductor is up."""
        hosts = [host.name for host in catalog.hosts(self.api, catalog.answering(self.known_cells))]
        with self.journal.read() as session:
            return daemons.known_workers(session).away(hosts)

    def super_conductors(self) -> list[str]:
        """Name the hosts on which a super conductor of Nova is up; raises DatabaseUnusable where cell0 is away."""
        if self.cell0 is None:
            return []
        self.cell0.require("of cell0")
        return super_conductors.up(self.cell0)

    def require_away(self, host: str) -> None:
        """Raise `droveway.errors.Refused` while the host's worker may be up, NotFound for an unknown host."""
        catalog.find_host(self.api, self.known_cells, host)
        self.require_all_away([host])

    def require_all_away(self, hosts: Collection[str]) -> None:
        """Raise `droveway.errors.Refused` while the worker of one of these hosts may be up."""
        with self.journal.read() as session:
            known = daemons.known_workers(session)
        if not known.current:
            raise Refused(
                f"no conductor is up, so nobody knows whether the worker of host {', '.join(hosts)} is: start a "
                "conductor first"
            )
        if up := sorted({*hosts} - known.away(hosts)):
            host = up[0]
            raise Refused(
                f"the worker of host {host} is registered, so the host is not off: stop the worker, or wait until the "
                f"session of one that died has ended (droveway worker show {host})"
            )

    def unreachable(self, source: str, destination: str) -> str | None:  # noqa: ARG002 - only its host can try
        """Return None, for unknown: the destination tries it when the move runs."""
        return None

    def shares_storage(self, one: str, other: str) -> None:
        """Return None, for unknown: the hosts find it out when the move runs."""

    def storage(self, server: str, source: str, destination: str) -> tuple[str, str, int | None]:  # noqa: ARG002 - only hosts know their disks
        """Return "unknown" unless the server stays on its host: hosts look at their disks when the move runs."""
        if destination == source:
            return "same-host", f"the server stays on {source}: the copy is made there", 0
        return "unknown", f"{source} and {destination} find out whether they share storage when the move runs", None

    def runs_moves(self) -> bool:
        """Return True: daemons run the moves."""
        return True

    def migrates_to_same_host(self, host: str) -> bool:
        """Tell whether the host can cold migrate a server to itself: its provider has a trait for that."""
        node = catalog.find_host(self.api, self.known_cells, host).node
        return SAME_HOST_TRAIT in self.cloud.placement.provider_traits(node)

    def wait_until(self, at_rest: Callable[[], bool]) -> bool:
        """Wait until ``at_rest`` returns True; return False, since daemons do the work and not this process."""
        while not at_rest():
            time.sleep(POLL)
        return False

    def open(self) -> None:
        """Open every part; raises `droveway.errors.DrovewayError` naming the first that cannot be used."""
        for name in ("journal", "api", "cells", "cloud"):
            getattr(self, name)
        self._require_cells()
        with self.journal.read() as session:
            clocks.require(database_time(session), "the database of [journal]")

    def _require_cells(self) -> None:
        """Raise DatabaseUnusable where a cell's database cannot be used, or none of them answers.

        Moves of the cells that answer do not wait for one that is away.  Raises `droveway.errors.Refused` where a move
        names a cell that Nova does not know.
        """
        with self.journal.read() as session:
            for sentence in used_cells.unknown(session, self.known_cells, of_debts=False).values():
                raise Refused(sentence)
        away: list[DatabaseAway] = []
        for name, database in self.known_cells.items():
            try:
                database.require(f"of cell {name}")
            except DatabaseAway as error:
                LOG.warning("Moves of cell %s wait: %s", name, error)
                away.append(error)
        if away and len(away) == len(self.known_cells):
            raise away[0]

    def require_services(self) -> None:
        """Raise `droveway.errors.Refused` naming the first service that gives no answer to what a move asks of it."""
        for group in GROUPS:
            self.services.require_answer(group)

    def close(self) -> None:
        """Give back every connection."""
        opened = [self.__dict__.pop(name, None) for name in ("journal", "api", "cell0")]
        opened += self.__dict__.pop("known_cells", {}).values()
        self.__dict__.pop("cell_databases", None)
        for database in opened:
            if database is not None:
                database.close()

    def _database(self, group: str) -> Database:
        url = self.conf[group].connection
        if not url:
            raise Refused(f"[{group}] connection is missing: give the URL of the database")
        database = Database(url)
        database.require(f"of [{group}]")
        return database
