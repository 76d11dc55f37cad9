"""Revert: the server goes back to its source as it was; what the guest wrote to local disks since is discarded.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        # Because a revert without whole disks on the source must be refused while the guest runs.
        reverting.CheckSource,
        reverting.ReservePorts,
        volumes.ReserveVolumes,
        reverting.StopGuest,
        # Because a host must let go of a device before Cinder ends its export.
        host.ReleaseDestination,
        reverting.MoveVolumes,
        reverting.MovePorts,
        # Because in a shared directory the restored disks take the name of the destination's copy, nothing may use
        # that copy any more.
        restoring.RestoreDisks,
        host.PrepareSourceGuest,
        # Because whoever looks the server up must find the host that its guest runs on.
        revert.SwitchRecords,
        reverting.StartGuest,
        # Because the revert may be undone until `start_guest` is done, and the undo starts the destination's guest.
        host.DiscardDestination,
        # Because others may use the destination's room only after it is clean.
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        # Because a user may ask for the next operation as soon as this step has written.
        revert.SettleRecords,
    ),
    no_return=reverting.StartGuest,
)

GRAPHS: Final = (REVERT,)
"""Every version that flows may run by."""
