"""Delete: nothing of the server stays, on its host, in the services or in the rows.

Whoever deletes a server does not want it back, so the first step is the point of no return.  It runs by itself, or as
the last flow of a move whose server was deleted meanwhile: the server is at rest on one host then.
"""

from __future__ import annotations

from typing import Final

from droveway.flows.graph import Graph
from droveway.flows.steps.records import delete
from droveway.persistence.journal import kinds

DELETE: Final = Graph(
    kind_record=kinds.DELETE,
    version=1,
    steps=(
        delete.MarkDeleting,
        delete.StopGuest,
        delete.DisconnectGuest,
        delete.RemoveGuest,
        # What the host holds is held in the services' books for as long as it does.
        delete.DeletePorts,
        delete.DeleteAttachments,
        delete.ReleaseAllocation,
        delete.SettleRecords,
        delete.ForgetRequest,
    ),
    no_return=delete.MarkDeleting,
)

GRAPHS: Final = (DELETE,)
"""Every version that flows may run by."""
