"""Whether Nova, or a user through it, has brought a move to its end already: the flow then only clears up.

Beside Droveway a user may confirm or revert a server that waits for verification, and nova-compute confirms by itself
where it is told to.  What its rows say is taken as it is: nothing of the server is started, switched, bound or deleted
any more.  What is left are the move's own traces, and what of them cannot be cleared now is owed or named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from droveway.persistence import servers
from droveway.persistence.moves import BY_NOVA
from droveway.persistence.vm_states import MigrationStatus

if TYPE_CHECKING:
    from typing import Any

    from droveway.flows.step import Context

ENDS: Final = {"confirm": MigrationStatus.CONFIRMED, "revert": MigrationStatus.REVERTED}
"""What the move's migration says when the flow of a kind has reached its end."""


def is_reached(ctx: Context) -> bool:
    """Whether the flow's end stands in the rows already, so that the step has nothing to do but to clear up."""
    wanted = ENDS.get(ctx.run.kind)
    if wanted is None:
        return False
    with ctx.run.cells.database(ctx.move.source_cell).read() as session:
        row = servers.migration(session, ctx.move.id)
    return row is not None and row.status == wanted


def noted(**found: Any) -> dict[str, Any]:
    """The result of a step of such a flow."""
    return {**BY_NOVA, **found}
