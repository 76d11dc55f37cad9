"""Why a host cannot take a server: one function a rule, with the name of Nova's filter where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from droveway.scheduler.hosts import HostState
from droveway.scheduler.requests import MoveRequest

AFFINITY: Final = "affinity"
ANTI_AFFINITY: Final = "anti-affinity"

_AGGREGATE_SCOPE: Final = "aggregate_instance_extra_specs"
_OR: Final = "<or>"
_TRAIT: Final = "trait:"
_TENANTS: Final = "filter_tenant_id"

Rule = Callable[[MoveRequest, HostState, Sequence[HostState]], str | None]
"""Given the request, the host and all hosts: the reason against the host, or None when it passes."""


@dataclass(frozen=True)
class Rejection:
    """Which rule turned a host down, and why."""

    filter: str
    reason: str


def rejection(
    request: MoveRequest, host: HostState, hosts: Sequence[HostState], *, late: bool = False
) -> Rejection | None:
    """The first rule that the host does not pass; ``late``: of those that are asked again at the destination."""
    for name, rule in (GROUP_FILTERS if late else FILTERS).items():
        reason = rule(request, host, hosts)
        if reason is not None:
            return Rejection(name, reason)
    return None


def cell(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """A cell that the server may go to, that answers, and that takes new servers unless it is the server's own."""
    why = request.cells.get(host.cell)
    if why is None:
        return f"it is in cell {host.cell}"
    if why or host.cell == request.source_cell:
        return why or None
    if host.cell_disabled:
        return f"its cell {host.cell} is disabled"
    return f"the database of its cell {host.cell} does not answer" if host.cell_away else None


def ignore_hosts(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """The server's own host, unless the move may stay on it."""
    on_it = request.is_source(host.cell, host.host)
    return "the server is on it" if on_it and not request.allow_same_host else None


def compute(_request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Up and enabled, with a worker that may take servers and is able to."""
    if host.disabled:
        return "it is disabled"
    return (host.ineligible or None) if host.up else "it is down"


def availability_zone(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """A zone that was asked for binds."""
    if request.zone is None or host.zone == request.zone:
        return None
    return f"it is in zone {host.zone}, not {request.zone}"


def aggregate_extra_specs(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Each extra spec `aggregate_instance_extra_specs:KEY` is met by the metadata of one of the host's aggregates.

    The value, or one of those after `<or>`, has to be among the metadata's, which commas part. Unlike in Nova's filter
    a key without that scope is no demand, and of its operators only `<or>` is known.
    """
    for key, value in sorted(request.extra_specs.items()):
        scope, _, name = key.partition(":")
        if scope != _AGGREGATE_SCOPE:
            continue
        stored = (metadata[name].split(",") for metadata in host.aggregates.values() if name in metadata)
        has = {each.strip() for values in stored for each in values}
        if has.isdisjoint(each.strip() for each in str(value).split(_OR)):
            return f"none of its aggregates has {name}={value}"
    return None


def tenant_isolation(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Hosts of an aggregate that is kept for servers of certain projects (Nova's `filter_tenant_id`)."""
    if not request.rules.tenant_isolation:
        return None
    kept = {
        project.strip()
        for metadata in host.aggregates.values()
        for key, value in metadata.items()
        if key.startswith(_TENANTS)
        for project in value.split(",")
    } - {""}
    return None if not kept or request.project in kept else "its aggregate is kept for servers of other projects"


def isolated_aggregates(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Hosts of an aggregate that is kept for servers which require its traits (Nova's `isolate_aggregates`)."""
    lacking = sorted({trait for metadata in host.aggregates.values() for trait in isolating(request, metadata)})
    return f"its aggregate is kept for servers that require the trait {lacking[0]}" if lacking else None


def isolating(request: MoveRequest, metadata: Mapping[str, str]) -> set[str]:
    """The traits that an aggregate wants its servers to require, and this one does not."""
    if not request.rules.isolated_aggregates:
        return set()
    wanted = {
        key.removeprefix(_TRAIT) for key, value in metadata.items() if key.startswith(_TRAIT) and value == "required"
    }
    return wanted - request.required_traits


def anti_affinity(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """At most `max_server_per_host` of the group on one host, those counted that are on the way from or to it."""
    group = request.group
    if group is None or group.policy != ANTI_AFFINITY:
        return None
    others = _others(request, host.members) | _others(request, host.moving)
    if len(others) < group.max_server_per_host:
        return None
    return f"its anti-affinity group may have {group.max_server_per_host} on a host, and this one has {len(others)}"


def affinity(request: MoveRequest, host: HostState, hosts: Sequence[HostState]) -> str | None:
    """Where another server of the group lives; a lone member may go anywhere."""
    group = request.group
    if group is None or group.policy != AFFINITY:
        return None
    homes = [each for each in hosts if _others(request, each.members)]
    if not homes or any((each.cell, each.host) == (host.cell, host.host) for each in homes):
        return None
    return f"its affinity group is on {', '.join(request.place(each.cell, each.host) for each in homes)}"


GROUP_FILTERS: Final[dict[str, Rule]] = {
    "ServerGroupAntiAffinityFilter": anti_affinity,
    "ServerGroupAffinityFilter": affinity,
}
"""Those that Nova asks again at the destination, once it is claimed."""

FILTERS: Final[dict[str, Rule]] = {
    "Cell": cell,
    "IgnoreHosts": ignore_hosts,
    "ComputeFilter": compute,
    "AvailabilityZoneFilter": availability_zone,
    "AggregateInstanceExtraSpecsFilter": aggregate_extra_specs,
    "AggregateMultiTenancyIsolation": tenant_isolation,
    "IsolateAggregates": isolated_aggregates,
    **GROUP_FILTERS,
}


def _others(request: MoveRequest, members: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The other servers of the request's group among a host's."""
    group = request.group
    return members.get(group.uuid, frozenset()) - {request.server} if group else frozenset()
