"""Resize and cold migrate within a cell: one graph, in which only flavor and host rules differ.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        steps=(forward.RecordBefore, forward.Accept, forward.RecordMigration, scheduling.ChooseDestinations),
        # Because another alternate may serve, each step that needs the destination is tried anew, even the start.
        tried=(
            allocations.Claim,
            forward.RecordDestination,
            host.CheckDestination,
            # Because the copy and its undo depend on whether both hosts see one directory.
            host.FindStorage,
            ports.ReservePorts,
            volumes.ReserveVolumes,
            # Because a nova-compute starts a guest that is off and whose row says that it runs.
            forward.MarkMigrating,
            host.StopGuest,
            # Because a host must let go of a device before Cinder ends its export.
            host.ReleaseSource,
            # Because on shared storage and on one host the copy gets the directory name that the source's disks have
            # until this step.
            host.SetAside,
            copying.CopyDisks,
            host.FitDisks,
            # Because the copy takes longest and fails most often, volumes and ports move after it.
            volumes.MoveVolumes,
            ports.MovePorts,
            host.ConnectDestination,
            host.DefineGuest,
            # Because whoever looks the server up must find the host that its guest runs on.
            forward.SwitchRecords,
            host.StartGuest,
        ),
        no_return=host.StartGuest,
        # Because a user may confirm or revert as soon as `finish_records` has written, it is the last step.
        after=(forward.SaveRequestSpec, forward.FinishRecords),
    )


RESIZE: Final = _forward(kinds.RESIZE)
MIGRATE: Final = _forward(kinds.MIGRATE)

GRAPHS: Final = (RESIZE, MIGRATE)
"""Every version that flows may run by."""
