"""Reads what a port asks of Placement, and which providers give it on the port's host.

Neutron's ``resource_request`` says the one, the key ``allocation`` of a binding's profile the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

ALLOCATION: Final = "allocation"
"""The key of a binding's profile that names the providers."""

_BANDWIDTH: Final = "NET_BW_"
"""Begins the resource classes of bandwidth."""


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Asks one provider for resources: bandwidth in kbit/s, packet rates in 1,000 packets a second."""

    id: str
    """As Neutron names it; that of the port in the legacy format."""
    resources: dict[str, int]
    """Resource class → amount."""
    required: tuple[str, ...]
    """The traits that the provider must have."""


class PortResources(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all that one port asks for."""

    groups: tuple[ResourceGroup, ...]
    same_subtree: tuple[str, ...] = ()
    """The groups whose providers have to be in one subtree of a host."""
    legacy: bool = False
    """Whether Neutron lacks the extension port-resource-request-groups, so that a port has one group and no more."""

    def allocation(self, mappings: Mapping[str, Sequence[str]]) -> str | dict[str, str] | None:
        """Name the provider of each group as a profile does; ``mappings`` are those of an allocation request.

        None where one of the groups has no provider in them.
        """
        found = self.providers(mappings)
        return next(iter(found.values())) if found and self.legacy else found

    def providers(self, mappings: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
        """Read group → provider from an allocation request's ``mappings``; None where one of the groups has none."""
        if any(not mappings.get(group.id) for group in self.groups):
            return None
        return {group.id: mappings[group.id][0] for group in self.groups}

    def renamed(self, asked: PortResources, named: Mapping[str, str]) -> str | dict[str, str] | None:
        """Name as a profile does who gives this to a port that ``asked`` for other amounts before.

        ``named``: group → provider of what it asked for.  Neutron gives a group of other amounts another id.  None
        where nobody gave anything of the kind.
        """
        givers = {_asks_bandwidth(group): named[group.id] for group in asked.groups if group.id in named}
        found = {group.id: givers[kind] for group in self.groups if (kind := _asks_bandwidth(group)) in givers}
        if self.legacy:
            return next(iter(found.values()), None)
        return found or None

    def named(self, allocation: str | Mapping[str, str] | None) -> dict[str, str]:
        """Read a profile's ``allocation``: group → provider, of those groups for which it names one.

        A single provider, as Neutron had it before there were groups, is that of the bandwidth.
        """
        if isinstance(allocation, str):
            return {group.id: allocation for group in self.groups if self.legacy or _asks_bandwidth(group)}
        return {group.id: allocation[group.id] for group in self.groups if allocation and group.id in allocation}

    def held(self, allocation: str | Mapping[str, str] | None) -> dict[str, dict[str, int]]:
        """Return what the port holds by a profile's ``allocation``: provider → resource class → amount."""
        found: dict[str, Counter[str]] = {}
        named = self.named(allocation)
        for group in self.groups:
            if group.id in named:
                found.setdefault(named[group.id], Counter()).update(group.resources)
        return {provider: dict(amounts) for provider, amounts in found.items()}


def held_together(
    holdings: Iterable[tuple[PortResources, str | Mapping[str, str] | None]],
) -> dict[str, dict[str, int]]:
    """Add up what ports hold: what each asks for, and the ``allocation`` that names who gives it.

    Return provider → resource class → amount.
    """
    found: dict[str, Counter[str]] = {}
    for asks, allocation in holdings:
        for provider, amounts in asks.held(allocation).items():
            found.setdefault(provider, Counter()).update(amounts)
    return {provider: dict(amounts) for provider, amounts in found.items()}


def asked_by(port: str, request: Mapping[str, Any] | None) -> PortResources | None:
    """Read the ``resource_request`` of a port; None for a port that asks for nothing."""
    if not request:
        return None
    if "request_groups" not in request:
        return PortResources(groups=(_group(port, request),), legacy=True)
    groups = tuple(_group(group["id"], group) for group in request["request_groups"])
    return PortResources(groups=groups, same_subtree=tuple(request.get("same_subtree") or ())) if groups else None


def _asks_bandwidth(group: ResourceGroup) -> bool:
    return any(name.startswith(_BANDWIDTH) for name in group.resources)


def _group(name: str, told: Mapping[str, Any]) -> ResourceGroup:
    return ResourceGroup(id=name, resources=dict(told["resources"]), required=tuple(told.get("required") or ()))
