"""Defines the host step of a revert that gives the server its own disks back."""

from __future__ import annotations

from typing import Any

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, Context
from droveway.flows.step import Where
from droveway.flows.steps.hosts import clearing
from droveway.flows.steps.hosts.command import HostStep, same_directory
from droveway.wire import commands


class RestoreDisks(HostStep):
    """Revert: renames what was set aside, so that it is the server's directory again."""

    where = Where.SOURCE
    does = "put the source's disks back"
    undoes = "set them aside again"

    def details(self, ctx: Context) -> commands.RestoreDisks:
        """Say whether both hosts share the directory, where the destination's copy is renamed first."""
        return commands.RestoreDisks(same_directory=same_directory(ctx))

    def undo(self, ctx: Context) -> None:
        """Set the source's disks aside again.

        If the source is declared down and both hosts share the directory, the destination sets the source's disks
        aside.  The next undos start the destination's guest.  That guest needs the destination's disks under the
        server's name, and at this point the source's disks have that name.  If the destination is declared down too, it
        owes the action.
        """
        if ctx.same_host or not (same_directory(ctx) and ctx.run.declared_down(self.host(ctx))):
            super().undo(ctx)
            return
        host, action, told, limit = ctx.destination.host, self.action_name(), self.undo_details(ctx), self.deadline
        try:
            ctx.command(host, action, told, deadline=limit, part="shared")
        except StepError as error:
            if error.error_code != DECLARED_DOWN:
                raise
            ctx.owe(host, action, told, deadline=limit)

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Have the source forget the manifest of the disks that were set aside: Nova's revert uses them again."""
        return clearing.forget_manifest(ctx)
