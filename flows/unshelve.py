"""Unshelve: a server that was shelved, here or by Nova, starts on a host of its cell from its image and its volumes."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import images, reserved_volumes, scheduling, shelved_allocations, unbound_ports
from droveway.flows.steps.hosts import host, keeping, unshelving
from droveway.flows.steps.records import unshelving as records
from droveway.persistence.journal import kinds

UNSHELVE: Final = Graph(
    kind_record=kinds.UNSHELVE,
    version=1,
    steps=(records.RecordBefore, records.MarkUnshelving, scheduling.ChooseDestinations),
    tried=(
        shelved_allocations.Claim,
        host.CheckDestination,
        unbound_ports.BindPorts,
        unshelving.CopyDisks,
        host.FitDisks,
        reserved_volumes.AttachVolumes,
        host.ConnectDestination,
        host.DefineGuest,
        # The rows name the host before the guest runs there: a nova-compute knows each guest that it finds.
        records.SwitchRecords,
        unshelving.StartGuest,
    ),
    no_return=unshelving.StartGuest,
    # The image outlives everything until the host has shown the server's own disks.
    after=(images.DeleteImages, keeping.KeepCopy, records.FinishRecords),
)

GRAPHS: Final = (UNSHELVE,)
"""Every version that flows may run by."""
