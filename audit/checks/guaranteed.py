"""Compares what ports ask of Placement with the providers in their bindings and with their server's allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import PortView
from droveway.audit.snapshot import Amounts, Phase, Snapshot, Standing
from droveway.clients.port_resources import ALLOCATION, PortResources

HEALS: Final = "droveway audit --heal"
"""The command that mends the allocations and bindings for ports of a server on a host."""

_BANDWIDTH: Final = "NET_BW_"
_NETWORK: Final = "NET_"
"""The beginning of the resource classes that only ports ask for."""

Held = Mapping[str, Amounts]
"""Maps each provider to amounts of resource classes."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find ports whose binding names no provider, or a provider of which the server has no allocation.

    Also find allocations of the server that differ from what its ports together ask of the provider.
    """
    ports: dict[str, list[tuple[PortView, PortResources]]] = {}
    for port in snapshot.ports:
        if port.resources is not None:
            ports.setdefault(port.server, []).append((port, port.resources))
    for standing in snapshot.standings.values():
        if standing.phase is Phase.MOVING or standing.is_being_deleted:
            continue
        its = ports.get(standing.server, []) if standing.placed else []
        held = held_by_ports(snapshot.allocations.get(standing.server, {}))
        wrong = [finding for port, asks in its for finding in _names(port, asks, standing, held)]
        # A port with a wrong provider makes the sums wrong too, and is reported once.
        yield from wrong or _sums(snapshot, standing, its, held)


def of_ports(resource_class: str) -> bool:
    """Say whether only ports ask for the resource class."""
    return resource_class.startswith(_NETWORK)


def held_by_ports(held: Held) -> dict[str, dict[str, int]]:
    """Return the part of a consumer's allocations that only ports ask for."""
    found = {
        provider: {name: amount for name, amount in amounts.items() if of_ports(name)}
        for provider, amounts in held.items()
    }
    return {provider: amounts for provider, amounts in found.items() if amounts}


def listed(amounts: Amounts) -> str:
    """Return the amounts as text for people."""
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) or "nothing"


def _names(port: PortView, asks: PortResources, standing: Standing, held: Held) -> Iterator[Finding]:
    told = port.profile.get(ALLOCATION)
    named = _named(port, asks)
    as_before = isinstance(told, str) and not asks.legacy
    if as_before:
        detail = (
            f"names the provider {told} alone, as before Neutron had groups; it should name a provider for each group"
        )
        yield _of_port(port, standing, f"the port {port.id} {detail}")
    for group in sorted(asks.groups, key=lambda each: each.id):
        provider = named.get(group.id)
        if provider is None and not as_before:
            detail = f"asks for {listed(group.resources)}, and its binding names nobody who gives it"
        elif provider is not None and not held.get(provider):
            detail = (
                f"asks for {listed(group.resources)}, and its binding names the provider {provider}, of which the "
                f"server {standing.name} holds nothing"
            )
        else:
            continue
        yield _of_port(port, standing, f"the port {port.id} {detail}")


def _named(port: PortView, asks: PortResources) -> Mapping[str, str]:
    """Return the provider of each group from the profile of the active binding.

    This does not use the code that writes profiles. An old profile names a single provider, which gives the bandwidth.
    """
    told = port.profile.get(ALLOCATION)
    if isinstance(told, str):
        return {
            group.id: told
            for group in asks.groups
            if asks.legacy or any(name.startswith(_BANDWIDTH) for name in group.resources)
        }
    return told or {}


def _of_port(port: PortView, standing: Standing, detail: str) -> Finding:
    return Finding(
        Kind.BINDING,
        port.id,
        detail,
        _mend(standing),
        standing.host or "",
        standing.server,
        standing.move_id,
        guaranteed=True,
    )


def _sums(
    snapshot: Snapshot, standing: Standing, ports: list[tuple[PortView, PortResources]], held: Held
) -> Iterator[Finding]:
    wanted: dict[str, Counter[str]] = {}
    for port, asks in ports:
        named = _named(port, asks)
        for group in asks.groups:
            # Each group has a provider here: one without has a finding of its own, and the sums are not compared then.
            wanted.setdefault(named[group.id], Counter()).update(group.resources)
    for provider in sorted(held.keys() | wanted.keys()):
        has, should = dict(held.get(provider, {})), dict(wanted.get(provider, {}))
        if has != should:
            yield Finding(
                Kind.ALLOCATION,
                standing.server,
                f"the server {standing.name} holds {listed(has)} of the provider {provider}, and its ports ask for "
                f"{listed(should)} of it",
                _mend(standing) if standing.placed else _unset(standing.server, provider),
                snapshot.host_of(provider) or "",
                standing.server,
                standing.move_id,
                guaranteed=True,
            )


def _unset(server: str, provider: str) -> str:
    return f"openstack resource provider allocation unset --provider {provider} {server}"


def _mend(standing: Standing) -> str:
    if standing.move is not None and standing.phase is Phase.VERIFYING:
        # Nova's heal_allocations does not know the migration's consumer, which has the source's allocation for a
        # revert.
        return f"droveway move settle {standing.move.short} --cell placement --reason TEXT"
    return HEALS
