"""Unshelve in another cell: a server that was shelved starts on a host of another cell from its image and volumes."""

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
        # Before a host is asked for anything: a copy that cannot be made is the first to fail.
        crossing_offloaded.CopyRecords,
        host.CheckDestination,
        unbound_ports.BindPorts,
        unshelving.CopyDisks,
        host.FitDisks,
        reserved_volumes.AttachVolumes,
        host.ConnectDestination,
        host.DefineGuest,
        crossing_offloaded.HandOverSource,
        # From here to `hide_source` both copies are visible: the mapping names one of them at every instant.
        crossing_offloaded.ShowTarget,
        crossing_offloaded.SwitchMapping,
        crossing.CarryLateWrites,
        crossing_offloaded.HideSource,
        unshelving.StartGuest,
    ),
    no_return=unshelving.StartGuest,
    # The image outlives all else: it is what brings the server back while nobody knows whether the guest runs.
    after=(crossing_back.RemoveSourceRecords, images.DeleteImages, keeping.KeepCopy, records.FinishRecords),
)

GRAPHS: Final = (CROSS_CELL_UNSHELVE,)
"""Every version that flows may run by."""
