"""Defines the steps of a revert that differ from those of the forward flow only in the hosts.

A revert brings the server from the destination back to its source.  Each class here has the name of the class of the
forward flow, or of confirm, that it derives from.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import before
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.stands import Leaves, Side
from droveway.flows.step import Where
from droveway.flows.steps import overtaken, ports, volumes
from droveway.flows.steps.attached import ids
from droveway.flows.steps.hosts import clearing, confirming, host, redefining, starting
from droveway.flows.steps.hosts.command import describe
from droveway.flows.steps.hosts.host import CheckDestination, SetAside
from droveway.persistence.journal.tables import MoveStep
from droveway.printable import SHORT
from droveway.wire import commands


class CheckSource(confirming.CheckSource):
    """Revert: checks the source as a confirm does, and looks at the guest on the destination for the undo."""

    does = "check what was set aside on the source, and the guest on the destination"
    finds = True
    may_be_missing = False

    def may_do_without(self, ctx: Context) -> bool:
        """Tell whether the flow goes on although the source is declared down.

        It does only if the journal was put back, since the revert may have stopped the guest before.  The next steps
        then fail, because the source is down.  So the flow is undone, and the undo starts the guest on the destination
        again.
        """
        return ctx.run.is_behind()

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Return the source's connector, if it is not declared down, and what the undo needs of the destination."""
        return {**(super().perform(ctx) or {}), **on_destination(ctx)}

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Return what the undo needs of the guest, which the revert has stopped by now."""
        return stopped_on_destination(ctx)


def on_destination(ctx: Context) -> dict[str, Any]:
    """Return what a revert's undo has to know of the destination's guest: its state, and what is attached.

    Where the destination is declared down, the guest counts as running if the server was on before the move.
    """
    try:
        guest = msgspec.to_builtins(describe(ctx, ctx.destination.host, part="destination"))
    except StepError as error:
        if ctx.same_host or error.error_code != DECLARED_DOWN:
            raise
        guest = {"running": before(ctx.move).powered_on, "definition": ""}
    if overtaken.was_adopted(ctx.run):
        # The revert may have stopped it before the journal was put back.
        guest["running"] = before(ctx.move).powered_on
    return {"destination": guest, "attached": ids(ctx)}


def stopped_on_destination(ctx: Context) -> dict[str, Any]:
    """Return what `on_destination` does, for a guest that the revert has stopped by now."""
    guest = {"running": before(ctx.move).powered_on, "definition": ""}
    return {"destination": guest, "attached": ids(ctx)}


class ReservePorts(ports.ReservePorts):
    """Revert: makes inactive bindings on the source."""

    to_source = True
    does = "bind the ports on the source, inactive"


class StopGuest(host.StopGuest):
    """Revert: stops the guest on the destination."""

    where = Where.DESTINATION
    states = starting.REVERT_UNDO
    undoes = "start it if it ran and the source is proved off"
    needs = ("source_check",)
    owed_when_down = True

    def other(self, ctx: Context) -> str:
        """Name the source, or the host in its place."""
        return ctx.return_host

    def ran(self, ctx: Context) -> bool:
        """Tell whether the guest ran when the revert began, and its user has not stopped it since."""
        return bool(ctx.inputs["source_check"]["destination"]["running"]) and not before(ctx.move).stopped

    def attached_before(self, ctx: Context) -> list[str]:
        """Return what was attached when the revert began, or now, if an older release began it without that record."""
        return list(ctx.inputs["source_check"].get("attached") or ids(ctx))

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Stop the guest only if it still has this move's mark and the server does not live on the host."""
        return clearing.stop_left_guest(ctx)

    def redefine(self, ctx: Context) -> None:
        """Define the guest as the revert found it.

        If the host was declared down when the revert began, define the guest as it was before the move.
        """
        found = ctx.inputs["source_check"]["destination"]["definition"]
        redefining.on_destination(ctx, self.host(ctx), found or before(ctx.move).guest.definition)


class MoveVolumes(volumes.MoveVolumes):
    """Revert: attaches the volumes to the source."""

    does = "attach the volumes to the source"
    undoes = "attach them to the destination again"
    needs = ("reserved", "source_check")
    leaves = Leaves({"attachments": Side.SOURCE}, {"attachments": Side.DESTINATION})

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the source's connector, as its worker told it.

        If the source is declared down, return the connector that it had before the move.
        """
        return ctx.inputs["source_check"].get("connector") or before(ctx.move).guest.connector

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the destination's connector, as its worker told the revert.

        If the destination is declared down, return the connector that its worker told the forward flow.
        """
        return ctx.inputs["source_check"]["destination"].get("connector") or _told_connector(ctx)


class MovePorts(ports.MovePorts):
    """Revert: activates the ports on the source."""

    to_source = True
    does = "activate the ports on the source"
    undoes = "make the destination's bindings active again"


class StartGuest(host.StartGuest):
    """Revert: starts the source's guest."""

    where = Where.SOURCE
    states = starting.REVERT
    defined_by = "prepare_source_guest"

    def _without_host(self, ctx: Context) -> dict[str, Any]:
        """Go on without the dead source where the start may have happened; it then owes the removal of its manifest.

        The manifest lists the disks that were set aside.  From the guest's start on they are in use again.
        """
        found = super()._without_host(ctx)
        host, action, told = self.host(ctx), SetAside.action_name(), commands.NoDetails()
        ctx.owe(host, action, told, deadline=self.deadline, direction="revert")
        return found

    def other(self, ctx: Context) -> str:
        """Name the destination."""
        return ctx.destination.host

    def redefine(self, ctx: Context) -> None:
        """Define the guest as it was before the move, with what is attached by now."""
        redefining.on_source(ctx, self.host(ctx))


def _told_connector(ctx: Context) -> dict[str, Any]:
    """Read the connector that the destination told the forward flow; raises StepError where nobody knows it."""
    told = sa.select(MoveStep.result).where(
        MoveStep.move_id == ctx.move.id,
        MoveStep.step == CheckDestination.step_name(),
        MoveStep.direction == "execute",
        MoveStep.attempt == ctx.move.attempt,
        MoveStep.result.is_not(None),
    )
    with ctx.run.journal.read() as session:
        found = session.scalar(told.order_by(MoveStep.seq.desc()).limit(1)) or {}
    if connector := found.get("connector"):
        return dict(connector)
    host = ctx.destination.host
    raise StepError(
        f"host {host} is declared down, and the journal does not know by which connector it is given volumes: bring "
        f"{host} back, then droveway move retry {ctx.move.id[:SHORT]}",
        code=UNREACHABLE,
        host=host,
    )
