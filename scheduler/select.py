"""Chooses the best destinations from Placement's candidates and the known hosts.

The choice asks no service and no database, and has nothing random in it: the same arguments give the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from droveway.clients.placement import Candidate
from droveway.scheduler.filters import Rejection, rejection
from droveway.scheduler.hosts import HostState
from droveway.scheduler.requests import MoveRequest
from droveway.scheduler.weighers import weights

PLACEMENT: Final = "Placement"
"""The filter of a host that passed every other one and that Placement did not offer."""

MOST_STORED: Final = 100
"""How many of the hosts that were turned down are stored with a move, or with a plan, each with its reason."""


@dataclass(frozen=True)
class Destination:
    """A host that may be tried, with the allocation request that claims it."""

    cell: str
    host: str
    node: str
    provider: str
    request: dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """The destination and its alternates, best first, and the reason against each host that was turned down.

    The hosts that were turned down have the names that `MoveRequest.place` gives them. A host that passed and that
    ``max_attempts`` cut off is in neither list.
    """

    chosen: list[Destination]
    rejected: dict[str, Rejection]

    def with_reasons(self, reasons: Mapping[str, str]) -> Selection:
        """Return the same selection with other reasons against these hosts."""
        told = {host: replace(self.rejected[host], reason=reason) for host, reason in reasons.items()}
        return replace(self, rejected=self.rejected | told)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON of ``chosen`` (cell, host, node, provider, request) and ``rejected`` (filter, reason).

        Of the hosts that were turned down it has the first `MOST_STORED`.  ``more`` counts the others by their filter.
        """
        told = list(self.rejected.items())
        found = {
            "chosen": [asdict(each) for each in self.chosen],
            "rejected": {host: asdict(why) for host, why in told[:MOST_STORED]},
        }
        more = Counter(why.filter for _host, why in told[MOST_STORED:])
        return found | ({"more": dict(more)} if more else {})


def _no_offer(request: MoveRequest, host: HostState) -> str:
    if not request.is_source(host.cell, host.host):
        return "it has no room, or lacks what the flavor or image requires"
    # As in Nova (LP#1790204) the old allocation stands beside the new one, though the new one alone might fit.
    return (
        "a move on a server's own host holds the old and the new size there until it is confirmed, and both do not fit "
        "together, or the host lacks what the flavor or image requires"
    )


def select(request: MoveRequest, candidates: Sequence[Candidate], hosts: Sequence[HostState]) -> Selection:
    """Return at most ``max_attempts`` destinations, the heaviest first, equal ones by name.

    Where the request names a host, no other host is looked at.
    """
    # Placement lists a host once for each way to meet the request; like Nova, the first is taken.
    offers: dict[str, Candidate] = {}
    for candidate in candidates:
        offers.setdefault(candidate.provider, candidate)
    passed, rejected = [], {}
    for host in sorted(hosts, key=lambda state: (state.host, state.cell)):
        if request.target_host not in (None, host.host):
            continue
        why = rejection(request, host, hosts)
        if why is None and host.provider not in offers:
            why = Rejection(PLACEMENT, _no_offer(request, host))
        if why is None:
            passed.append((host, offers[host.provider]))
        else:
            rejected[request.place(host.cell, host.host)] = why
    ranked = sorted(zip(weights(request, passed), passed, strict=True), key=lambda item: (-item[0], item[1][0].host))
    chosen = [
        Destination(host.cell, host.host, host.node, host.provider, candidate.allocation_request)
        for _weight, (host, candidate) in ranked
    ]
    return Selection(chosen[: request.max_attempts], rejected)
