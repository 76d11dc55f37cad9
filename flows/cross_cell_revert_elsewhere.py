"""Revert of a move into another cell whose source is dead: another host of the source's cell gets the server."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations, moved_images, reverting, source_hosts, volumes
from droveway.flows.steps.hosts import elsewhere, host
from droveway.flows.steps.records import crossing_back, revert
from droveway.persistence.journal import kinds

CROSS_CELL_REVERT_ELSEWHERE: Final = Graph(
    kind_record=kinds.CROSS_CELL_REVERT_ELSEWHERE,
    version=1,
    steps=(crossing_back.MarkReverting, crossing_back.CheckSourceRecords, source_hosts.ChooseSourceHost),
    tried=(
        source_hosts.Claim,
        elsewhere.CheckSource,
        reverting.ReservePorts,
        volumes.ReserveVolumes,
        reverting.StopGuest,
        host.ReleaseDestination,
        elsewhere.CopyDisks,
        elsewhere.FitDisks,
        elsewhere.MoveVolumes,
        reverting.MovePorts,
        elsewhere.PrepareSourceGuest,
        crossing_back.HandOverTarget,
        # From here to `hide_target` both copies are visible: the mapping names one of them at every instant.
        crossing_back.ShowSource,
        crossing_back.SwitchMapping,
        crossing_back.CarryLateWrites,
        crossing_back.HideTarget,
        elsewhere.StartGuest,
    ),
    no_return=elsewhere.StartGuest,
    after=(
        elsewhere.DiscardDestination,
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        crossing_back.RemoveTargetRecords,
        moved_images.DeleteKeptImages,
        elsewhere.KeepCopy,
        # A user may ask for the next move as soon as it is written.
        revert.SettleRecords,
    ),
)

GRAPHS: Final = (CROSS_CELL_REVERT_ELSEWHERE,)
"""Every version that flows may run by."""
