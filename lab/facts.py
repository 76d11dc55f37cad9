"""What a lab's databases, services and workers say about a move that is asked for, or about the end of one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from droveway.lab.session import Lab
from droveway.lab.stopped import stopped_workers
from droveway.persistence import catalog, objects, quotas, server_features, servers
from droveway.persistence.cell import InstanceExtra
from droveway.persistence.journal import Move
from droveway.persistence.moves import SHORT
from droveway.scheduler.facts import EndFacts, Facts


def of_move(lab: Lab, name: str, *, flavor: str | None, host: str | None) -> Facts:
    """The facts of a resize or a cold migration; raises `droveway.errors.NotFound` for a name that is unknown."""
    server = catalog.find_server(lab.api, lab.cell_databases, name)
    with lab.journal.read() as session:
        open_move = session.scalar(sa.select(Move.id).where(Move.active_server == server.id))
    new = catalog.find_flavor(lab.api, flavor) if flavor else None
    target = catalog.find_host(lab.api, lab.cell_databases, host) if host else None
    source = catalog.find_host(lab.api, lab.cell_databases, server.host) if server.host else None
    with lab.api.read() as api, lab.cell_databases[server.cell].read() as cell:
        features = server_features.features(api, cell, server.id)
    return Facts(
        server=server,
        current=_flavors(lab, server)["cur"],
        new=new,
        may_use=new is None or catalog.may_use(lab.api, new, server.project),
        source=source,
        target=target,
        up=frozenset(set(lab.identity.hosts) - set(stopped_workers(lab.layout))),
        open_move=open_move[:SHORT] if open_move else None,
        holds_allocation=source is not None and source.node in lab.placement.allocations(server.id).allocations,
        same_host_cold_migrate=bool(server.host) and lab.host(str(server.host)).same_host_cold_migrate,
        features=features,
        ports=tuple(lab.cloud.network.ports(server.id)),
        holdings=_holdings(lab, server) if new is not None else (),
    )


def of_end(lab: Lab, move: Move) -> EndFacts:
    """The facts of a confirm or revert of a move that waits for it."""
    server = catalog.find_server(lab.api, lab.cell_databases, move.server)
    with lab.cell_databases[server.cell].read() as session:
        migration = servers.migration(session, move.id)
    kept = _flavors(lab, server)
    return EndFacts(
        move=move.id[:SHORT],
        server=server,
        migration=migration.status if migration is not None else None,
        deleting=move.delete_requested,
        source=move.source_host,
        source_up=move.source_host not in stopped_workers(lab.layout),
        old=kept.get("old", kept["cur"]),
        current=kept["cur"],
        holdings=_holdings(lab, server),
    )


def _holdings(lab: Lab, server: catalog.Server) -> tuple[quotas.Holding, ...]:
    defaults = {quotas.CORES: lab.conf.quota.cores, quotas.RAM: lab.conf.quota.ram}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(lab.api.read())
        cells = [stack.enter_context(database.read()) for database in lab.cell_databases.values()]
        return tuple(quotas.holdings(api, cells, project=server.project, user=server.user, defaults=defaults))


def _flavors(lab: Lab, server: catalog.Server) -> dict[str, catalog.Flavor]:
    """The server's own copies of its flavors, those that there are of ``cur``, ``old`` and ``new``."""
    with lab.cell_databases[server.cell].read() as session:
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
