"""Resize and cold migrate into another cell; docs/contributor/why-this-order.rst has the reason for each place."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph, older
from droveway.flows.steps import allocations, moved_images, ports, scheduling, volumes
from droveway.flows.steps.hosts import copying, host, transferring
from droveway.flows.steps.records import crossing, forward
from droveway.persistence.journal import kinds


def _forward(kind: kinds.Kind) -> Graph:
    return Graph(
        kind_record=kind,
        version=2,
        steps=(forward.RecordBefore, forward.Accept, forward.RecordMigration, scheduling.ChooseDestinations),
        tried=(
            allocations.Claim,
            # Because a copy must have proved possible before `record_destination` names a host of the other cell.
            crossing.CopyRecords,
            crossing.RecordDestination,
            crossing.RecordDestinationCopy,
            host.CheckDestination,
            transferring.FindStorage,
            ports.ReservePorts,
            volumes.ReserveVolumes,
            forward.MarkMigrating,
            host.StopGuest,
            host.ReleaseSource,
            host.SetAside,
            moved_images.CreateImages,
            transferring.UploadDisks,
            transferring.CopyDisks,
            moved_images.DeleteImages,
            host.FitDisks,
            volumes.MoveVolumes,
            ports.MovePorts,
            host.ConnectDestination,
            host.DefineGuest,
            crossing.HandOverSource,
            # Because the mapping must name a visible copy at every instant, both are visible up to `hide_source`.
            crossing.ShowTarget,
            crossing.SwitchMapping,
            crossing.CarryLateWrites,
            crossing.HideSource,
            host.StartGuest,
        ),
        no_return=host.StartGuest,
        # Because a user may confirm or revert as soon as `finish_records` has written, it is the last step.
        after=(forward.SaveRequestSpec, crossing.FinishSourceRecords, crossing.FinishRecords),
    )


_LATEST: Final = (_forward(kinds.CROSS_CELL_RESIZE), _forward(kinds.CROSS_CELL_MIGRATE))
_ADDED: Final = (moved_images.CreateImages, transferring.UploadDisks, moved_images.DeleteImages)
_OLDER: Final = {transferring.FindStorage: host.FindStorage, transferring.CopyDisks: copying.CopyDisks}
GRAPHS: Final = (*_LATEST, *(older(graph, *_ADDED, instead=_OLDER) for graph in _LATEST))
"""Every version that flows may run by; version 1 copies no disks through the image service."""
