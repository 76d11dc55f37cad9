"""Confirm of a move into another cell: the server stays there, and the source's disks and rows are deleted.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

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
        # Because the source's copy may go only after the destination has shown its own.
        confirming.CheckDestinationCopy,
        crossing_back.CheckSourceRecords,
        confirming.CheckSource,
        confirming.DiscardSource,
        # Because a revert, which is possible until the discard, deletes only a copy that has the move's mark.
        keeping.KeepCopy,
        # Because others may use the source's room only after the disks are gone.
        allocations.ReleaseSourceAllocation,
        # Because a revert may need the images until the discard.
        moved_images.DeleteKeptImages,
        # Because these rows tell whose the files on the source are, as long as any lie there.
        crossing_back.RemoveSourceRecords,
        # Because a user may ask for the next operation as soon as this step has written.
        confirm.SettleRecords,
    ),
    no_return=confirming.DiscardSource,
)

GRAPHS: Final = (CROSS_CELL_CONFIRM, older(CROSS_CELL_CONFIRM, moved_images.DeleteKeptImages))
"""Every version that flows may run by; version 1 keeps no images."""
