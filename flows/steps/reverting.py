"""The steps of a revert that another flow has too, but to the other host: each has the name of the one that it varies.

A revert brings the server from the destination back to its source.
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
from droveway.flows.steps.attached import names
from droveway.flows.steps.hosts import clearing, confirming, host, redefining, starting
from droveway.flows.steps.hosts.command import describe
from droveway.flows.steps.hosts.host import CheckDestination, SetAside
from droveway.persistence.journal.tables import MoveStep
from droveway.printable import SHORT
from droveway.wire import commands


class CheckSource(confirming.CheckSource):
    """Revert's: looks at the destination besides, so that its undo knows what to bring back."""

    does = "check what was set aside on the source, and the guest on the destination"
    finds = True
    may_be_missing = False

    def may_do_without(self, ctx: Context) -> bool:
        """Only a revert that may have stopped the guest already: what comes next fails, and its undo starts it."""
        return ctx.run.is_behind()

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """The source's connector, and whether the destination's guest runs: one that is declared down has none."""
        return {**(super().perform(ctx) or {}), **on_destination(ctx)}

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """What the undo would read, of a guest that the revert has stopped by now."""
        return stopped_on_destination(ctx)


def on_destination(ctx: Context) -> dict[str, Any]:
    """What a revert's undo has to know of the destination's guest; one that is declared down tells nothing of it."""
    try:
        guest = msgspec.to_builtins(describe(ctx, ctx.destination.host, part="destination"))
    except StepError as error:
        if ctx.same_host or error.error_code != DECLARED_DOWN:
            raise
        guest = {"running": before(ctx.move).powered_on, "definition": ""}
    if overtaken.was_adopted(ctx.run):
        # The revert may have stopped it before the journal was put back.
        guest["running"] = before(ctx.move).powered_on
    return {"destination": guest, "attached": names(ctx)}


def stopped_on_destination(ctx: Context) -> dict[str, Any]:
    """The same of a guest that the revert has stopped by now."""
    guest = {"running": before(ctx.move).powered_on, "definition": ""}
    return {"destination": guest, "attached": names(ctx)}


class ReservePorts(ports.ReservePorts):
    """Revert's: the source is the new host."""

    to_source = True
    does = "bind the ports on the source, inactive"


class StopGuest(host.StopGuest):
    """Revert's: the guest on the destination goes off."""

    where = Where.DESTINATION
    states = starting.REVERT_UNDO
    undoes = "start it if it ran and the source is proved off"
    needs = ("source_check",)
    owed_when_down = True

    def other(self, ctx: Context) -> str:
        """The source, or the host in its place."""
        return ctx.return_host

    def ran(self, ctx: Context) -> bool:
        """Whether it ran when the revert began, and nobody has stopped it since."""
        return bool(ctx.inputs["source_check"]["destination"]["running"]) and not before(ctx.move).stopped

    def attached_before(self, ctx: Context) -> list[str]:
        """As the revert found it; one that an earlier release began has not noted it."""
        return list(ctx.inputs["source_check"].get("attached") or names(ctx))

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Only a guest that is still this move's, where the server does not live."""
        return clearing.stop_left_guest(ctx)

    def redefine(self, ctx: Context) -> None:
        """Define the guest as the revert found it, or as the move defined it where the dead host did not show it."""
        found = ctx.inputs["source_check"]["destination"]["definition"]
        redefining.on_destination(ctx, self.host(ctx), found or before(ctx.move).guest.definition)


class MoveVolumes(volumes.MoveVolumes):
    """Revert's: the source is the new host."""

    does = "attach the volumes to the source"
    undoes = "attach them to the destination again"
    needs = ("reserved", "source_check")
    leaves = Leaves({"attachments": Side.SOURCE}, {"attachments": Side.DESTINATION})

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the source's connector: what the source told, or what it was before the move where it is dead."""
        return ctx.inputs["source_check"].get("connector") or before(ctx.move).guest.connector

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the destination's connector: what it told the revert, or the forward flow where it is dead."""
        return ctx.inputs["source_check"]["destination"].get("connector") or _told_connector(ctx)


class MovePorts(ports.MovePorts):
    """Revert's: the source is the new host."""

    to_source = True
    does = "activate the ports on the source"
    undoes = "make the destination's bindings active again"


class StartGuest(host.StartGuest):
    """Revert's: the source's guest."""

    where = Where.SOURCE
    states = starting.REVERT
    defined_by = "prepare_source_guest"

    def _without_host(self, ctx: Context) -> dict[str, Any]:
        """The disks are the server's own from the start on, so that the host owes the end of their manifest."""
        found = super()._without_host(ctx)
        host, action, told = self.host(ctx), SetAside.action_name(), commands.NoDetails()
        ctx.owe(host, action, told, deadline=self.deadline, direction="revert")
        return found

    def other(self, ctx: Context) -> str:
        """The destination."""
        return ctx.destination.host

    def redefine(self, ctx: Context) -> None:
        """As it was before the move."""
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
