"""Reads everything that an audit compares, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from droveway.audit.read import journal as read_journal
from droveway.audit.read import nova as read_nova
from droveway.audit.read import services as read_services
from droveway.audit.records import FlowRow, HostsSeen, MigrationRow, MoveRow, Node, ServerRow, UnreadCell
from droveway.audit.snapshot import Snapshot
from droveway.clients.cloud import Cloud
from droveway.clients.network import RESOURCE_REQUEST
from droveway.persistence.database import Database, DatabaseAway, absence
from droveway.persistence.journal import cells_down, kinds
from droveway.persistence.journal.states import UNDONE, State
from droveway.persistence.nova import catalog
from droveway.persistence.nova.cells import Cells
from droveway.workers.hypervisors import guests_log

_OVER: Final = (State.DONE, *UNDONE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The databases, the services and the hosts of one installation."""

    api: Database
    cells: Cells
    journal: Database
    cloud: Cloud
    """The services; images are not compared when there is no image service."""
    read_hosts: Callable[[], HostsSeen]
    """Reads what the hosts have, see `droveway.audit.read.hosts`."""
    guests_log: Path | None = None
    """The log of all sandbox guests; None outside labs."""


def take(sources: Sources) -> Snapshot:
    """Read everything once; raises what databases and services raise when they cannot be read.

    A host or a cell that cannot be read is recorded as such. The journal is read first, so that an open flow explains
    what its move does while the rest is read.
    """
    with sources.journal.read() as session:
        moves = read_journal.moves(session)
        flows = read_journal.flows(session)
        open_steps = read_journal.open_steps(session)
        begun = read_journal.begun(session)
        intents = read_journal.intents(session)
        debts = read_journal.debts(session)
        checksums = read_journal.checksums(session)
        claimed = read_journal.claimed(session)
        declared = cells_down.find(session)
    with sources.api.read() as session:
        mappings, requests = read_nova.mappings(session), read_nova.requests(session)
    asked = _asked(moves, flows)
    without_action = {move.id for move in asked.values() if move.state is State.DONE}
    without_failed_action: set[str] = set()
    looks = [read_cell(sources.cells, name, asked, declared) for name in sources.cells.names()]
    read = [look for look in looks if isinstance(look, CellRows)]
    unread = tuple(look for look in looks if isinstance(look, UnreadCell))
    servers = [row for look in read for row in look.servers]
    down = frozenset[str]().union(*(look.down for look in read))
    for look in read:
        without_action -= {asked[request].id for request in look.actions}
        without_failed_action |= {asked[request].id for request, failed in look.actions.items() if not failed}
    for cell in unread:
        if cell.down:
            down |= frozenset(catalog.hosts_of(sources.api, cell.name))
    cloud = sources.cloud
    providers, allocations = read_services.placement(cloud.placement)
    seen = sources.read_hosts()
    log = sources.guests_log
    ports = read_services.ports(cloud.network, {row.uuid for row in servers})
    return Snapshot(
        cells=tuple(look.name for look in read),
        servers=tuple(servers),
        migrations=tuple(row for look in read for row in look.migrations),
        nodes=tuple(
            dataclasses.replace(node, reserved=read_services.reserved(cloud.placement, node.uuid))
            if node.uuid in providers
            else node
            for look in read
            for node in look.nodes
        ),
        mappings=mappings,
        requests=requests,
        moves=moves,
        flows=flows,
        open_steps=open_steps,
        begun=begun,
        intents=intents,
        debts=debts,
        providers=providers,
        allocations=allocations,
        consumers=read_services.consumers(
            cloud.placement, allocations.keys() & {*(row.uuid for row in servers), *(move.id for move in moves)}
        ),
        ports=ports,
        shows_requests=any(port.resources for port in ports) or cloud.network.has_extension(RESOURCE_REQUEST),
        attachments=read_services.attachments(cloud.volumes),
        images=None
        if cloud.images is None
        else read_services.images(
            cloud.images, {row.shelved_image for row in servers if row.shelved_image is not None}
        ),
        hosts=seen.hosts,
        stores=seen.stores,
        overlaps=tuple(guests_log.overlaps(log)) if log is not None else (),
        unseen=seen.unseen,
        digests=seen.digests,
        checksums=checksums,
        commands=seen.commands,
        claimed=claimed,
        without_action=frozenset(without_action),
        without_failed_action=frozenset(
            without_failed_action - {move.id for move in moves if move.state is State.DONE}
        ),
        down=down,
        unread_cells=unread,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellRows:
    """What was read of one cell."""

    name: str
    servers: tuple[ServerRow, ...]
    migrations: tuple[MigrationRow, ...]
    nodes: tuple[Node, ...]
    actions: Mapping[str, bool]
    """The requests of its servers that have an instance action there, each with whether the action has failed."""
    down: frozenset[str]


def read_cell(
    cells: Cells, name: str, asked: Mapping[str, MoveRow], declared: Mapping[str, str]
) -> CellRows | UnreadCell:
    """Read one cell; ``asked`` maps the requests of flows to moves, ``declared`` says which cells are declared down.

    Raises what the database raises, unless it is away.
    """
    database = cells.database(name)
    try:
        with database.read() as session:
            found = read_nova.servers(session, name)
            there = {row.uuid for row in found}
            return CellRows(
                name=name,
                servers=found,
                migrations=read_nova.migrations(session, name),
                nodes=read_nova.nodes(session, name),
                actions=read_nova.actions(
                    session, {request for request, move in asked.items() if move.server in there}
                ),
                down=read_nova.down(session),
            )
    except sa.exc.DBAPIError as error:
        if absence(error) is None:
            raise
    try:
        database.require(f"of cell {name}")
        why = "its database went away while it was read"
    except DatabaseAway as error:
        why = str(error)
    return UnreadCell(name=name, why=why, down=declared.get(name, ""))


def _asked(moves: Iterable[MoveRow], flows: Iterable[FlowRow]) -> dict[str, MoveRow]:
    """Map the request ids of flows to their moves, for ended moves that leave only an instance action in Nova.

    Of each server only the last move is looked at.
    """
    last = {move.server: move for move in moves}
    over = {move.id: move for move in last.values() if move.state in _OVER and _is_known_by_its_action(move.kind)}
    return {f"req-{flow.uuid}": over[flow.move] for flow in flows if flow.move in over}


def _is_known_by_its_action(kind: str) -> bool:
    """Say whether a move of this kind leaves an instance action and no migration: only the action shows its end."""
    record = kinds.of(kind)
    return not record.has_migration and record.leaves_known_rows
