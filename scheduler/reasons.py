"""Finds out why Placement offered no room on a host, by asking for each demand alone.

The answers are for people only: no choice of a host depends on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from droveway.clients.placement import Placement
from droveway.clients.port_resources import ResourceGroup
from droveway.scheduler.requests import DISABLED_TRAIT, MoveRequest, amounts, listed, of_ports


def reasons(placement: Placement, request: MoveRequest, providers: Collection[str]) -> dict[str, str]:
    """Return for each root provider which demands it cannot meet, as a sentence.

    Placement gets one query for each demand, whatever the number of hosts. What the flavor demands of named groups of
    resources (``resources1:CLASS``) is not asked. A provider that meets each demand that is asked alone is left out.
    """
    found = defaultdict(list)
    for text, failing in _demands(placement, request, frozenset(providers)):
        for provider in failing:
            found[provider].append(text)
    return {provider: f"it {' and '.join(texts)}" for provider, texts in found.items()}


def _demands(
    placement: Placement, request: MoveRequest, providers: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for trait in sorted(request.required_traits):
        yield f"lacks the trait {trait}", providers - placement.roots(("required", trait))
    for trait in sorted({*request.forbidden_traits, DISABLED_TRAIT}):
        yield f"has the trait {trait}", providers & placement.roots(("required", trait))
    for resource, amount in sorted(amounts(request.flavor, boot_from_volume=request.boot_from_volume).items()):
        yield (
            f"has no room for {amount} {resource}",
            providers - placement.roots(("resources", f"{resource}:{amount}")),
        )
    groups = [group for port in request.ports for group in port.groups]
    lacking: set[str] = set()
    for group in groups:
        text, failing = _of_port(placement, group, providers)
        lacking |= failing
        yield text, failing
    if len(groups) > 1:
        able = placement.candidates([*of_ports(request.ports), ("group_policy", "none")])
        together = providers - lacking - {candidate.provider for candidate in able}
        yield "cannot give all that the ports ask for together", together


def _of_port(placement: Placement, group: ResourceGroup, providers: frozenset[str]) -> tuple[str, frozenset[str]]:
    """Return the sentence on what a port asks of a single provider, and the roots whose trees cannot give it."""
    wanted = listed(group.resources)
    demands = [("resources", wanted), *(("required", trait) for trait in group.required)]
    traits = f" with {' and '.join(group.required)}" if group.required else ""
    return f"has no provider{traits} that has {wanted} left for a port", providers - placement.roots(*demands)
