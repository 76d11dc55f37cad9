"""Weighs the hosts that passed the filters, as Nova does.

The values of each weigher are spread over 0 to 1 and multiplied by its configured multiplier. A host's weight is the
sum. In this module an option is a host that may be chosen, with Placement's candidate for it.
"""

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
    """Return the weight of each option, in their order: the higher, the better."""
    total = [0.0] * len(options)
    for name, weigher in WEIGHERS.items():
        shares = _spread([weigher(request, option) for option in options])
        for number, (share, (host, _candidate)) in enumerate(zip(shares, options, strict=True)):
            total[number] += share * _multiplier(request, name, host)
    return total


def _multiplier(request: MoveRequest, name: str, host: HostState) -> float:
    """Return the multiplier of a weigher for a host.

    It is the least that the metadata of the host's aggregates give, else the configured one. Metadata that is no number
    is passed over, as Nova does.
    """
    key = f"{name}_weight_multiplier"
    found = []
    for metadata in host.aggregates.values():
        with contextlib.suppress(ValueError):
            found += [float(metadata[key])] if key in metadata else []
    return min(found, default=request.rules.multipliers.get(key, WEIGHED[name][1]))


def ram(_request: MoveRequest, option: Option) -> float:
    """Return the free memory in MiB."""
    return _free(option, "MEMORY_MB")


def cpu(_request: MoveRequest, option: Option) -> float:
    """Return the free virtual CPUs."""
    return _free(option, "VCPU")


def disk(_request: MoveRequest, option: Option) -> float:
    """Return the free disk in GiB."""
    return _free(option, "DISK_GB")


def soft_affinity(request: MoveRequest, option: Option) -> float:
    """Count the servers of the soft-affinity group that are on the host."""
    return _members(request, option, SOFT_AFFINITY)


def soft_anti_affinity(request: MoveRequest, option: Option) -> float:
    """Count the servers of the soft-anti-affinity group on the host, negated: the fewer, the better."""
    return -_members(request, option, SOFT_ANTI_AFFINITY)


def cross_cell_move(request: MoveRequest, option: Option) -> float:
    """Return 1 for a host in the server's own cell and -1 for one in another.

    The default multiplier outweighs those of all other weighers. With it a move stays in its cell unless the filters
    leave only hosts of other cells.
    """
    return 1.0 if option[0].cell == request.source_cell else -1.0


WEIGHERS: Final[dict[str, Weigher]] = {
    "ram": ram,
    "cpu": cpu,
    "disk": disk,
    "soft_affinity": soft_affinity,
    "soft_anti_affinity": soft_anti_affinity,
    "cross_cell_move": cross_cell_move,
}
"""The weighers by their names in `droveway.conf.scheduler`."""


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
    """Spread the values over 0 to 1; all become 0 when they are equal."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]
