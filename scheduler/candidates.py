"""Asks Placement which hosts have room for a server, and chooses the destination among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from droveway.clients.placement import Placement
from droveway.errors import StepError
from droveway.scheduler.filters import isolating
from droveway.scheduler.hosts import HostState
from droveway.scheduler.reasons import reasons
from droveway.scheduler.requests import MoveRequest, query
from droveway.scheduler.select import PLACEMENT, Selection, select

_NAMED_HOSTS: Final = 8
"""How many hosts an error names at most: all hosts of a large cell would fill pages."""


def schedule(placement: Placement, host_states: Sequence[HostState], request: MoveRequest) -> Selection:
    """Choose the destinations of a move by one query for allocation candidates.

    Placement gets a second query where the flavor forbids traits, and further ones to say why it did not offer a host.
    Raises `droveway.errors.StepError` ``no-valid-host`` with the reason against each host, as Nova's NoValidHost.
    """
    if both := sorted(request.required_traits & request.forbidden_traits):
        raise StepError(
            f"no host can take the server {request.name}: its image requires the trait {both[0]}, which its flavor "
            "forbids; choose another flavor",
            code="no-valid-host",
        )
    named = [state for state in host_states if state.host == request.target_host]
    target = next((state for state in named if state.cell in request.cells), next(iter(named), None))
    if request.target_host is not None and target is None:
        raise StepError(
            f"the host {request.target_host} is in no cell: droveway host list shows the hosts",
            code="no-valid-host",
        )
    zone = {uuid for state in host_states if state.zone == request.zone for uuid in state.zone_aggregates}
    aggregates = {uuid: metadata for state in host_states for uuid, metadata in state.aggregates.items()}
    found = placement.candidates(
        query(
            request,
            target_provider=(target.provider or None) if target else None,
            zone_aggregates=zone,
            isolated_aggregates=[uuid for uuid, metadata in aggregates.items() if isolating(request, metadata)],
            unknown_traits=request.forbidden_traits - placement.known_traits(request.forbidden_traits),
        )
    )
    selection = _explained(placement, request, select(request, found, host_states), host_states)
    if not selection.chosen:
        raise StepError(_no_valid_host(request, selection), code="no-valid-host")
    return selection


def _explained(
    placement: Placement, request: MoveRequest, selection: Selection, host_states: Sequence[HostState]
) -> Selection:
    """Return the selection with a more exact reason against hosts that Placement did not offer.

    A host that meets each demand alone keeps the reason that `select` gave. So does the server's own host: the server's
    old and new size count there together.
    """
    places = {request.place(state.cell, state.host): state for state in host_states}
    unoffered = {
        place: places[place].provider
        for place, why in selection.rejected.items()
        if why.filter == PLACEMENT and not request.is_source(places[place].cell, places[place].host)
    }
    if not unoffered:
        return selection
    found = reasons(placement, request, set(unoffered.values()))
    told = {host: found[provider] for host, provider in unoffered.items() if provider in found}
    return selection.with_reasons(told)


def _no_valid_host(request: MoveRequest, selection: Selection) -> str:
    told = [f"{host}: {why.reason} ({why.filter})" for host, why in selection.rejected.items()]
    more = len(told) - _NAMED_HOSTS
    if more > 0:
        told[_NAMED_HOSTS:] = [f"and {more} more"]
    return (
        f"no host can take the server {request.name} ({'; '.join(told) or 'there is no host'}):"
        " free or enable a host, or choose another flavor"
    )
