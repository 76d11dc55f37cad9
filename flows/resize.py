"""Resize and cold migrate within a cell: one graph, in which only flavor and host rules differ."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations, ports, scheduling, volumes
from droveway.flows.steps.hosts import copying, host
from droveway.flows.steps.records import forward
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Kind


def _forward(kind: Kind) -> Graph:
    return Graph(
        kind_record=kind,
        version=1,
        steps=(
            forward.RecordBefore,
            forward.Accept,
            forward.RecordMigration,
            scheduling.ChooseDestinations,
        ),
        # Everything that needs the destination is tried anew on the next alternate, start included: what fails
        # before it restarts the source's guest first.
        tried=(
            allocations.Claim,
            forward.RecordDestination,
            host.CheckDestination,
            host.FindStorage,
            ports.ReservePorts,
            volumes.ReserveVolumes,
            forward.MarkMigrating,
            host.StopGuest,
            host.ReleaseSource,
            host.SetAside,
            copying.CopyDisks,
            host.FitDisks,
            volumes.MoveVolumes,
            ports.MovePorts,
            host.ConnectDestination,
            host.DefineGuest,
            forward.SwitchRecords,
            host.StartGuest,
        ),
        no_return=host.StartGuest,
        after=(forward.SaveRequestSpec, forward.FinishRecords),
    )


RESIZE: Final = _forward(kinds.RESIZE)
MIGRATE: Final = _forward(kinds.MIGRATE)

GRAPHS: Final = (RESIZE, MIGRATE)
"""Every version that flows may run by."""
