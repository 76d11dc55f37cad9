"""Which of the hosts that pass is best: Nova's weighers, each spread over 0 to 1 and multiplied."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from droveway.clients.placement import Candidate
from droveway.conf.scheduler import WEIGHED
from droveway.scheduler.hosts import HostState
from droveway.scheduler.requests import MoveRequest

Option = tuple[HostState, Candidate]
Weigher = Callable[[MoveRequest, Option], float]

SOFT_AFFINITY: Final = "soft-affinity"
SOFT_ANTI_AFFINITY: Final = "soft-anti-affinity"


def weights(request: MoveRequest, options: Sequence[Option]) -> list[float]:
    """The weight of each option, in their order: the higher the better."""
    total = [0.0] * len(options)
    for name, weigher in WEIGHERS.items():
        shares = _spread([weigher(request, option) for option in options])
        for number, (share, (host, _candidate)) in enumerate(zip(shares, options, strict=True)):
            total[number] += share * _multiplier(request, name, host)
    return total


def _multiplier(request: MoveRequest, name: str, host: HostState) -> float:
    """The option's value, or the least that an aggregate of the host gives; one that is no number is not heeded."""
    option = f"{name}_weight_multiplier"
    found = []
    for metadata in host.aggregates.values():
        with contextlib.suppress(ValueError):
            found += [float(metadata[option])] if option in metadata else []
    return min(found, default=request.rules.multipliers.get(option, WEIGHED[name][1]))


def ram(_request: MoveRequest, option: Option) -> float:
    """Free memory in MiB."""
    return _free(option, "MEMORY_MB")


def cpu(_request: MoveRequest, option: Option) -> float:
    """Free virtual CPUs."""
    return _free(option, "VCPU")


def disk(_request: MoveRequest, option: Option) -> float:
    """Free disk in GiB."""
    return _free(option, "DISK_GB")


def soft_affinity(request: MoveRequest, option: Option) -> float:
    """How many servers of a soft-affinity group are here."""
    return _members(request, option, SOFT_AFFINITY)


def soft_anti_affinity(request: MoveRequest, option: Option) -> float:
    """The fewer servers of a soft-anti-affinity group are here the better."""
    return -_members(request, option, SOFT_ANTI_AFFINITY)


def cross_cell_move(request: MoveRequest, option: Option) -> float:
    """Whether the host is in the server's own cell, so that a move stays in it unless a filter leaves only others."""
    return 1.0 if option[0].cell == request.source_cell else -1.0


WEIGHERS: Final[dict[str, Weigher]] = {
    "ram": ram,
    "cpu": cpu,
    "disk": disk,
    "soft_affinity": soft_affinity,
    "soft_anti_affinity": soft_anti_affinity,
    "cross_cell_move": cross_cell_move,
}
"""By their names in `droveway.conf.scheduler`."""


def _free(option: Option, resource: str) -> float:
    host, candidate = option
    found = candidate.summaries.get(host.provider, {}).get("resources", {}).get(resource)
    return float(found["capacity"] - found["used"]) if found else 0.0


def _members(request: MoveRequest, option: Option, policy: str) -> float:
    group = request.group
    if group is None or group.policy != policy:
        return 0.0
    return float(len(option[0].members.get(group.uuid, frozenset()) - {request.server}))


def _spread(values: Sequence[float]) -> list[float]:
    """The values over 0 to 1; all 0 when there is nothing to choose between them."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]
