"""Steps on Placement: one POST holds both allocations of a move, one gives both back.

Nova claims for its evacuation only after its rows say that it evacuates.  So each step first reads what the server
holds, then looks at the rows, and then writes what it read with the generation that it read: what Nova claimed before
is seen in the rows, and what it claims after the reading refuses the write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tenacity

from droveway.clients.placement import Allocations, ConsumerChanged, is_alike, resources_of
from droveway.errors import DestinationFault
from droveway.flows import outcome
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import gone_ports
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import is_deleted

ROUNDS: Final = 5


class Claim(Step):
    """The migration gets what the server holds on the source, the server the destination's."""

    does = "claim the destination and hold the source, in one Placement call"
    undoes = "give both back, in one Placement call"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One allocations POST; a full destination is a fault of the destination."""
        try:
            looking_anew(lambda: _claim(ctx, ctx.run.cloud.placement.allocations(ctx.move.server)))
        except DestinationFault as error:
            host = ctx.destination.host
            raise DestinationFault(
                f"host {host} has no room for {ctx.move.server_name}: {error}", code=error.error_code, host=host
            ) from None
        return {}

    def undo(self, ctx: Context) -> None:
        """One POST; everything is released when the server was deleted meanwhile."""
        _return(ctx, ctx.destination.host, may_release=True)
        gone_ports.release(ctx, None)

    def undo_evacuated(self, ctx: Context) -> None:
        """The migration's consumer is emptied; what the server holds is Nova's."""
        with ctx.run.intent("placement", "release the source"):
            ctx.run.cloud.placement.release(ctx.move.id)


class ReleaseSourceAllocation(Step):
    """Confirm: nothing of the server is left on the source, so nothing is held there."""

    does = "release what the migration holds on the source"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """The migration's consumer is emptied, once the server holds what the move has claimed.

        A Placement that was put back from a copy of before the claim gets that again first: later nobody would look.
        """
        claimed = _has_lost_claim(ctx)
        if claimed:
            _claim(ctx, ctx.run.cloud.placement.allocations(ctx.move.server))
        _release_source(ctx)
        gone_ports.release(ctx, ctx.destination.request)
        return {"claimed_again": True} if claimed else {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Nova empties it too; what a server holds that is Nova's again is left alone."""
        _release_source(ctx)
        return outcome.noted()


class ReturnAllocation(Step):
    """Revert: the destination is clean, so the server holds its old flavor on the source again."""

    does = "give the source's allocation back to the server, in one Placement call"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One POST: the migration emptied, the server on the source."""
        _return(ctx, "the source")
        gone_ports.release(ctx, None if ctx.returning is None else ctx.returning.request)
        return {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """The migration's consumer is emptied; what a server holds that is Nova's again is left alone."""
        with ctx.run.intent("placement", "release the destination"):
            ctx.run.cloud.placement.release(ctx.move.id)
        return outcome.noted()


def _release_source(ctx: Context) -> None:
    with ctx.run.intent("placement", "release the source"):
        ctx.run.cloud.placement.release(ctx.move.id)


def looking_anew(write: Callable[[], None]) -> None:
    """Let ``write`` look at a consumer and write it, and again where somebody else wrote it in between.

    Neutron does where somebody changes the QoS policy of a port, and Nova where it evacuates the server, which the look
    finds.  Raises the last `droveway.clients.placement.ConsumerChanged`.  A step that must go on is entered again
    anyway; before the point of no return it would be undone.
    """
    tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ROUNDS), retry=tenacity.retry_if_exception_type(ConsumerChanged), reraise=True
    )(write)


def _has_lost_claim(ctx: Context) -> bool:
    """Tell whether neither consumer holds what `claim` gave it."""
    placement, chosen = ctx.run.cloud.placement, ctx.destination
    held = placement.allocations(ctx.move.server).allocations
    if not held or is_alike(held, resources_of(chosen.request)) or placement.allocations(ctx.move.id).allocations:
        return False
    # Else somebody has changed what the server holds there.
    return ctx.same_host or chosen.provider not in held


def _claim(ctx: Context, found: Allocations) -> None:
    """Claim the destination for the server, which was ``found`` to hold this.

    Raises `droveway.errors.DestinationFault` where the destination has no room.
    """
    record = before(ctx.move)
    starting.require_not_evacuated(ctx)
    with ctx.run.intent("placement", f"claim {ctx.destination.host}"):
        ctx.run.cloud.placement.claim_move(
            server=ctx.move.server,
            migration=ctx.move.id,
            source=found,
            destination=ctx.destination.request,
            project_id=found.project_id or record.project_id,
            user_id=found.user_id or record.user_id,
        )


def _return(ctx: Context, what: str, *, may_release: bool = False) -> None:
    """Give the server back what its migration holds, unless Nova has taken it; ``may_release``: a deleted one nothing.

    A delete removes what the server holds behind its rows, so it is seen, or refuses the write, as an evacuation is.
    """
    placement = ctx.run.cloud.placement
    found = placement.allocations(ctx.move.server)
    starting.require_not_evacuated(ctx)
    release = may_release and is_deleted(ctx)
    with ctx.run.intent("placement", f"give back {what}"):
        placement.return_move(server=ctx.move.server, migration=ctx.move.id, release=release, found=found)
