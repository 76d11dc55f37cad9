"""The steps of shelve and unshelve on Placement: the server alone holds something, and no migration does."""

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
    """Nothing of the server is left on its host, so nothing is held there; before whoever waits for that sees it."""

    does = "release what the server holds"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """The server's consumer is emptied, as it was found before its rows were read."""
        placement = ctx.run.cloud.placement
        found = placement.allocations(ctx.move.server)
        starting.require_not_evacuated(ctx)
        with ctx.run.intent("placement", "release the server"):
            placement.return_move(server=ctx.move.server, migration=ctx.move.id, release=True, found=found)
        return {}


class Claim(Step):
    """The server, which holds nothing, gets what it needs of the destination."""

    does = "claim the destination"
    undoes = "give it back"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One allocations POST for a consumer that is new; a full destination is a fault of the destination."""
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
        """The server's consumer is emptied."""
        with ctx.run.intent("placement", f"give back {ctx.destination.host}"):
            ctx.run.cloud.placement.release(ctx.move.server)
