"""Letting hosts of a lab take servers, or not."""

from __future__ import annotations

import getpass

import sqlalchemy as sa

from droveway.errors import Refused
from droveway.lab.lock import is_run
from droveway.lab.session import Lab
from droveway.lab.stopped import stopped_workers
from droveway.persistence import catalog, debts
from droveway.persistence.cell import Service
from droveway.scheduler.requests import DISABLED_TRAIT


def set_enabled(lab: Lab, name: str, *, enabled: bool, reason: str | None) -> None:
    """Enable or disable the host's service and its provider, as Nova does; safe to repeat.

    A host that is enabled is no longer declared to be off.  Raises `droveway.errors.NotFound` for an unknown host.
    """
    _set(lab, name, enabled=enabled, reason=reason, forced_down=False if enabled else None)


def declare_down(lab: Lab, name: str, *, reason: str) -> None:
    """Record, as Nova's force-down, that somebody made sure that the host is off; it takes no servers either.

    Raises `droveway.errors.Refused` while its worker may be up.
    """
    _require_away(lab, name)
    _set(lab, name, enabled=False, reason=reason, forced_down=True)


def forget(lab: Lab, name: str) -> list[int]:
    """Write off what the host owes; the numbers of the debts.

    Raises `droveway.errors.Refused` while the host may be up.
    """
    _require_away(lab, name)
    if not catalog.find_host(lab.api, lab.cell_databases, name).forced_down:
        raise Refused(
            f"nobody has made sure that host {name} is off, and what it owes is only written off once it can never be "
            f'settled: droveway host down {name} --i-made-sure "how you know"'
        )
    with lab.journal.write() as session:
        return [debt.id for debt in debts.write_off(session, name, who=getpass.getuser())]


def _require_away(lab: Lab, name: str) -> None:
    lab.host(name)
    if name not in stopped_workers(lab.layout):
        raise Refused(f"the worker of host {name} is up, so the host is not off: droveway lab worker stop {name} first")
    if is_run(lab.layout):
        raise Refused(
            f"another command runs this lab and may have started the worker of host {name} before it was stopped: "
            "wait until that ends"
        )


def _set(lab: Lab, name: str, *, enabled: bool, reason: str | None, forced_down: bool | None) -> None:
    host = catalog.find_host(lab.api, lab.cell_databases, name)
    with lab.cell_databases[host.cell].write() as session:
        service = session.scalars(
            sa.select(Service).where(Service.host == name, Service.binary == "nova-compute", Service.deleted == 0)
        ).one()
        service.disabled = not enabled
        service.disabled_reason = None if enabled else reason
        if forced_down is not None:
            service.forced_down = forced_down
    lab.placement.ensure_trait(host.node, DISABLED_TRAIT, present=not enabled)
