"""Reads what a port asks of Placement, and which providers give it on the port's host.

Neutron's ``resource_request`` says what the port asks for. The key ``allocation`` of its binding's profile names the
providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

ALLOCATION: Final = "allocation"
"""The key of a binding's profile that names the providers."""

_BANDWIDTH: Final = "NET_BW_"
"""The beginning of the resource classes of bandwidth."""


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Asks one provider for resources: bandwidth in kbit/s, packet rates in 1,000 packets a second."""

    id: str
    """The group's id as Neutron gives it, or the port's id in the legacy format."""
    resources: dict[str, int]
    """The amount of each resource class."""
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
        """Return the value of ``allocation`` in a profile for these ``mappings`` of an allocation request.

        None when the mappings have no provider for one of the groups.
        """
        found = self.providers(mappings)
        return next(iter(found.values())) if found and self.legacy else found

    def providers(self, mappings: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
        """Return the provider of each group by an allocation request's ``mappings``; None when a group has none."""
        if any(not mappings.get(group.id) for group in self.groups):
            return None
        return {group.id: mappings[group.id][0] for group in self.groups}

    def allocation_after(self, asked: PortResources, named: Mapping[str, str]) -> str | dict[str, str] | None:
        """Return the value of ``allocation`` in a profile after the port's amounts have changed.

        ``asked`` is what the port asked for before, and ``named`` maps each of those groups to its provider. Neutron
        gives a group with other amounts another id. A new group takes the provider of the old group of its kind, and is
        left out when there was none. None when no group is left.
        """
        givers = {_asks_bandwidth(group): named[group.id] for group in asked.groups if group.id in named}
        found = {group.id: givers[kind] for group in self.groups if (kind := _asks_bandwidth(group)) in givers}
        if self.legacy:
            return next(iter(found.values()), None)
        return found or None

    def named(self, allocation: str | Mapping[str, str] | None) -> dict[str, str]:
        """Return the provider of each group that a profile's ``allocation`` names.

        Older Neutrons store a single provider. That one gives the bandwidth.
        """
        if isinstance(allocation, str):
            return {group.id: allocation for group in self.groups if self.legacy or _asks_bandwidth(group)}
        return {group.id: allocation[group.id] for group in self.groups if allocation and group.id in allocation}

    def held(self, allocation: str | Mapping[str, str] | None) -> dict[str, dict[str, int]]:
        """Return the amounts that the port has of each provider by a profile's ``allocation``."""
        found: dict[str, Counter[str]] = {}
        named = self.named(allocation)
        for group in self.groups:
            if group.id in named:
                found.setdefault(named[group.id], Counter()).update(group.resources)
        return {provider: dict(amounts) for provider, amounts in found.items()}


def held_together(
    holdings: Iterable[tuple[PortResources, str | Mapping[str, str] | None]],
) -> dict[str, dict[str, int]]:
    """Return the amounts that several ports have of each provider together.

    ``holdings`` has for each port what it asks for and the ``allocation`` of its profile.
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
