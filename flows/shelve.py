"""Shelve: the server's root disk goes into an image, and nothing of the server stays on any host.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import images, reserved_volumes, shelved_allocations, unbound_ports, volumes
from droveway.flows.steps.hosts import shelving
from droveway.flows.steps.records import forward
from droveway.flows.steps.records import shelving as records
from droveway.persistence.journal import kinds

SHELVE: Final = Graph(
    kind_record=kinds.SHELVE,
    version=1,
    steps=(
        forward.RecordBefore,
        records.MarkShelving,
        # Because an image service that refuses the image must be found while the guest still runs.
        images.CreateImages,
        shelving.StopGuest,
        # Because the upload takes longest and fails most often, each step that gives something up comes later.
        shelving.UploadDisks,
        # Because a host must let go of a device before Cinder ends its export.
        shelving.ReleaseSource,
        # Because the volumes must never be free in between.
        volumes.ReserveVolumes,
        reserved_volumes.FreeVolumes,
        # Because a port must be bound to the host until the host has unplugged it.
        unbound_ports.UnbindPorts,
        # Because the rows must name the image before the disks are gone.
        records.RecordShelved,
        shelving.DiscardSource,
        # Because a program may unshelve as soon as it sees the new state, and the server must hold nothing then.
        shelved_allocations.ReleaseAllocation,
        records.SettleRecords,
    ),
    no_return=shelving.DiscardSource,
)

GRAPHS: Final = (SHELVE,)
"""Every version that flows may run by."""
