"""Unshelve: a server that was shelved, here or by Nova, starts on a host of its cell from its image and its volumes.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        # Because a host that cannot bind a port must be found before a long copy.
        unbound_ports.BindPorts,
        unshelving.CopyDisks,
        host.FitDisks,
        # Because a full disk must be found while the volumes are only reserved.
        reserved_volumes.AttachVolumes,
        host.ConnectDestination,
        host.DefineGuest,
        # Because a nova-compute must find a row of its host for each guest that runs there.
        records.SwitchRecords,
        unshelving.StartGuest,
    ),
    no_return=unshelving.StartGuest,
    # Because only the image can bring the server back until its guest runs, the image is deleted late.
    after=(images.DeleteImages, keeping.KeepCopy, records.FinishRecords),
)

GRAPHS: Final = (UNSHELVE,)
"""Every version that flows may run by."""
