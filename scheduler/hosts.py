"""Reads what Nova's databases say of every host when a destination is chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import absence
from droveway.persistence.nova import api, namesakes
from droveway.persistence.nova.cell import ComputeNode, Instance, Migration, Service
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS

DEFAULT_ZONE: Final = "nova"
"""The zone of a host that is in no aggregate with one; Nova's `default_availability_zone`."""

_ZONE: Final = "availability_zone"

_SERVERS: Final[sa.BindParameter[list[str]]] = sa.bindparam("servers", expanding=True)

# Made once: to make a statement takes longer than to carry it out.
_AGGREGATES: Final = (
    sa.select(api.AggregateHost.host, api.Aggregate.uuid, api.AggregateMetadata.key, api.AggregateMetadata.value)
    .join(api.Aggregate, api.Aggregate.id == api.AggregateHost.aggregate_id)
    .outerjoin(api.AggregateMetadata, api.AggregateMetadata.aggregate_id == api.Aggregate.id)
    .order_by(api.Aggregate.id)
)
_AGGREGATES_OF: Final = _AGGREGATES.where(api.AggregateHost.host == sa.bindparam("host"))

_MAPPED: Final = (
    sa.select(api.CELL_NAME.label("name"), api.HostMapping.host, api.CellMapping.disabled)
    .select_from(api.CellMapping)
    .join(api.HostMapping, api.HostMapping.cell_id == api.CellMapping.id)
)
_MAPPED_SERVERS: Final = (
    sa.select(api.InstanceMapping.instance_uuid)
    .join(api.CellMapping, api.CellMapping.id == api.InstanceMapping.cell_id)
    .where(sa.bindparam("cell") == api.CELL_NAME, api.InstanceMapping.instance_uuid.in_(_SERVERS))
)
_NODES: Final = (
    sa.select(
        ComputeNode.host, ComputeNode.hypervisor_hostname, ComputeNode.uuid, Service.forced_down, Service.disabled
    )
    .join(Service, (Service.host == ComputeNode.host) & (Service.binary == "nova-compute"))
    .where(ComputeNode.deleted == 0, Service.deleted == 0)
)
_GROUPS: Final = sa.select(api.InstanceGroupMember.instance_uuid, api.InstanceGroup.uuid).join(
    api.InstanceGroup, api.InstanceGroup.id == api.InstanceGroupMember.group_id
)
_GROUPS_NAMED: Final = _GROUPS.where(api.InstanceGroup.uuid.in_(sa.bindparam("groups", expanding=True)))
_HOMES: Final = sa.select(Instance.uuid, Instance.host).where(Instance.uuid.in_(_SERVERS), Instance.deleted == 0)
_MOVES: Final = sa.select(Migration.instance_uuid, Migration.source_compute, Migration.dest_compute).where(
    Migration.instance_uuid.in_(_SERVERS), Migration.deleted == 0, Migration.status.not_in(ENDED_MIGRATIONS)
)

_Places = dict[str, dict[str, frozenset[str]]]
"""Maps a host to the servers that it has of each server group."""


@dataclass(frozen=True, kw_only=True)
class HostState:
    """A host when a destination is chosen."""

    host: str
    cell: str
    node: str
    provider: str
    """The compute node's uuid, which is its provider's in Placement."""
    up: bool = True
    """Whether its worker is registered and nobody forced it down."""
    disabled: bool = False
    cell_disabled: bool = False
    """Whether its cell takes no new servers."""
    cell_away: bool = False
    """Whether its cell's database does not answer.

    Then only its name, its cell, ``cell_disabled`` and ``members`` are known, and it counts as down.
    """
    ineligible: str = ""
    """Why its worker may not take servers; empty when it may."""
    zone: str = DEFAULT_ZONE
    zone_aggregates: frozenset[str] = frozenset()
    """The aggregates that put the host into its zone."""
    aggregates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The metadata of every aggregate that it is in, by the aggregate's uuid."""
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Server group → its servers that live here."""
    moving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Server group → its servers with a migration from or to here that has not ended.

    A server whose move is verifying counts on its source too, so that its revert breaks no policy. Nova's late
    check counts it as well.
    """


def host_states(
    api_session: orm.Session,
    cell_sessions: Mapping[str, orm.Session],
    up_hosts: Collection[str],
    ineligible: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    groups: Collection[str] | None = None,
    home: str = "",
) -> list[HostState]:
    """Read every host that is mapped to its cell; the list is sorted by host, then by cell.

    ``up_hosts`` are the hosts whose workers are registered. ``ineligible`` maps a cell to its hosts that may take no
    server, each with the reason. ``groups`` are the server groups whose members are looked for; None means all groups.
    Raises SQLAlchemy's DBAPIError when the database of the ``home`` cell does not answer. The hosts of another cell
    that does not answer are in the list, with ``cell_away`` set. A host whose name stands in several cells, whether it
    is mapped there or not, may take no server.
    """
    aggregates = _aggregates(api_session)
    members = _group_members(api_session, groups)
    mapped: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in api_session.execute(_MAPPED):
        mapped[row.name][row.host] = bool(row.disabled)
    found: list[HostState] = []
    places: list[tuple[str, str]] = []
    for cell, session in sorted(cell_sessions.items()):
        try:
            living, moving = _members(session, members)
            nodes = session.execute(_NODES).all()
        except sa.exc.DBAPIError as error:
            if cell == home or absence(error) is None:
                raise
            found += _unreached(api_session, cell, mapped[cell], members)
            places += ((cell, host) for host in mapped[cell])
            continue
        places += ((cell, str(node.host)) for node in nodes)
        for node in nodes:
            if node.host not in mapped[cell]:
                continue
            host = str(node.host)
            its = aggregates.get(host, {})
            zone = _zone(its)
            found.append(
                HostState(
                    host=host,
                    cell=cell,
                    node=str(node.hypervisor_hostname),
                    provider=str(node.uuid),
                    up=host in up_hosts and not node.forced_down,
                    disabled=bool(node.disabled),
                    cell_disabled=mapped[cell][host],
                    ineligible=ineligible.get(cell, {}).get(host, ""),
                    zone=zone,
                    zone_aggregates=frozenset(uuid for uuid, metadata in its.items() if metadata.get(_ZONE) == zone),
                    aggregates=its,
                    members=living.get(host, {}),
                    moving=moving.get(host, {}),
                )
            )
    twice = namesakes.several(places)
    found = [replace(each, ineligible=twice[each.host]) if each.host in twice else each for each in found]
    return sorted(found, key=lambda state: (state.host, state.cell))


def _unreached(
    session: orm.Session, cell: str, hosts: Mapping[str, bool], groups: Mapping[str, str]
) -> Iterator[HostState]:
    """Yield the hosts of a cell whose database does not answer.

    Only that database knows which host a server of the cell is on. So each host counts as having all the cell's servers
    of the groups.
    """
    mapped = session.scalars(_MAPPED_SERVERS, {"cell": cell, "servers": list(groups)}) if groups else ()
    members = _places([("", str(server)) for server in mapped], groups).get("", {})
    for host, disabled in hosts.items():
        yield HostState(
            host=host,
            cell=cell,
            node="",
            provider="",
            up=False,
            cell_disabled=disabled,
            cell_away=True,
            members=members,
        )


def zone_of(session: orm.Session, host: str) -> str:
    """Return the host's availability zone as Nova has it: the zone of an aggregate, else Nova's default zone."""
    return _zone(_aggregates(session, host).get(host, {}))


def _zone(aggregates: Mapping[str, Mapping[str, str]]) -> str:
    """Return the zone that the oldest of the aggregates with one gives; Nova lets a host be in one zone only."""
    return next((metadata[_ZONE] for metadata in aggregates.values() if _ZONE in metadata), DEFAULT_ZONE)


def _aggregates(session: orm.Session, only: str | None = None) -> dict[str, dict[str, dict[str, str]]]:
    """Map each host to the uuids of its aggregates, oldest first, and each of these to its metadata."""
    rows = session.execute(_AGGREGATES) if only is None else session.execute(_AGGREGATES_OF, {"host": only})
    found: dict[str, dict[str, dict[str, str]]] = {}
    for host, uuid, key, value in rows:
        metadata = found.setdefault(str(host), {}).setdefault(str(uuid), {})
        if key is not None:
            metadata[key] = value
    return found


def _group_members(session: orm.Session, groups: Collection[str] | None) -> dict[str, str]:
    """Map each server to the uuid of its group."""
    if groups is None:
        rows = session.execute(_GROUPS)
    elif groups:
        rows = session.execute(_GROUPS_NAMED, {"groups": list(groups)})
    else:
        return {}
    return {str(server): group for server, group in rows}


def _members(session: orm.Session, groups: Mapping[str, str]) -> tuple[_Places, _Places]:
    """Return the hosts that the groups' servers of a cell are on, and the hosts that they are moving from and to."""
    if not groups:
        return {}, {}
    servers = {"servers": list(groups)}
    # A shelved server is on no host, and a migration may have no destination yet.
    living = [(host, str(server)) for server, host in session.execute(_HOMES, servers) if host]
    moving = [(host, str(server)) for server, *ends in session.execute(_MOVES, servers) for host in ends if host]
    return _places(living, groups), _places(moving, groups)


def _places(found: Iterable[tuple[str, str]], groups: Mapping[str, str]) -> _Places:
    places: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host, server in found:
        places[host][groups[server]].add(server)
    return {host: {group: frozenset(each) for group, each in held.items()} for host, held in places.items()}
