"""Releases what a server holds in Placement for ports that were deleted, or detached from it, while it moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from droveway.clients.network import Port
from droveway.clients.placement import SERVER, ProviderResources
from droveway.clients.port_resources import ALLOCATION, held_together
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.steps.hosts import starting


def release(ctx: Context, request: Mapping[str, Any] | None) -> None:
    """Release what the server holds for ports that it had before the move and has no more.

    ``request`` is the allocation request by which a host was claimed for the server; None where the server holds again
    what it held before the move.  Neutron releases nothing for a port that goes.

    The allocation is never lowered below what the remaining ports ask for.  So a repeated call, which would take the
    same amounts away again, changes nothing.  If a remaining port does not name its providers, nothing is released: the
    audit finds and mends it.
    """
    asking = [(port.port, port.resources, port.profile) for port in before(ctx.move).ports if port.resources]
    if not asking:
        return
    found = {port.id: port for port in ctx.run.cloud.network.listed_ports(ctx.move.server)}
    gone = [
        (asks, profile.get(ALLOCATION) if request is None else asks.allocation(request.get("mappings") or {}))
        for port, asks, profile in asking
        if port not in found
    ]
    if gone and all(_names_all(port) for port in found.values()):
        stays = [(port.resources, port.profile.get(ALLOCATION)) for port in found.values() if port.resources]
        _lower(ctx, held_together(gone), held_together(stays))


def _names_all(port: Port) -> bool:
    """Tell whether the port says what it asks for, and its binding names a provider for each part of that."""
    if port.resources is None:
        return port.tells_request
    return len(port.resources.named(port.profile.get(ALLOCATION))) == len(port.resources.groups)


def _lower(ctx: Context, by: ProviderResources, least: ProviderResources) -> None:
    """Lower what the server holds ``by`` these amounts, but not below the ``least``.

    Raises `droveway.clients.placement.ConsumerChanged` where somebody else wrote it in between.
    """
    placement = ctx.run.cloud.placement
    found = placement.allocations(ctx.move.server)
    starting.require_not_evacuated(ctx)
    wanted: dict[str, dict[str, int]] = {}
    for provider, amounts in found.allocations.items():
        less, floor = by.get(provider, {}), least.get(provider, {})
        left = {
            name: min(amount, max(amount - less.get(name, 0), floor.get(name, 0))) for name, amount in amounts.items()
        }
        if any(left.values()):
            wanted[provider] = {name: amount for name, amount in left.items() if amount}
    if not found.allocations or wanted == found.allocations:
        return
    request = {"allocations": {provider: {"resources": amounts} for provider, amounts in wanted.items()}}
    with ctx.run.intent("placement", "release what ports that are gone held"):
        placement.rewrite(
            {ctx.move.server: (found, request, SERVER)}, project_id=found.project_id, user_id=found.user_id
        )
