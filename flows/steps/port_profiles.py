"""Makes the profile of a port's binding on each host of a move: it names who gives there what the port asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from droveway.clients.port_resources import ALLOCATION
from droveway.flows.before import PortBefore
from droveway.flows.run import Context


def profile_on(ctx: Context, port: PortBefore, host: str) -> dict[str, Any]:
    """Return the profile of the port's binding on a host that the move leads to, or leads back to.

    On the source it is that of before the move. On any other host the providers are those that the move claimed there;
    where it claimed none for the port, which came later, the profile names none.
    """
    if host == ctx.move.source_host:
        return port.profile
    chosen = ctx.returning if ctx.returning is not None and host == ctx.returning.host else ctx.destination
    return claimed(port, chosen.request)


def claimed(port: PortBefore, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the port's profile with the providers that an allocation request took for it."""
    if port.resources is None:
        return port.profile
    named = port.resources.allocation(request.get("mappings") or {})
    profile = {name: value for name, value in port.profile.items() if name != ALLOCATION}
    return profile if named is None else {**profile, ALLOCATION: named}
