"""Defines the step that takes the move's mark off disks and guest once they stay for good, as after a confirm."""

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
"""Details without a list of disks: the host removes the mark without a check.

They are for a debt, or for a server that Nova has confirmed: its disks may have changed or moved by then.
"""


class KeepCopy(HostStep):
    """Takes the mark "copy of this move" off the disks and the guest, which then stay for good.

    If the destination is away, it owes the step.  The flow need not wait for it, since nothing reads the mark of a
    confirmed move.
    """

    where = Where.DESTINATION
    does = "take the move's mark off the server's disks and its guest: they are its own now"
    no_undo = "past the point of no return"
    owed_by_older = True

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Have the host remove the mark; not for a server that was deleted meanwhile."""
        return dict(GONE) if is_deleted(ctx) else self._let_go(ctx, self.details(ctx))

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Have the host remove the mark after a confirm by Nova, unchecked: the server may have moved since."""
        return outcome.noted(**({} if is_deleted(ctx) else self._let_go(ctx, _LATE)))

    def details(self, ctx: Context) -> commands.KeepCopy:
        """Name the disks that were copied, which must be there."""
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
        """Tell whether the host can be asked now.

        The host cannot be asked while it is away and owes something already.  It cannot be asked either while its
        worker is of a release that does not know the action.
        """
        worker = ctx.run.workers().get(host)
        return not ctx.run.owes(host) if worker is None else _ACTION in worker.actions
