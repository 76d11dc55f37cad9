"""Unshelve in another cell: a server that was shelved starts on a host of another cell from its image and volumes.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import images, reserved_volumes, scheduling, shelved_allocations, unbound_ports
from droveway.flows.steps.hosts import host, keeping, unshelving
from droveway.flows.steps.records import crossing, crossing_back, crossing_offloaded
from droveway.flows.steps.records import unshelving as records
from droveway.persistence.journal import kinds

CROSS_CELL_UNSHELVE: Final = Graph(
    kind_record=kinds.CROSS_CELL_UNSHELVE,
    version=1,
    steps=(records.RecordBefore, records.MarkUnshelving, scheduling.ChooseDestinations),
    tried=(
        shelved_allocations.Claim,
        # Because it must be known that the rows can be copied before a host is asked for anything.
        crossing_offloaded.CopyRecords,
        host.CheckDestination,
        # Because a host that cannot bind a port must be found before a long copy.
        unbound_ports.BindPorts,
        unshelving.CopyDisks,
        host.FitDisks,
        # Because a full disk must be found while the volumes are only reserved.
        reserved_volumes.AttachVolumes,
        host.ConnectDestination,
        host.DefineGuest,
        # Because a change by a user must be found before two copies are visible.
        crossing_offloaded.HandOverSource,
        # Because the mapping must name a visible copy at every instant, both are visible up to `hide_source`.
        crossing_offloaded.ShowTarget,
        crossing_offloaded.SwitchMapping,
        crossing.CarryLateWrites,
        crossing_offloaded.HideSource,
        unshelving.StartGuest,
    ),
    no_return=unshelving.StartGuest,
    # Because only the image can bring the server back until its guest is known to run, the image is deleted late.
    after=(crossing_back.RemoveSourceRecords, images.DeleteImages, keeping.KeepCopy, records.FinishRecords),
)

GRAPHS: Final = (CROSS_CELL_UNSHELVE,)
"""Every version that flows may run by."""
