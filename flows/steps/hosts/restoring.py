"""The host step of a revert that gives the server its own disks back."""

from __future__ import annotations

from typing import Any

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, Context
from droveway.flows.step import Where
from droveway.flows.steps.hosts import clearing
from droveway.flows.steps.hosts.command import HostStep, same_directory
from droveway.wire import commands


class RestoreDisks(HostStep):
    """Revert: what was set aside becomes the server's directory again."""

    where = Where.SOURCE
    does = "put the source's disks back"
    undoes = "set them aside again"

    def details(self, ctx: Context) -> commands.RestoreDisks:
        """In one directory the destination's copy has to make room."""
        return commands.RestoreDisks(same_directory=same_directory(ctx))

    def undo(self, ctx: Context) -> None:
        """In a directory that both share the destination does it for a source that is declared down.

        Its guest is started next: until then the source's disks have the name of its own.  Declared down too, it owes
        that, since the server is its own.
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
        """The disks are in use again, so that the manifest says nothing of them any more."""
        return clearing.forget_manifest(ctx)
