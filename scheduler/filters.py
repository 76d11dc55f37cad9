"""Turns down the hosts that cannot take a server.

Each rule is one function. Its docstring says which hosts pass. Where Nova has a filter for a rule, `FILTERS` calls the
rule by the name of Nova's filter.
"""

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
    """Return the first rule that the host does not pass, or None.

    With ``late`` it only tries the rules that Nova repeats at the destination (`GROUP_FILTERS`), else all rules.
    """
    for name, rule in (GROUP_FILTERS if late else FILTERS).items():
        reason = rule(request, host, hosts)
        if reason is not None:
            return Rejection(name, reason)
    return None


def cell(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host in a cell that the server may go to.

    A cell other than the server's own also has to answer and to take new servers.
    """
    why = request.cells.get(host.cell)
    if why is None:
        return f"it is in cell {host.cell}"
    if why or host.cell == request.source_cell:
        return why or None
    if host.cell_disabled:
        return f"its cell {host.cell} is disabled"
    return f"the database of its cell {host.cell} does not answer" if host.cell_away else None


def ignore_hosts(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass every host but the server's own, which passes when the move may stay on it."""
    on_it = request.is_source(host.cell, host.host)
    return "the server is on it" if on_it and not request.allow_same_host else None


def compute(_request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host that is enabled and up, with a worker that may take servers."""
    if host.disabled:
        return "it is disabled"
    return (host.ineligible or None) if host.up else "it is down"


def availability_zone(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host in the availability zone that the server's owner asked for."""
    if request.zone is None or host.zone == request.zone:
        return None
    return f"it is in zone {host.zone}, not {request.zone}"


def aggregate_extra_specs(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host whose aggregates meet each extra spec `aggregate_instance_extra_specs:KEY` of the flavor.

    The metadata of an aggregate may hold several values, separated by commas. One of them has to be the extra spec's
    value or, where that begins with `<or>`, one of its values after `<or>`. Nova's filter also reads keys without that
    scope, and more operators.
    """
    for key, value in sorted(request.extra_specs.items()):
        scope, _, name = key.partition(":")
        if scope != _AGGREGATE_SCOPE:
            continue
        stored = (metadata[name].split(",") for metadata in host.aggregates.values() if name in metadata)
        has = {each.strip() for values in stored for each in values}
        wanted = str(value).strip()
        if has.isdisjoint(_alternatives(wanted) if wanted.startswith(_OR) else {wanted}):
            return f"none of its aggregates has {name}={value}"
    return None


def _alternatives(value: str) -> set[str]:
    return {each.strip() for each in value.split(_OR)} - {""}


def tenant_isolation(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host whose aggregates are not kept for other projects (Nova's `filter_tenant_id`)."""
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
    """Pass a host whose aggregates are not kept for servers with other traits (Nova's `isolate_aggregates`)."""
    lacking = sorted({trait for metadata in host.aggregates.values() for trait in isolating(request, metadata)})
    return f"its aggregate is kept for servers that require the trait {lacking[0]}" if lacking else None


def isolating(request: MoveRequest, metadata: Mapping[str, str]) -> set[str]:
    """Return the traits that the aggregate demands of its servers and that the request's server does not require."""
    if not request.rules.isolated_aggregates:
        return set()
    wanted = {
        key.removeprefix(_TRAIT) for key, value in metadata.items() if key.startswith(_TRAIT) and value == "required"
    }
    return wanted - request.required_traits


def anti_affinity(request: MoveRequest, host: HostState, _hosts: Sequence[HostState]) -> str | None:
    """Pass a host with fewer than `max_server_per_host` of the group; servers that are moving from or to it count."""
    group = request.group
    if group is None or group.policy != ANTI_AFFINITY:
        return None
    others = _others(request, host.members) | _others(request, host.moving)
    if len(others) < group.max_server_per_host:
        return None
    return f"its anti-affinity group may have {group.max_server_per_host} on a host, and this one has {len(others)}"


def affinity(request: MoveRequest, host: HostState, hosts: Sequence[HostState]) -> str | None:
    """Pass a host that another server of the group is on, or every host when the server is the only member."""
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
"""The filters that Nova asks again at the destination, once its resources are claimed."""

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
    """Return the other servers of the request's group among a host's ``members``."""
    group = request.group
    return members.get(group.uuid, frozenset()) - {request.server} if group else frozenset()
