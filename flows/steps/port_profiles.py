"""Makes the profile of a port's binding on each host of a move.

A profile maps each group of resources that the port asks for to the provider of that group.  It uses the names that the
groups have now: when somebody changes the port's QoS policy, Neutron renames the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from droveway.clients.port_resources import ALLOCATION
from droveway.errors import DestinationFault
from droveway.flows.run import Context
from droveway.flows.steps.attached import AttachedPort

Write = Callable[[Mapping[str, Any]], None]
"""Writes a binding with the profile that it is given."""


def bind(ctx: Context, port: AttachedPort, host: str, write: Write) -> None:
    """Write the profile of the port's binding on a host that the move leads to, or leads back to.

    On the source it is the profile that the port had before the move.  On any other host it names the providers that
    the move claimed there, or none for a port that was attached after the claim.  Raises
    `droveway.errors.DestinationFault` where Neutron refuses it.
    """
    if host == ctx.move.source_host:
        write_recorded(port, write)
        return
    chosen = ctx.returning if ctx.returning is not None and host == ctx.returning.host else ctx.destination
    write(claimed(port, chosen.request))


def write_recorded(port: AttachedPort, write: Write) -> None:
    """Write the profile that the binding had before the move; if Neutron refuses it, write it without the providers.

    Neutron refuses a binding whose provider is gone.  The audit finds and heals what is missing.
    """
    profile = recorded(port)
    try:
        write(profile)
    except DestinationFault:
        if ALLOCATION not in profile:
            raise
        write({name: value for name, value in profile.items() if name != ALLOCATION})


def recorded(port: AttachedPort) -> dict[str, Any]:
    """Return the profile that the port had before the move.

    It is unchanged as long as the port asks for the same resources.  Otherwise its groups get their present names.
    """
    if port.resources is None or port.asks == port.resources:
        return port.profile
    named = port.resources.named(port.profile.get(ALLOCATION))
    return _naming(port, None if port.asks is None else port.asks.allocation_after(port.resources, named))


def claimed(port: AttachedPort, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the port's profile with the providers that an allocation request took for it."""
    if port.resources is None and port.asks is None:
        return port.profile
    mappings = request.get("mappings") or {}
    # The request names the groups as they were named when it was made: as they are now, or as they were recorded.
    for asked in (port.asks, port.resources):
        if port.asks is not None and asked is not None and (named := asked.providers(mappings)) is not None:
            return _naming(port, port.asks.allocation_after(asked, named))
    return _naming(port, None)


def _naming(port: AttachedPort, allocation: str | dict[str, str] | None) -> dict[str, Any]:
    profile = {name: value for name, value in port.profile.items() if name != ALLOCATION}
    return profile if allocation is None else {**profile, ALLOCATION: allocation}
