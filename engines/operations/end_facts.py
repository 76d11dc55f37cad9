"""Reads the facts by which a confirm or a revert of a move is allowed or refused, from a site's databases."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.engines.site.site import Parts
from droveway.flows.before import before
from droveway.persistence.database import Database
from droveway.persistence.journal import cells_down, daemons, kinds, moves
from droveway.persistence.journal.step_runs import DISKS_UNREACHABLE
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import catalog, objects, quotas, servers
from droveway.persistence.nova.cell import InstanceExtra
from droveway.printable import SHORT
from droveway.scheduler.facts import EndFacts
from droveway.wire.values import SWAP

_UNREACHED: Final = (
    sa.select(MoveStep.error, MoveStep.ended_at)
    .where(
        MoveStep.move_id == sa.bindparam("move"),
        MoveStep.flow.in_([kind.name for kind in kinds.KINDS if kind.elsewhere]),
        MoveStep.direction == "execute",
        MoveStep.error.is_not(None),
        MoveStep.ended_at.is_not(None),
    )
    .order_by(MoveStep.seq)
)


def of_end(site: Parts, move: Move) -> EndFacts:
    """Read the facts of a confirm or revert of a move that waits for it."""
    server = catalog.find_server(site.api, site.known_cells, move.server)
    with site.cell_databases[server.cell].read() as session:
        migration = servers.migration(session, move.id)
    kept = flavors(site, server)
    old = kept.get("old", kept["cur"])
    away, destination = site.away(), move.dest_host or move.source_host
    source_gone = is_gone(site, move.source_host, away, cell=move.source_cell)
    return EndFacts(
        move=move.id[:SHORT],
        server=server,
        migration=migration.status if migration is not None else None,
        deleting=move.delete_requested,
        destination=move.dest_host,
        home=move.dest_cell or move.source_cell,
        source=move.source_host,
        source_up=move.source_host not in away,
        source_gone=source_gone,
        elsewhere=_why_not_elsewhere(site, move, away) if source_gone else None,
        destination_up=destination not in away,
        destination_gone=is_gone(site, destination, away, cell=move.dest_cell or move.source_cell),
        old=old,
        current=kept["cur"],
        quota_usages=quota_usages(site, server, catalog.answering(site.known_cells)) if old != kept["cur"] else (),
    )


def is_gone(site: Parts, host: str, away: Collection[str], *, cell: str) -> bool:
    """Tell whether a person declared the host of this cell down, and its worker is among those that are ``away``."""
    return host in away and _is_declared_down(site, host, cell)


def _why_not_elsewhere(site: Parts, move: Move, away: Collection[str]) -> str | None:
    """Say why no other host of the source's cell can take the move's server back; None where one may.

    Such a host needs the server's disks, if there are any: from images that were kept, or in a directory that it shares
    with the source.  Where only hosts know whether they share it, they say so when the revert runs, before the guest is
    stopped.  A host that said that it does not reach the disks does not count until its worker is started anew.
    """
    if not kinds.of(move.kind).crosses_cells:
        return "a revert within a cell needs its source"
    known = catalog.hosts(site.api, catalog.answering(site.known_cells))
    others = {host.name for host in known if host.cell == move.source_cell} - {move.source_host} - set(away)
    if not others:
        return f"no other host of cell {move.source_cell} is up"
    with site.journal.read() as session:
        record = before(moves.get(session, move.id, with_before=True))
    if move.keep_image or all(disk.name == SWAP for disk in record.guest.disks):
        return None
    sharing = {host for host in others if site.shares_storage(move.source_host, host) is not False}
    if not sharing:
        return "it was moved without --keep-image, so that its disks are on the source alone"
    with site.journal.read() as session:
        told = _unreached(session, move.id)
    if not told or sharing - told:
        return None
    tried = ", ".join(sorted(sharing & told))
    return f"it was moved without --keep-image, and nothing that the source has set aside is reached from {tried}"


def _unreached(session: orm.Session, move_id: str) -> set[str]:
    """Find the hosts that did not reach the disks in an earlier revert, unless their workers were started since."""
    runs = session.execute(_UNREACHED, {"move": move_id})
    tried = {str(row.error["host"]): row.ended_at for row in runs if row.error["code"] == DISKS_UNREACHABLE}
    workers = daemons.known_workers(session).workers
    return {host for host, when in tried.items() if host not in workers or workers[host].started_at <= when}


def _is_declared_down(site: Parts, host: str, cell: str) -> bool:
    with site.journal.read() as session:
        gone = cells_down.find(session)
    if cell in gone and host in catalog.hosts_of(site.api, cell):
        return True
    found = catalog.find_host(site.api, site.known_cells, host, cell=cell)
    # A host of the same name in another cell says nothing of this one.
    return found.cell == cell and found.forced_down


def quota_usages(site: Parts, server: catalog.Server, cells: Mapping[str, Database]) -> tuple[quotas.QuotaUsage, ...]:
    """Read what counts against the server's quotas; like Nova, only from cells that answer."""
    defaults = {quotas.CORES: site.conf.quota.cores, quotas.RAM: site.conf.quota.ram}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(site.api.read())
        sessions = [stack.enter_context(database.read()) for database in cells.values()]
        return tuple(quotas.quota_usages(api, sessions, project=server.project, user=server.user, defaults=defaults))


def flavors(site: Parts, server: catalog.Server) -> dict[str, catalog.Flavor]:
    """Read the server's own copies of its flavors, by slot: ``cur``, ``old`` and ``new``; an empty slot is left out."""
    with site.known_cells[server.cell].read() as session:
        text = session.scalar(
            sa.select(InstanceExtra.flavor).where(InstanceExtra.instance_uuid == server.id, InstanceExtra.deleted == 0)
        )
    return {slot: _flavor(objects.flavor_data(kept)) for slot, kept in json.loads(text or "{}").items() if kept}


def _flavor(fields: Mapping[str, Any]) -> catalog.Flavor:
    return catalog.Flavor(
        name=fields["name"],
        id=fields["flavorid"],
        vcpus=fields["vcpus"],
        memory_mb=fields["memory_mb"],
        root_gb=fields["root_gb"],
        ephemeral_gb=fields["ephemeral_gb"],
        swap_mb=fields["swap"],
        disabled=False,
        extra_specs=fields["extra_specs"],
    )
