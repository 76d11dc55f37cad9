"""Revert of a move into another cell: the server goes back to its source, and its rows in the other cell are deleted.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        # Because a change by a user must be found before two copies are visible.
        crossing_back.HandOverTarget,
        # Because the mapping must name a visible copy at every instant, both are visible up to `hide_target`.
        crossing_back.ShowSource,
        crossing_back.SwitchMapping,
        crossing_back.CarryLateWrites,
        crossing_back.HideTarget,
        reverting.StartGuest,
        # Because the revert may be undone until `start_guest` is done, and the undo starts the destination's guest.
        host.DiscardDestination,
        # Because others may use the destination's room only after it is clean.
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        # Because these rows tell whose the files on the destination are, as long as any lie there.
        crossing_back.RemoveTargetRecords,
        moved_images.DeleteKeptImages,
        # Because a user may ask for the next operation as soon as this step has written.
        revert.SettleRecords,
    ),
    no_return=reverting.StartGuest,
)

GRAPHS: Final = (CROSS_CELL_REVERT, older(CROSS_CELL_REVERT, moved_images.DeleteKeptImages))
"""Every version that flows may run by; version 1 deletes no images."""
