"""Why Placement offered no room on a host: each demand is asked for alone.  For people; no decision rests on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from droveway.clients.placement import Placement
from droveway.clients.port_resources import ResourceGroup
from droveway.scheduler.requests import DISABLED_TRAIT, MoveRequest, amounts, listed, of_ports


def reasons(placement: Placement, request: MoveRequest, providers: Collection[str]) -> dict[str, str]:
    """The demands that each of these roots does not meet, where one alone tells; by a query a demand, not a host."""
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
    """Tell what a port asks of one provider, whichever of a root's tree that is."""
    wanted = listed(group.resources)
    demands = [("resources", wanted), *(("required", trait) for trait in group.required)]
    traits = f" with {' and '.join(group.required)}" if group.required else ""
    return f"has no provider{traits} that has {wanted} left for a port", providers - placement.roots(*demands)
