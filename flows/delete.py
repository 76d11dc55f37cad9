"""Delete: nothing of the server stays, on its host, in the services or in the rows.

Whoever deletes a server does not want it back, so the first step is the point of no return.  It runs by itself, or as
the last flow of a move whose server was deleted meanwhile: the server is at rest on one host then.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps.records import delete
from droveway.persistence.journal import kinds

DELETE: Final = Graph(
    kind_record=kinds.DELETE,
    version=2,
    steps=(
        delete.MarkDeleting,
        delete.StopGuest,
        delete.DisconnectGuest,
        delete.RemoveGuest,
        # What the host holds is held in the services' books for as long as it does.
        delete.DeletePorts,
        delete.DeleteAttachments,
        delete.DeleteImages,
        delete.ReleaseAllocation,
        delete.SettleRecords,
        delete.ForgetRequest,
    ),
    no_return=delete.MarkDeleting,
)

DELETE_1: Final = dataclasses.replace(
    DELETE, version=1, steps=tuple(step for step in DELETE.steps if step is not delete.DeleteImages)
)
"""As it was before servers could be shelved; flows that began with it go on with it."""

GRAPHS: Final = (DELETE_1, DELETE)
"""Every version that flows may run by."""
