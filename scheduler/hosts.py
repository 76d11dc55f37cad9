"""What the databases know of the hosts when a destination is chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import absence
from droveway.persistence.nova import api
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

_MAPPED: Final = sa.select(api.CellMapping.name, api.HostMapping.host, api.CellMapping.disabled).join(
    api.HostMapping, api.HostMapping.cell_id == api.CellMapping.id
)
_MAPPED_SERVERS: Final = (
    sa.select(api.InstanceMapping.instance_uuid)
    .join(api.CellMapping, api.CellMapping.id == api.InstanceMapping.cell_id)
    .where(api.CellMapping.name == sa.bindparam("cell"), api.InstanceMapping.instance_uuid.in_(_SERVERS))
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
"""Host → server group → servers."""


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
    """Whether its cell's database does not answer: beside its names nothing is known of it then."""
    ineligible: str = ""
    """Why it is to take no servers for what is known of its worker; empty when nothing speaks against it."""
    zone: str = DEFAULT_ZONE
    zone_aggregates: frozenset[str] = frozenset()
    """The aggregates that put the host into its zone."""
    aggregates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The metadata of every aggregate that it is in, by the aggregate's uuid."""
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Server group → its servers that live here."""
    moving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Server group → its servers with a migration from or to here that has not ended.

    One at verifying is among them on its source too, so that its revert breaks no policy: as in Nova's late check.
    """


def host_states(
    api_session: orm.Session,
    cell_sessions: Mapping[str, orm.Session],
    up_hosts: Collection[str],
    ineligible: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    groups: Collection[str] | None = None,
    home: str = "",
) -> list[HostState]:
    """Every host of every cell, by name and cell.

    ``up_hosts`` are those whose workers are registered, ``ineligible`` has, by cell, the reason against each that is to
    take no server; ``groups`` are the server groups whose members are looked for, None all of the cloud.  A database
    that does not answer is raised only of the ``home`` cell.
    """
    aggregates = _aggregates(api_session)
    members = _group_members(api_session, groups)
    mapped: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in api_session.execute(_MAPPED):
        mapped[row.name][row.host] = bool(row.disabled)
    found: list[HostState] = []
    for cell, session in sorted(cell_sessions.items()):
        try:
            living, moving = _members(session, members)
            nodes = session.execute(_NODES).all()
        except sa.exc.DBAPIError as error:
            if cell == home or absence(error) is None:
                raise
            found += _unreached(api_session, cell, mapped[cell], members)
            continue
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
    return sorted(found, key=lambda state: (state.host, state.cell))


def _unreached(
    session: orm.Session, cell: str, hosts: Mapping[str, bool], groups: Mapping[str, str]
) -> Iterator[HostState]:
    """The hosts of a cell that does not answer.

    Which of them has a server that is mapped there nobody knows, so that each counts as a home of its group.
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
    """The host's availability zone, as Nova has it: one that an aggregate gives, else its default."""
    return _zone(_aggregates(session, host).get(host, {}))


def _zone(aggregates: Mapping[str, Mapping[str, str]]) -> str:
    """Nova lets a host be in one zone only; of several the oldest aggregate's goes."""
    return next((metadata[_ZONE] for metadata in aggregates.values() if _ZONE in metadata), DEFAULT_ZONE)


def _aggregates(session: orm.Session, only: str | None = None) -> dict[str, dict[str, dict[str, str]]]:
    """Host → uuid of each of its aggregates, oldest first → its metadata."""
    rows = session.execute(_AGGREGATES) if only is None else session.execute(_AGGREGATES_OF, {"host": only})
    found: dict[str, dict[str, dict[str, str]]] = {}
    for host, uuid, key, value in rows:
        metadata = found.setdefault(str(host), {}).setdefault(str(uuid), {})
        if key is not None:
            metadata[key] = value
    return found


def _group_members(session: orm.Session, groups: Collection[str] | None) -> dict[str, str]:
    """Server → the uuid of its group."""
    if groups is None:
        rows = session.execute(_GROUPS)
    elif groups:
        rows = session.execute(_GROUPS_NAMED, {"groups": list(groups)})
    else:
        return {}
    return {str(server): group for server, group in rows}


def _members(session: orm.Session, groups: Mapping[str, str]) -> tuple[_Places, _Places]:
    """Where the groups' servers of a cell live, and where those are that are being moved."""
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
