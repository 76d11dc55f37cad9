"""Shelve: the server's root disk goes into an image, and nothing of the server stays on any host."""

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
        # A service that takes no image is found out before the guest goes off.
        images.CreateImages,
        shelving.StopGuest,
        shelving.UploadDisks,
        shelving.ReleaseSource,
        # The volumes are never free in between.
        volumes.ReserveVolumes,
        reserved_volumes.FreeVolumes,
        unbound_ports.UnbindPorts,
        # The rows name the image before the disks go: whoever finds the server then can unshelve it.
        records.RecordShelved,
        shelving.DiscardSource,
        # Before the state changes: pollers unshelve at once, and the server must hold nothing then.
        shelved_allocations.ReleaseAllocation,
        records.SettleRecords,
    ),
    no_return=shelving.DiscardSource,
)

GRAPHS: Final = (SHELVE,)
"""Every version that flows may run by."""
