"""Revert of a move into another cell: the server goes back to its source, and its rows in the other cell go."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph, older
from droveway.flows.steps import allocations, moved_images, reverting, volumes
from droveway.flows.steps.hosts import host, restoring
from droveway.flows.steps.records import crossing_back, revert
from droveway.persistence.journal import kinds

CROSS_CELL_REVERT: Final = Graph(
    kind_record=kinds.CROSS_CELL_REVERT,
    version=2,
    steps=(
        crossing_back.MarkReverting,
        crossing_back.CheckSourceRecords,
        reverting.CheckSource,
        reverting.ReservePorts,
        volumes.ReserveVolumes,
        reverting.StopGuest,
        host.ReleaseDestination,
        reverting.MoveVolumes,
        reverting.MovePorts,
        restoring.RestoreDisks,
        host.PrepareSourceGuest,
        crossing_back.HandOverTarget,
        # From here to `hide_target` both copies are visible: the mapping names one of them at every instant.
        crossing_back.ShowSource,
        crossing_back.SwitchMapping,
        crossing_back.CarryLateWrites,
        crossing_back.HideTarget,
        reverting.StartGuest,
        host.DiscardDestination,
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        crossing_back.RemoveTargetRecords,
        moved_images.DeleteKeptImages,
        revert.SettleRecords,
    ),
    no_return=reverting.StartGuest,
)

GRAPHS: Final = (CROSS_CELL_REVERT, older(CROSS_CELL_REVERT, moved_images.DeleteKeptImages))
"""Every version that flows may run by; the first one is of moves that keep no images."""
