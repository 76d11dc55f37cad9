"""Makes the profile of a port's binding on each host of a move: it names who gives there what the port asks for.

Groups of resources are named as the port has them now: Neutron renames them where somebody changes its QoS policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from droveway.clients.port_resources import ALLOCATION
from droveway.flows.run import Context
from droveway.flows.steps.attached import AttachedPort


def profile_on(ctx: Context, port: AttachedPort, host: str) -> dict[str, Any]:
    """Return the profile of the port's binding on a host that the move leads to, or leads back to.

    On the source it is that of before the move. On any other host the providers are those that the move claimed there;
    where it claimed none for the port, which came later, the profile names none.
    """
    if host == ctx.move.source_host:
        return recorded(port)
    chosen = ctx.returning if ctx.returning is not None and host == ctx.returning.host else ctx.destination
    return claimed(port, chosen.request)


def recorded(port: AttachedPort) -> dict[str, Any]:
    """Return the port's profile as it was before the move, to the byte while the port asks for the same."""
    if port.resources is None or port.asks == port.resources:
        return port.profile
    named = port.resources.named(port.profile.get(ALLOCATION))
    return _naming(port, None if port.asks is None else port.asks.renamed(port.resources, named))


def claimed(port: AttachedPort, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the port's profile with the providers that an allocation request took for it."""
    if port.resources is None and port.asks is None:
        return port.profile
    mappings = request.get("mappings") or {}
    for asked in (port.asks, port.resources):
        if port.asks is not None and asked is not None and (named := asked.providers(mappings)) is not None:
            return _naming(port, port.asks.renamed(asked, named))
    return _naming(port, None)


def _naming(port: AttachedPort, allocation: str | dict[str, str] | None) -> dict[str, Any]:
    profile = {name: value for name, value in port.profile.items() if name != ALLOCATION}
    return profile if allocation is None else {**profile, ALLOCATION: allocation}
