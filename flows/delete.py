"""Delete: nothing of the server stays, on its host, in the services or in the rows.

Whoever deletes a server does not want it back, so the first step is the point of no return.  The flow runs by itself,
or as the last flow of a move whose server was deleted meanwhile: the server is at rest on one host then.

``docs/contributor/why-this-order.rst`` has the reason for the place of each step.
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
        # Because a host must let go of a device before Cinder ends its export.
        delete.DisconnectGuest,
        delete.RemoveGuest,
        # Because the host may use ports, attachments and allocation until it is clean.
        delete.DeletePorts,
        delete.DeleteAttachments,
        delete.DeleteImages,
        delete.ReleaseAllocation,
        # Because the steps before it read the server's rows.
        delete.SettleRecords,
        # Because a flow that goes on after a crash finds the server's cell by the mapping.
        delete.ForgetRequest,
    ),
    no_return=delete.MarkDeleting,
)

DELETE_1: Final = dataclasses.replace(
    DELETE, version=1, steps=tuple(step for step in DELETE.steps if step is not delete.DeleteImages)
)
"""The version of releases that could shelve no servers; flows that began with it keep to it."""

GRAPHS: Final = (DELETE_1, DELETE)
"""Every version that flows may run by."""
