"""Confirm of a move into another cell: the server stays there, and the source's disks and rows go."""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph, older
from droveway.flows.steps import allocations, moved_images
from droveway.flows.steps.hosts import confirming, keeping
from droveway.flows.steps.records import confirm, crossing_back
from droveway.persistence.journal import kinds

CROSS_CELL_CONFIRM: Final = Graph(
    kind_record=kinds.CROSS_CELL_CONFIRM,
    version=2,
    steps=(
        confirm.MarkConfirming,
        confirming.CheckDestinationCopy,
        crossing_back.CheckSourceRecords,
        confirming.CheckSource,
        confirming.DiscardSource,
        keeping.KeepCopy,
        allocations.ReleaseSourceAllocation,
        moved_images.DeleteKeptImages,
        # Behind the disks: as long as something of the server lies there, these rows tell whose it is.
        crossing_back.RemoveSourceRecords,
        confirm.SettleRecords,
    ),
    no_return=confirming.DiscardSource,
)

GRAPHS: Final = (CROSS_CELL_CONFIRM, older(CROSS_CELL_CONFIRM, moved_images.DeleteKeptImages))
"""Every version that flows may run by; the first one is of moves that keep no images."""
