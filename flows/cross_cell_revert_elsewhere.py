"""Revert of a move into another cell whose source is dead: another host of the source's cell gets the server.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        # Because the copy gets the same directory name as the destination's disks.  If both hosts keep their servers in
        # one directory, the destination must have let go of its disks before.  `check_source` refuses such a host, but
        # it may not notice the sharing when the destination is dead.
        elsewhere.CopyDisks,
        elsewhere.FitDisks,
        elsewhere.MoveVolumes,
        reverting.MovePorts,
        elsewhere.PrepareSourceGuest,
        crossing_back.HandOverTarget,
        # Because the mapping must name a visible copy at every instant, both are visible up to `hide_target`.
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
        # Because these rows tell whose the files on the destination are, as long as any lie there.
        crossing_back.RemoveTargetRecords,
        moved_images.DeleteKeptImages,
        # Because an undo, which is possible until the guest's start, deletes only a copy that has the move's mark.
        elsewhere.KeepCopy,
        # Because a user may ask for the next operation as soon as this step has written.
        revert.SettleRecords,
    ),
)

GRAPHS: Final = (CROSS_CELL_REVERT_ELSEWHERE,)
"""Every version that flows may run by."""
