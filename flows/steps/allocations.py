"""Defines the steps on Placement: one POST claims both allocations of a move, and one gives both back.

Nova claims for an evacuation only after the server's rows say that it evacuates.  So each step first reads what the
server holds, then the rows, and then writes with the generation that it read.  If Nova has claimed before, the rows say
so; if Nova claims later, Placement refuses the write.
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
    """Gives the migration what the server holds on the source, and claims the destination for the server."""

    does = "claim the destination and hold the source, in one Placement call"
    undoes = "give both back, in one Placement call"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write both allocations in one POST; raises DestinationFault for a destination without room."""
        try:
            looking_anew(lambda: _claim(ctx, ctx.run.cloud.placement.allocations(ctx.move.server)))
        except DestinationFault as error:
            host = ctx.destination.host
            raise DestinationFault(
                f"host {host} has no room for {ctx.move.server_name}: {error}", code=error.error_code, host=host
            ) from None
        return {}

    def undo(self, ctx: Context) -> None:
        """Write both allocations back in one POST; release everything when the server was deleted meanwhile."""
        _return(ctx, ctx.destination.host, may_release=True)
        gone_ports.release(ctx, None)

    def undo_evacuated(self, ctx: Context) -> None:
        """Empty the migration's consumer; what the server holds is Nova's."""
        with ctx.run.intent("placement", "release the source"):
            ctx.run.cloud.placement.release(ctx.move.id)


class ReleaseSourceAllocation(Step):
    """Confirm: releases the source's allocation, since nothing of the server is left there."""

    does = "release what the migration holds on the source"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Empty the migration's consumer, once the server holds what the move has claimed.

        Where Placement's database was put back to a time before the claim, the step claims again first: no later step
        would find out that the claim is lost.
        """
        claimed = _has_lost_claim(ctx)
        if claimed:
            _claim(ctx, ctx.run.cloud.placement.allocations(ctx.move.server))
        _release_source(ctx)
        gone_ports.release(ctx, ctx.destination.request)
        return {"claimed_again": True} if claimed else {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Empty the migration's consumer, as Nova does too; what the server holds is Nova's and stays."""
        _release_source(ctx)
        return outcome.noted()


class ReturnAllocation(Step):
    """Revert: gives the server its old allocation on the source back, once the destination is clean."""

    does = "give the source's allocation back to the server, in one Placement call"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Empty the migration's consumer and let the server hold the source, in one POST."""
        _return(ctx, "the source")
        gone_ports.release(ctx, None if ctx.returning is None else ctx.returning.request)
        return {}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Empty the migration's consumer; what the server holds is Nova's and stays."""
        with ctx.run.intent("placement", "release the destination"):
            ctx.run.cloud.placement.release(ctx.move.id)
        return outcome.noted()


def _release_source(ctx: Context) -> None:
    with ctx.run.intent("placement", "release the source"):
        ctx.run.cloud.placement.release(ctx.move.id)


def looking_anew(write: Callable[[], None]) -> None:
    """Let ``write`` read and write a consumer, and repeat it where somebody else wrote the consumer in between.

    Neutron writes a server's consumer when somebody changes the QoS policy of a port, and Nova when it evacuates the
    server; ``write`` has to look for an evacuation.  Raises the last `droveway.clients.placement.ConsumerChanged`.
    Without the repeats a step before the point of no return would be undone.
    """
    tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ROUNDS), retry=tenacity.retry_if_exception_type(ConsumerChanged), reraise=True
    )(write)


def _has_lost_claim(ctx: Context) -> bool:
    """Tell whether Placement has lost the claim: neither consumer holds what `claim` gave it.

    The answer is no for a server that holds nothing at all.
    """
    placement, chosen = ctx.run.cloud.placement, ctx.destination
    held = placement.allocations(ctx.move.server).allocations
    if not held or is_alike(held, resources_of(chosen.request)) or placement.allocations(ctx.move.id).allocations:
        return False
    # A server that holds anything of the destination still has its claim, which somebody else has changed.
    return ctx.same_host or chosen.provider not in held


def _claim(ctx: Context, found: Allocations) -> None:
    """Claim the destination for the server; ``found`` is what it holds now.

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
    """Give the server back what its migration holds; raises StepError (``evacuated``) where Nova has evacuated it.

    With ``may_release`` a server that was deleted meanwhile gets nothing back.  Nova's delete releases an allocation
    after it has written the rows, so either the rows show the delete, or Placement refuses the write.
    """
    placement = ctx.run.cloud.placement
    found = placement.allocations(ctx.move.server)
    starting.require_not_evacuated(ctx)
    release = may_release and is_deleted(ctx)
    with ctx.run.intent("placement", f"give back {what}"):
        placement.return_move(server=ctx.move.server, migration=ctx.move.id, release=release, found=found)
