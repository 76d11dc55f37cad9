"""Enables and disables hosts, declares them down, and writes off what they owe."""

from __future__ import annotations

import getpass

import sqlalchemy as sa

from droveway.engines.site.site import Site
from droveway.errors import Refused
from droveway.persistence.journal import debts
from droveway.persistence.nova import catalog, namesakes
from droveway.persistence.nova.cell import Service
from droveway.scheduler.requests import DISABLED_TRAIT


def set_enabled(site: Site, name: str, *, enabled: bool, reason: str | None) -> None:
    """Enable or disable the host's service and its provider, as Nova does; safe to repeat.

    A host that is enabled is no longer declared down.  Raises `droveway.errors.NotFound` for an unknown host,
    and Refused for a name that hosts of several cells have.
    """
    _set(site, name, enabled=enabled, reason=reason, forced_down=False if enabled else None)


def declare_down(site: Site, name: str, *, reason: str) -> None:
    """Record that somebody made sure that the host is off, as Nova's force-down does, and disable the host.

    Raises `droveway.errors.Refused` while its worker may be up.
    """
    site.require_away(name)
    _set(site, name, enabled=False, reason=reason, forced_down=True)


def forget(site: Site, name: str) -> list[int]:
    """Write off what the host owes, and return the numbers of the debts.

    Raises `droveway.errors.Refused` while the host may be up.
    """
    _require_one(site, name)
    site.require_away(name)
    if not catalog.find_host(site.api, site.known_cells, name).forced_down:
        raise Refused(
            f"nobody has made sure that host {name} is off, and what it owes is only written off once it can never be "
            f'settled: droveway host down {name} --i-made-sure "how you know"'
        )
    with site.journal.write() as session:
        return [debt.id for debt in debts.write_off(session, name, who=getpass.getuser())]


def _require_one(site: Site, name: str) -> None:
    """Raise `droveway.errors.Refused` where hosts of several cells have this name."""
    found = namesakes.of_hosts(catalog.hosts(site.api, catalog.answering(site.known_cells)))
    if name in found:
        raise Refused(found[name])


def _set(site: Site, name: str, *, enabled: bool, reason: str | None, forced_down: bool | None) -> None:
    _require_one(site, name)
    host = catalog.find_host(site.api, site.known_cells, name)
    with site.cell_databases[host.cell].write() as session:
        service = session.scalars(
            sa.select(Service).where(Service.host == name, Service.binary == "nova-compute", Service.deleted == 0)
        ).one()
        service.disabled = not enabled
        service.disabled_reason = None if enabled else reason
        if forced_down is not None:
            service.forced_down = forced_down
    site.cloud.placement.ensure_trait(host.node, DISABLED_TRAIT, present=not enabled)
