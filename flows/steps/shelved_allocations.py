"""Defines the steps of shelve and unshelve that change allocations in Placement.

In these flows the server is the only consumer.  There is no migration, so no migration holds an allocation.
"""

from __future__ import annotations

from typing import Any

from droveway.clients.placement import SERVER
from droveway.errors import DestinationFault, StepError
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps.hosts import starting


class ReleaseAllocation(Step):
    """Releases the server's allocation once nothing of it is left on its host.

    That is done before the rows say `shelved_offloaded`, for which programs wait.
    """

    does = "release what the server holds"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Empty the server's consumer; Placement refuses where it changed since this step read it."""
        placement = ctx.run.cloud.placement
        found = placement.allocations(ctx.move.server)
        starting.require_not_evacuated(ctx)
        with ctx.run.intent("placement", "release the server"):
            placement.return_move(server=ctx.move.server, migration=ctx.move.id, release=True, found=found)
        return {}


class Claim(Step):
    """Claims the destination for the server, which holds nothing."""

    does = "claim the destination"
    undoes = "give it back"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Claim the destination for a new consumer in one POST; raises DestinationFault for one without room.

        Raises StepError (``allocation-conflict``) where the server holds something elsewhere.
        """
        record, placement, chosen = before(ctx.move), ctx.run.cloud.placement, ctx.destination
        found = placement.allocations(ctx.move.server)
        if not found.allocations.keys() <= chosen.request["allocations"].keys():
            raise StepError(
                f"server {ctx.move.server_name} is shelved and holds an allocation all the same: droveway audit says "
                "what is wrong",
                code="allocation-conflict",
            )
        with ctx.run.intent("placement", f"claim {chosen.host}"):
            try:
                placement.rewrite(
                    {ctx.move.server: (found, chosen.request, SERVER)},
                    project_id=record.project_id,
                    user_id=record.user_id,
                    full=DestinationFault,
                )
            except DestinationFault as error:
                raise DestinationFault(
                    f"host {chosen.host} has no room for {ctx.move.server_name}: {error}",
                    code=error.error_code,
                    host=chosen.host,
                ) from None
        return {}

    def undo(self, ctx: Context) -> None:
        """Empty the server's consumer."""
        with ctx.run.intent("placement", f"give back {ctx.destination.host}"):
            ctx.run.cloud.placement.release(ctx.move.server)
