"""Confirm: the server stays where it is, and the source's copy is deleted.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps import allocations
from droveway.flows.steps.hosts import confirming, keeping
from droveway.flows.steps.records import confirm
from droveway.persistence.journal import kinds

CONFIRM: Final = Graph(
    kind_record=kinds.CONFIRM,
    version=2,
    steps=(
        confirm.MarkConfirming,
        # Because the source's copy may go only after the destination has shown its own.
        confirming.CheckDestinationCopy,
        confirming.CheckSource,
        confirming.DiscardSource,
        # Because a revert, which is possible until the discard, deletes only a copy that has the move's mark.
        keeping.KeepCopy,
        # Because others may use the source's room only after the disks are gone.
        allocations.ReleaseSourceAllocation,
        # Because a user may ask for the next operation as soon as this step has written.
        confirm.SettleRecords,
    ),
    no_return=confirming.DiscardSource,
)

CONFIRM_1: Final = dataclasses.replace(
    CONFIRM, version=1, steps=tuple(step for step in CONFIRM.steps if step is not keeping.KeepCopy)
)
"""The version of releases whose confirm left the move's mark on guest and disks; for flows that began with it."""

GRAPHS: Final = (CONFIRM_1, CONFIRM)
"""Every version that flows may run by."""
