"""The step with which a confirm lets go of the destination's copy: it is the server's own from then on."""

from __future__ import annotations

from typing import Any, Final

from droveway.errors import StepError
from droveway.flows import outcome
from droveway.flows.before import before
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.step import Where
from droveway.flows.steps.hosts.command import HostStep
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.journal.moves import GONE
from droveway.wire import commands
from droveway.wire.values import ACTION_VERSION, SWAP

_ACTION: Final = f"keep_copy@{ACTION_VERSION}"

_LATE: Final = commands.KeepCopy(disks=[])
"""What the host has by then may have moved on, and is no reason to refuse the mark's end."""


class KeepCopy(HostStep):
    """The mark "copy of this move" ends with the confirm; a destination that is away owes that.

    Nobody reads the mark of a confirmed move as that of a copy, so nothing has to wait for the host.
    """

    where = Where.DESTINATION
    does = "take the move's mark off the server's disks and its guest: they are its own now"
    no_undo = "past the point of no return"
    owed_by_older = True

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Nothing of a server that was deleted meanwhile is kept."""
        return dict(GONE) if is_deleted(ctx) else self._let_go(ctx, self.details(ctx))

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """After a confirm of Nova's too the mark ends; the server may have moved on since, disks and all."""
        return outcome.noted(**({} if is_deleted(ctx) else self._let_go(ctx, _LATE)))

    def details(self, ctx: Context) -> commands.KeepCopy:
        """The disks that came along."""
        return commands.KeepCopy(disks=[disk.name for disk in before(ctx.move).guest.disks if disk.name != SWAP])

    def _let_go(self, ctx: Context, details: commands.KeepCopy) -> dict[str, Any]:
        host = self.host(ctx)
        try:
            if self._may_be_commanded(ctx, host):
                return self.command(ctx, details)
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise
        self.owe(ctx, _LATE)
        return {"owed": host}

    def _may_be_commanded(self, ctx: Context, host: str) -> bool:
        """Not while it owes something and is away, nor a worker of an older release, which learns it when upgraded."""
        worker = ctx.run.workers().get(host)
        return not ctx.run.owes(host) if worker is None else _ACTION in worker.actions
