"""Confirm: the server stays where it is, and the source's copy goes."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations, endings, host

CONFIRM: Final = Graph(
    kind="confirm",
    version=1,
    steps=(
        endings.MarkConfirming,
        host.CheckDestinationCopy,
        host.CheckSource,
        host.DiscardSource,
        allocations.ReleaseSourceAllocation,
        endings.SettleConfirmed,
    ),
    no_return=host.DiscardSource,
)
