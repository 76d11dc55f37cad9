"""Revert: the server goes back to its source as it was; what the guest wrote to local disks since is discarded."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations, ports, volumes
from droveway.flows.steps.hosts import confirming, host, restoring
from droveway.flows.steps.records import revert
from droveway.persistence.journal import kinds

REVERT: Final = Graph(
    of=kinds.REVERT,
    version=1,
    steps=(
        revert.MarkReverting,
        confirming.CheckRevertSource,
        ports.ReserveSourcePorts,
        volumes.ReserveVolumes,
        host.StopDestinationGuest,
        host.ReleaseDestination,
        volumes.MoveVolumesBack,
        ports.MovePortsBack,
        restoring.RestoreDisks,
        host.PrepareSourceGuest,
        revert.SwitchBack,
        host.StartSourceGuest,
        host.DiscardDestination,
        allocations.ReturnAllocation,
        revert.RestoreRequestSpec,
        revert.SettleReverted,
    ),
    no_return=host.StartSourceGuest,
)
