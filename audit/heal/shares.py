"""Chooses the providers that give a server's ports what they ask for: each provider gives a share.

It also says which allocations and bindings have to change until both agree with that choice. Of all ways to choose
providers, the one that the server's allocations fit best is taken. If several fit equally well, the one that the ports'
bindings name is taken. If that leaves more than one way, the choice is left to an operator.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from droveway.audit.checks.guaranteed import held_by_ports, listed, of_ports
from droveway.audit.records import PortView
from droveway.audit.snapshot import Amounts
from droveway.clients.network import ACTIVE, NORMAL
from droveway.clients.port_resources import ALLOCATION, PortResources, ResourceGroup
from droveway.errors import Conflict

_WAYS: Final = 4096
"""The largest number of ways to choose providers that is tried."""

Holds = Mapping[str, Amounts]
"""Maps each provider to amounts of resource classes."""


class Unsettled(Conflict):
    """The allocations and bindings for ports cannot be set right without a person; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """What a provider of a host can give."""

    uuid: str
    name: str
    parent: str | None
    traits: frozenset[str]
    room: Mapping[str, int]
    """The free amount of each resource class that the provider has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Home:
    """A server's host, with what the host's providers can give to the server's ports."""

    host: str
    offers: tuple[Offer, ...]
    """The providers in the host's tree."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The names of all providers, of other hosts too."""

    def name(self, provider: str) -> str:
        """Return a provider's name for people."""
        return self.names.get(provider, provider)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settlement:
    """The allocations that a server should have and the providers that its ports should name.

    ``changes`` and ``named`` have only what differs from now.
    """

    allocations: Mapping[str, Amounts]
    """All allocations that the server should have, that of the compute node included."""
    changes: Mapping[str, tuple[Amounts, Amounts]]
    """Maps each provider to the amounts that the server has of it for ports, and to those that it should have."""
    named: Mapping[str, str | Mapping[str, str]]
    """Maps each port to the new ``allocation`` of its binding's profile."""

    @property
    def done(self) -> bool:
        """Say whether nothing has to change."""
        return not self.changes and not self.named


class _Part(NamedTuple):
    """One group of one port, and the providers that could give what it asks for."""

    port: PortView
    asks: PortResources
    group: ResourceGroup
    able: Sequence[Offer]
    told: frozenset[str]
    """Those of the providers ``able`` that the binding names for the group.

    If the binding does not know the group's id, those that it names for any group count: Neutron may have changed the
    id since the port was bound.
    """


Way = tuple[Offer, ...]
"""One provider for each part."""


def settle(ports: Sequence[PortView], held: Holds, home: Home) -> Settlement:
    """Return what has to change until the server has what its ports ask for; raises `Unsettled` with the reason."""
    asking = [port for port in ports if port.resources is not None]
    for port in asking:
        _require_plain(port, home.host)
    parts = [part for port in asking for part in _parts(port, home)]
    way = _chosen(parts, held_by_ports(held), home)
    wanted = _sums(parts, way)
    now = held_by_ports(held)
    for offer in home.offers:
        _require_room(offer, now.get(offer.uuid, {}), wanted.get(offer.uuid, {}))
    return Settlement(
        allocations=_with(held, wanted),
        changes={
            provider: (now.get(provider, {}), wanted.get(provider, {}))
            for provider in sorted(now.keys() | wanted.keys())
            if now.get(provider) != wanted.get(provider)
        },
        named=dict(_renamed(asking, parts, way)),
    )


def text(settlement: Settlement, server: str, home: Home) -> str:
    """Return one sentence on what the settlement changes; ``server`` is the server's name."""
    held = [
        f"release {listed(old)} of {home.name(provider)}"
        if not new
        else f"hold {listed(new)} of {home.name(provider)} instead of {listed(old)}"
        for provider, (old, new) in settlement.changes.items()
    ]
    named = [
        f"let the binding of the port {port} name {_joined(home, allocation)}"
        for port, allocation in settlement.named.items()
    ]
    return "; ".join([*([f"let {server} {', '.join(held)}"] if held else []), *named])


def profile(port: Mapping[str, Any], allocation: str | Mapping[str, str]) -> dict[str, Any]:
    """Return a port's profile with this ``allocation`` and all its other keys."""
    return {**port, ALLOCATION: allocation if isinstance(allocation, str) else dict(allocation)}


def _require_plain(port: PortView, host: str) -> None:
    if port.vnic_type != NORMAL:
        raise Unsettled(
            f"the port {port.id} is of vnic type {port.vnic_type}, so its device on {host} decides which provider "
            f"gives what the port asks for: heal puts only ports of vnic type {NORMAL} right"
        )
    if port.bindings.get(host) != ACTIVE:
        raise Unsettled(f"the port {port.id} is not bound to {host}: openstack port set --host {host} {port.id}")


def _parts(port: PortView, home: Home) -> Iterator[_Part]:
    asks = port.resources
    assert asks is not None  # noqa: S101 - the caller looked
    told = port.profile.get(ALLOCATION)
    every = {told} if isinstance(told, str) else set((told or {}).values())
    named = asks.named(told)
    for group in asks.groups:
        able = [
            offer
            for offer in home.offers
            if offer.traits.issuperset(group.required) and offer.room.keys() >= group.resources.keys()
        ]
        if not able:
            traits = " and ".join(sorted(group.required)) or "any traits"
            raise Unsettled(
                f"no provider of {home.host} with {traits} gives {listed(group.resources)}, which the port {port.id} "
                f"asks for: let the host's agent report it, or move the server"
            )
        names = {named[group.id]} if group.id in named else every
        yield _Part(port, asks, group, able, frozenset(names & {offer.uuid for offer in able}))


def _chosen(parts: Sequence[_Part], held: Holds, home: Home) -> Way:
    """Return the only best way by the allocations and the bindings; raises `Unsettled` when there is none."""
    if math.prod(len(part.able) for part in parts) > _WAYS:
        raise Unsettled(
            f"there are more than {_WAYS} ways to divide what {home.host} can give among the ports: let their bindings "
            "name who gives it"
        )
    ranked = [
        (_rank(parts, way, held), way)
        for way in itertools.product(*(part.able for part in parts))
        if _is_together(parts, way, home)
    ]
    if not ranked:
        raise Unsettled(
            f"no providers of {home.host} in one subtree give what one port asks for: let the host's agent report such "
            "providers, or move the server"
        )
    least = min(rank for rank, _ in ranked)
    best = [way for rank, way in ranked if rank == least]
    for part, offers in zip(parts, zip(*best, strict=True), strict=True):
        names = sorted({offer.name for offer in offers})
        if len(names) > 1:
            raise Unsettled(
                f"{' and '.join(names)} could each give {listed(part.group.resources)} to the port {part.port.id}, and "
                "neither what the server holds nor the port's binding says which: let the binding's profile name it"
            )
    return best[0]


def _rank(parts: Sequence[_Part], way: Way, held: Holds) -> tuple[int, int]:
    """Return two counts that speak against this way of choosing; the way with the least counts is the best.

    The first count has each group for which the server holds too little of the provider that is chosen here. The second
    count has each group for which the port's binding names another provider.
    """
    wanted = _sums(parts, way)
    short = {
        provider
        for provider, amounts in wanted.items()
        if any(amount > held.get(provider, {}).get(name, 0) for name, amount in amounts.items())
    }
    astray = [part for part, offer in zip(parts, way, strict=True) if part.told and offer.uuid not in part.told]
    return sum(offer.uuid in short for offer in way), len(astray)


def _is_together(parts: Sequence[_Part], way: Way, home: Home) -> bool:
    """Say whether the providers of each port that asks for one subtree form such a subtree.

    That is so when one of these providers is at or above all the others.
    """
    parents = {offer.uuid: offer.parent for offer in home.offers}
    together: dict[str, set[str]] = {}
    for part, offer in zip(parts, way, strict=True):
        if part.group.id in part.asks.same_subtree:
            together.setdefault(part.port.id, set()).add(offer.uuid)
    return all(
        set.intersection(*({*_upwards(provider, parents)} for provider in own)) & own for own in together.values()
    )


def _upwards(provider: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    at: str | None = provider
    while at is not None:
        yield at
        at = parents.get(at)


def _sums(parts: Sequence[_Part], way: Way) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for part, offer in zip(parts, way, strict=True):
        found.setdefault(offer.uuid, Counter()).update(part.group.resources)
    return {provider: dict(amounts) for provider, amounts in found.items()}


def _require_room(offer: Offer, held: Amounts, wanted: Amounts) -> None:
    for name, amount in sorted(wanted.items()):
        more, left = amount - held.get(name, 0), max(offer.room[name], 0)
        if more > left:
            raise Unsettled(
                f"{offer.name} has {name} {left} left, and the server's ports lack {more} of it: make room there, or "
                "move the server"
            )


def _with(held: Holds, wanted: Holds) -> dict[str, dict[str, int]]:
    """Return the allocations ``held``, with those for ports replaced by the ``wanted`` ones."""
    found = {
        provider: {name: amount for name, amount in amounts.items() if not of_ports(name)}
        for provider, amounts in held.items()
    }
    for provider, amounts in wanted.items():
        found.setdefault(provider, {}).update(amounts)
    return {provider: amounts for provider, amounts in found.items() if amounts}


def _renamed(
    ports: Sequence[PortView], parts: Sequence[_Part], way: Way
) -> Iterator[tuple[str, str | Mapping[str, str]]]:
    for port in ports:
        mappings = {
            part.group.id: [offer.uuid] for part, offer in zip(parts, way, strict=True) if part.port.id == port.id
        }
        allocation = port.resources.allocation(mappings) if port.resources is not None else None
        if allocation is not None and port.profile.get(ALLOCATION) != allocation:
            yield port.id, allocation


def _joined(home: Home, allocation: str | Mapping[str, str]) -> str:
    providers = {allocation} if isinstance(allocation, str) else set(allocation.values())
    return " and ".join(sorted(home.name(provider) for provider in providers))
