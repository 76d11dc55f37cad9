"""Defines the host steps of a confirm: they compare both copies of the disks, and the source's is deleted or kept."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from droveway.errors import StepError
from droveway.flows import outcome
from droveway.flows.before import before, shows_disks
from droveway.flows.run import DECLARED_DOWN, OWED, Context
from droveway.flows.step import Where
from droveway.flows.steps import overtaken
from droveway.flows.steps.hosts import clearing
from droveway.flows.steps.hosts.command import HostStep, describe, has_disks, new_flavor, query_host
from droveway.flows.steps.hosts.copying import NOT_WHOLE
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.journal.moves import GONE
from droveway.printable import SHORT
from droveway.wire import commands

_LET_GO: Final = frozenset({"foreign", "damaged"})
"""The codes with which a destination answers when its copy or guest no longer has the move's mark."""


def _kept(ctx: Context) -> dict[str, Any] | None:
    """Return the guest's state on the destination where `keep_copy` has taken the move's mark off before.

    A journal that was put back does not know that.  The mark was taken off if the source has nothing set aside any more
    and the destination has the whole disks and an unmarked guest.  Otherwise returns None.
    """
    if ctx.same_host or not overtaken.was_adopted(ctx.run):
        return None
    if describe(ctx, ctx.move.source_host, part="source").set_aside:
        return None
    found = describe(ctx, ctx.destination.host, part="kept")
    if not found.defined or found.move or not shows_disks(found, before(ctx.move)):
        return None
    return {"running": found.running, "starts": found.starts}


class CheckDestinationCopy(HostStep):
    """Confirm: checks that the destination has the guest as recorded, and its disks whole."""

    action = "check_copy"
    where = Where.DESTINATION
    does = "check the guest and its disks on the destination"
    no_undo = "it only reads"
    gives = "destination_guest"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Have the destination check its copy and return the guest's state.

        Nothing is checked for a server that was deleted meanwhile: nobody needs its disks.  The step also goes on
        without a destination that is declared down, if the server is to be deleted or the source is declared down too.
        If both hosts are down, the source keeps its copy until both are back.
        """
        if is_deleted(ctx):
            return {"running": False, **GONE}
        try:
            return super().perform(ctx)
        except StepError as error:
            if error.error_code in _LET_GO and (kept := _kept(ctx)) is not None:
                return kept
            alone = ctx.move.delete_requested or ctx.run.declared_down(ctx.move.source_host)
            if not (alone and error.error_code == DECLARED_DOWN):
                raise
            return {"running": False, "declared_down": self.host(ctx)}

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Record whether the destination's copy is whole: if not, what the source still holds stays.

        A destination that is declared down shows nothing.  That proves enough only if the server is to be deleted.
        """
        try:
            found = self.perform(ctx) or {}
            return outcome.noted(**found, proved="declared_down" not in found or ctx.move.delete_requested)
        except StepError as error:
            return outcome.noted(running=False, proved=False, why=error.message)

    def details(self, ctx: Context) -> commands.CheckCopy:
        """Name the vCPUs and the memory that the guest must have."""
        flavor = new_flavor(ctx)
        return commands.CheckCopy(vcpus=flavor["vcpus"], memory_mb=flavor["memory_mb"])


class CheckSource(HostStep):
    """Checks that the source answers, and that what was set aside there is this move's and complete."""

    action = "check_set_aside"
    where = Where.SOURCE
    does = "check what was set aside on the source"
    no_undo = "it only reads"
    gives = "source_check"
    may_be_missing: ClassVar[bool] = True
    """Whether the flow goes on where nothing is set aside: a host that was installed anew has nothing."""

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Have the source check what it set aside.

        Nothing is checked for a server that was deleted meanwhile.  A confirm also goes on where the source is declared
        down, and discards its disks later: the server lives on the other host.
        """
        if is_deleted(ctx):
            return dict(GONE)
        try:
            return super().perform(ctx)
        except StepError as error:
            if error.error_code == DECLARED_DOWN and self.may_do_without(ctx) and not ctx.same_host:
                return {"declared_down": self.host(ctx)}
            if error.error_code != "missing" or not self.may_be_missing:
                raise
            # The next steps would only delete on that host, and find nothing to delete.
            return {"missing": error.message}

    def may_do_without(self, ctx: Context) -> bool:  # noqa: ARG002 - a confirm always may
        """Tell whether the flow goes on when that host is declared down."""
        return True


class DiscardSource(HostStep):
    """Deletes the source's copy, or keeps it for a time: the point of no return of a confirm."""

    destroys = True
    where = Where.SOURCE
    owed_when_down = True
    does = "delete the source's copy, or keep it for the time that was asked"
    no_undo = "the point of no return"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Delete the source's copy once the destination has shown its own, which is then the server's only one.

        A destination that is declared down shows nothing.  Then the step fails, and the source's copy stays.  The step
        does not fail where an earlier run may have asked the source already, or where the source is declared down too:
        the source then owes the deletion, and carries it out once the destination has shown its copy.

        A copy that is kept for a time (``--keep-source``) is recorded as a debt with a date, at which the host purges
        it.
        """
        if not (ctx.same_host or ctx.move.delete_requested or is_deleted(ctx)):
            begun = ctx.run.may_have_begun(ctx.step)
            try:
                self._require_copy(ctx, begun=begun)
            except StepError as error:
                if error.error_code != DECLARED_DOWN:
                    raise
                return self._keep(ctx, begun=begun)
        done = self.command_or_owe(ctx, self.details(ctx))
        if done.get("kept"):
            purge = commands.PurgeKept(of_move=ctx.move.id)
            ctx.run.keep(ctx.step, host=ctx.move.source_host, details=purge, deadline=self.deadline)
        return done

    def _keep(self, ctx: Context, *, begun: bool) -> dict[str, Any]:
        other = ctx.destination.host
        if begun or ctx.run.declared_down(ctx.move.source_host):
            self.owe(ctx, self.details(ctx), after=other)
            return dict(OWED)
        raise StepError(
            f"host {other}, which server {ctx.move.server_name} is on, is declared down, so the copy on "
            f"{ctx.move.source_host} is kept: droveway move revert {ctx.move.id[:SHORT]} brings the server back",
            code="not-begun",
            host=other,
        )

    def _require_copy(self, ctx: Context, *, begun: bool) -> None:
        flavor = new_flavor(ctx)
        details = commands.CheckCopy(vcpus=flavor["vcpus"], memory_mb=flavor["memory_mb"])
        try:
            query_host(ctx, ctx.destination.host, "check_copy", part="copy", details=details)
        except StepError as error:
            if error.error_code in _LET_GO and _kept(ctx) is not None:
                return
            if error.error_code not in NOT_WHOLE:
                raise
            raise StepError(
                f"host {ctx.destination.host} does not hold the disks of server {ctx.move.server_name} whole, so the "
                f"copy on {ctx.move.source_host} is not deleted: it may be the only one ({error.message})",
                code="last-copy" if begun else "not-begun",
                host=ctx.destination.host,
            ) from None

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Delete what Nova's confirm has left of the source's copy, once the destination has shown its own."""
        return clearing.discard_left_source(ctx)

    def details(self, ctx: Context) -> commands.DiscardSource:
        """Say whether to remove the guest's old definition too, and whether to keep the disks for a time.

        The definition is removed where source and destination are two hosts.  Nothing is kept if the server is deleted,
        or if it has no disk on its host.
        """
        deleted = ctx.move.delete_requested or is_deleted(ctx)
        keep = ctx.move.keep_seconds > 0 and not deleted and has_disks(ctx)
        return commands.DiscardSource(undefine=not ctx.same_host, keep=keep)
