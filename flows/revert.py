"""Revert: the server goes back to its source as it was; what the guest wrote to local disks since is discarded."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations, reverting, volumes
from droveway.flows.steps.hosts import host, restoring
from droveway.flows.steps.records import revert
from droveway.persistence.journal import kinds

REVERT: Final = Graph(
    kind_record=kinds.REVERT,
    version=1,
    steps=(
        revert.MarkReverting,
        reverting.CheckSource,
        reverting.ReservePorts,
        volumes.ReserveVolumes,
        reverting.StopGuest,
        host.ReleaseDestination,
        reverting.MoveVolumes,
        reverting.MovePorts,
        restoring.RestoreDisks,
        host.PrepareSourceGuest,
        revert.SwitchRecords,
        reverting.StartGuest,
        host.DiscardDestination,
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        revert.SettleRecords,
    ),
    no_return=reverting.StartGuest,
)

GRAPHS: Final = (REVERT,)
"""Every version that flows may run by."""
