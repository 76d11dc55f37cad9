"""Writes into a Placement that was put back from an older copy what a move's last step left there.

The allocations of both consumers, the server and the migration, are written together, as moves write them.  If the move
is at a rest, the server gets for its ports what they ask for now.  Nothing is written when one of the consumers holds
something that no move of the server gave it: somebody else wrote that.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.network import Port
from droveway.clients.placement import (
    MIGRATION,
    SERVER,
    Allocations,
    Placement,
    ProviderResources,
    resources_of,
    without_ports,
)
from droveway.clients.port_resources import ALLOCATION, PortResources
from droveway.engines.operations import left
from droveway.engines.operations.left import Books, Left
from droveway.engines.site.site import Site
from droveway.errors import Refused, StepError
from droveway.flows.before import held_by_ports
from droveway.flows.stands import Side
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import objects, servers
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.printable import SHORT
from droveway.scheduler.requests import amounts

_REFUSALS: Final = ("allocation-conflict", "no-capacity")
"""Codes of writes that Placement did not take."""

_GROUP: Final = re.compile(r"resources[a-zA-Z0-9_-]+:(.+)")
"""The resource that a flavor asks for in a named request group."""

_NODES: Final = sa.select(ComputeNode.host, ComputeNode.uuid).where(
    ComputeNode.host.in_(sa.bindparam("hosts", expanding=True)), ComputeNode.deleted == 0
)
_EARLIER: Final = sa.select(Move.source_host, Move.dest_host).where(Move.server == sa.bindparam("server"))

Request = Mapping[str, Any]
"""Placement's allocation request, or the part of it that is written."""


@dataclasses.dataclass(frozen=True)
class _Consumer:
    """One of the two consumers of a move, with what it holds and what it should hold."""

    id: str
    kind: str
    whose: str
    found: Allocations
    wanted: Request

    @property
    def is_right(self) -> bool:
        return self.found.allocations == resources_of(self.wanted)

    @property
    def needs_writing(self) -> bool:
        """Tell whether to write it at all: Placement does not know a consumer that never held anything."""
        return bool(self.found.allocations or self.wanted["allocations"])


def write(site: Site, found: Left) -> list[str]:
    """Write the allocations that differ, and return what was changed; empty when nothing differed.

    Raises `droveway.errors.Refused` where the cell has the server on another host or with another flavor, and where one
    of the consumers holds something that no move of the server gave it.
    """
    move = found.move
    nodes = _nodes(site, found)
    with site.cells.database(found.mapped_cell).read() as session:
        _require_row(session, found)
    placement = site.cloud.placement
    held = {consumer: placement.allocations(consumer) for consumer in (move.server, move.id)}
    server, migration = _wanted(site, found, nodes, held.values())
    both = (
        _Consumer(move.server, SERVER, "the server", held[move.server], server),
        _Consumer(move.id, MIGRATION, "the migration", held[move.id], migration),
    )
    names = {node: host for host, node in nodes.items()}
    for each in both:
        _require_moves_own(placement, each, names, resources_of(server) | resources_of(migration), move)
    if all(each.is_right for each in both):
        return []
    owner = next((each.found for each in both if each.found.project_id), None)
    try:
        placement.rewrite(
            {each.id: (each.found, each.wanted, each.kind) for each in both if each.needs_writing},
            project_id=owner.project_id if owner is not None else found.record.project_id,
            user_id=owner.user_id if owner is not None else found.record.user_id,
        )
    except StepError as error:
        if error.error_code not in _REFUSALS:
            raise
        raise Refused(f"nothing was written for move {move.id[:SHORT]}: {error}") from None
    return [
        f"allocations of {each.whose}: {_text(each.found.allocations, names)} -> "
        f"{_text(resources_of(each.wanted), names)}"
        for each in both
        if not each.is_right
    ]


def _nodes(site: Site, found: Left) -> dict[str, str]:
    """Return host → provider for every host of the server's moves: an older copy may have an allocation on any."""
    with site.journal.read() as session:
        rows = session.execute(_EARLIER, {"server": found.move.server}).all()
    hosts = sorted({host for row in rows for host in row if host})
    nodes: dict[str, str] = {}
    for cell in sorted({found.cell_of(side) for side in (Side.SOURCE, Side.DESTINATION)} - {""}):
        if site.cells.away([cell]):
            raise Refused(f"the database of cell {cell} does not answer, and the move has hosts there: start it first")
        with site.cells.database(cell).read() as session:
            nodes |= {row.host: row.uuid for row in session.execute(_NODES, {"hosts": hosts})}
    return nodes


def _require_row(session: orm.Session, found: Left) -> None:
    """Raise Refused unless the cell that the server is mapped to has the server as the journal left it.

    In the middle of a flow the server may be on either host.  But while only the source's share is held, the server has
    to be on the source.
    """
    move, cell = found.move, found.mapped_cell
    row = session.scalar(sa.select(Instance).where(Instance.uuid == move.server, Instance.deleted == 0))
    if row is None:
        raise Refused(f"cell {cell} has no row of server {move.server_name}: put that database right first")
    left.require_own(session, found, row)
    present = servers.flavors(servers.extra_row(session, move.server))["cur"]
    sides = [(found.home, found.flavor)]
    if not found.rests:
        sides = [(found.host_of(Side.SOURCE), found.record.old_flavor)]
        sides.append((found.host_of(Side.DESTINATION), found.record.new_flavor))
    if found.books is Books.SOURCE:
        sides = sides[:1]
    if any(row.host == host and _sizes(present) == _sizes(flavor) for host, flavor in sides):
        return
    has, should = (objects.flavor_data(flavor).get("name") for flavor in (present, found.flavor))
    raise Refused(
        f"server {move.server_name} is on {row.host} with the flavor {has} in cell {cell}, and the journal "
        f"left it on {found.home} with {should}: if that database was put back too, settle it first with "
        f"--cell {cell}"
    )


def _sizes(flavor: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what of a flavor decides how much is held."""
    data = objects.flavor_data(dict(flavor))
    names = ("id", "vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap")
    return (*(data[name] for name in names), data.get("extra_specs") or {})


def _wanted(site: Site, found: Left, nodes: Mapping[str, str], held: Iterable[Allocations]) -> tuple[Request, Request]:
    """Return what the server and what the migration should hold."""
    nothing: Request = {"allocations": {}}
    if found.books is Books.NOTHING:
        return nothing, nothing
    source = _source(found, nodes, held)
    if found.books is Books.SOURCE:
        return source, nothing
    destination = _destination(site, found, nodes)
    return destination, source if found.books is Books.BOTH else nothing


def _destination(site: Site, found: Left, nodes: Mapping[str, str]) -> Request:
    """Return what the server should hold on the destination: what the move claimed there.

    At a rest the ports get what they ask for now, since somebody may have changed their policies since the claim.
    """
    if found.claimed is None:
        node = nodes[found.host_of(Side.DESTINATION)]
        claimed: Request = _request({node: _amounts(found, found.record.new_flavor)})
    else:
        node, claimed = found.claimed.provider, found.claimed.request
    if not found.rests:
        return claimed
    ports = site.cloud.network.listed_ports(found.move.server)
    if not all(port.tells_request for port in ports):
        return claimed
    becomes = {provider: Counter(amounts) for provider, amounts in without_ports(resources_of(claimed)).items()}
    for port in ports:
        if port.resources is not None:
            given = _given(site.cloud.placement, port, port.resources, found, claimed, node)
            for group in port.resources.groups:
                if group.id in given:
                    becomes.setdefault(given[group.id], Counter()).update(group.resources)
    return {**claimed, **_request({provider: dict(amounts) for provider, amounts in becomes.items()})}


def _given(
    placement: Placement, port: Port, asks: PortResources, found: Left, claimed: Request, node: str
) -> dict[str, str]:
    """Return which provider gives each request group of the port.

    It is the one that the port's binding names, if the port is bound on the destination.  Otherwise it is the one that
    the move claimed for a group of the same kind.
    """
    mappings = claimed.get("mappings") or {}
    before = [known.resources for known in found.record.ports if known.port == port.id]
    given: dict[str, str] = {}
    for asked in (asks, *before):
        if asked is not None and not given and (named := asked.providers(mappings)) is not None:
            given = asks.named(asks.allocation_after(asked, named))
    if port.host == found.host_of(Side.DESTINATION):
        for group, provider in asks.named(port.profile.get(ALLOCATION)).items():
            # A provider that is not of the destination is not used: the audit reports such a binding.
            if placement.has_provider(provider) and placement.root_of(provider) == node:
                given[group] = provider
    return given


def _source(found: Left, nodes: Mapping[str, str], held: Iterable[Allocations]) -> Request:
    """Return what is to be held on the source.

    If a consumer holds the right sum on the source already, it keeps what it holds: its disk may be with another
    provider.  Otherwise it is to hold the old flavor with the source's node as provider, and for its ports what was
    recorded before the move.
    """
    node, wanted = nodes[found.move.source_host], _amounts(found, found.record.old_flavor)
    of_ports = held_by_ports(found.record)
    for each in held:
        if node in each.allocations and _sum(each.allocations) == _sum({node: wanted, **of_ports}):
            return _request(each.allocations)
    return _request({node: wanted, **of_ports})


def _sum(allocations: ProviderResources) -> Counter[str]:
    total: Counter[str] = Counter()
    for resources in allocations.values():
        total.update(resources)
    return total


def _amounts(found: Left, flavor: dict[str, Any]) -> dict[str, int]:
    data = objects.flavor_data(flavor)
    total = Counter(amounts(data, boot_from_volume=found.record.boot_from_volume))
    for key, amount in (data.get("extra_specs") or {}).items():
        if (group := _GROUP.fullmatch(key)) is not None:
            total[group[1]] += int(amount)
    return dict(total)


def _request(allocations: ProviderResources) -> Request:
    return {"allocations": {provider: {"resources": resources} for provider, resources in allocations.items()}}


def _require_moves_own(
    placement: Placement, each: _Consumer, names: Mapping[str, str], wanted: Mapping[str, Any], move: Move
) -> None:
    unknown = sorted(each.found.allocations.keys() - names.keys() - wanted.keys())
    # What is held for a port is of a provider below the host's own.
    others = [provider for provider in unknown if placement.root_of(provider) not in names]
    if others:
        raise Refused(
            f"{each.whose} of move {move.id[:SHORT]} holds something of provider {others[0]}, to which no move of "
            f"{move.server_name} went: somebody else wrote that, so its allocations stay"
        )


def _text(allocations: ProviderResources, names: Mapping[str, str]) -> str:
    parts = [
        f"{', '.join(f'{name} {amount}' for name, amount in sorted(held.items()))} on {names.get(provider, provider)}"
        for provider, held in sorted(allocations.items())
    ]
    return " and ".join(parts) or "nothing"
