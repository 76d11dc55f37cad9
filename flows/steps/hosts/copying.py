"""Defines the step that copies the server's disks; its undo deletes no copy that may be the only one."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.step import Where
from droveway.flows.steps import overtaken
from droveway.flows.steps.hosts import kept_copies
from droveway.flows.steps.hosts.command import HostStep, forget_probe, probe_name, same_directory
from droveway.flows.steps.rows import is_deleted, lives_on
from droveway.persistence.journal.debts import RENAME
from droveway.wire import commands

NOT_WHOLE: Final = frozenset({"foreign", "missing", "damaged", "link", "source-changed"})
"""The codes with which a host answers when it does not have the server's disks, or not as they were."""
DEADLINE: Final = 24 * 3600.0
"""How many seconds the copy of a server's disks may take."""


class CopyDisks(HostStep):
    """Has the destination make its own verified copy of the disks."""

    where = Where.DESTINATION
    deadline = DEADLINE
    does = "copy the disks, verify them"
    undoes = "delete the copy"
    needs: ClassVar[tuple[str, ...]] = ("storage",)
    extra_actions: ClassVar[tuple[str, ...]] = (RENAME,)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Copy the disks; the source offers them to this destination alone, while the copy lasts."""
        details = self.details(ctx)
        pull = self.pulls(ctx)
        if pull:
            # The source itself says where to fetch them, since its registration may be away for a moment.  A source
            # that is declared down says nothing: then the destination has the whole copy already, or the step fails.
            details = msgspec.structs.replace(details, address=self._offer(ctx, "execute").get("address", ""))
        copied = self.command(ctx, details)
        if pull:
            self._offer(ctx, "revert")
        return copied

    def undo(self, ctx: Context) -> None:
        """Delete the copy once the source has shown the disks from which it was made, and withdraw the offer.

        Where the journal was put back, the move may have been confirmed since.  Then the source has nothing any more,
        and this copy is the server's only one.  The copy of a deleted server is deleted without a look at the source.
        """
        if not is_deleted(ctx):
            try:
                self._require_source(ctx)
            except StepError as error:
                if error.error_code != DECLARED_DOWN:
                    raise
                if ctx.result is not None:
                    # Nobody knows what the source still has, and this copy was proved whole: it may be the only one.
                    kept_copies.rename(ctx, self.host(ctx))
                    self.owe(ctx, self.undo_details(ctx), after=ctx.move.source_host)
                    return
        super().undo(ctx)
        if self.pulls(ctx):
            self._offer(ctx, "revert")

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete the copy once the source has shown the disks from which it was made.

        If the source does not show them, a copy that was proved whole is renamed, and the destination owes its
        deletion.  A copy that was never proved whole is deleted all the same.  In a directory that both hosts share the
        copy stays: Nova may have started the server from it.
        """
        if same_directory(ctx) or lives_on(ctx, self.host(ctx)):
            return
        try:
            self._require_source(ctx)
        except StepError:
            if ctx.result is not None:
                kept_copies.rename(ctx, self.host(ctx))
                self.owe(ctx, self.undo_details(ctx), after=ctx.move.source_host)
                return
        try:
            super().undo(ctx)
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise
            self.owe(ctx, self.undo_details(ctx), after=ctx.move.source_host)

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Remove the storage probe, which the destination's check has written again.

        A copy removes the probe when it is done, but the disks are copied already and are not copied again.
        """
        forget_probe(ctx, self.host(ctx))
        return {}

    def details(self, ctx: Context) -> commands.CopyDisks:
        """Name the source, and how the destination gets the disks from it."""
        return commands.CopyDisks(
            variant="local" if same_directory(ctx) else "pull",
            source=ctx.move.source_host,
            address="",
            probe=probe_name(ctx),
        )

    def pulls(self, ctx: Context) -> bool:
        """Tell whether the destination fetches the disks from the source's worker."""
        return self.details(ctx).variant == "pull"

    def _require_source(self, ctx: Context) -> None:
        """Raise StepError (``last-copy``) unless the source shows, now, what it set aside for this move, whole."""
        try:
            ctx.command(
                ctx.move.source_host, "check_set_aside", commands.NoDetails(), direction="execute", part="source"
            )
        except StepError as error:
            if error.error_code == "source-changed" and ctx.result is None:
                # The copy was never proved whole, so what the source has is all that there is, and the copy may go.
                return
            if error.error_code == "missing" and overtaken.are_in_use_again(ctx):
                return
            if error.error_code not in NOT_WHOLE:
                raise
            raise StepError(
                f"host {ctx.move.source_host} does not hold the disks of server {ctx.move.server_name} whole, so the "
                f"copy on {ctx.destination.host} is not deleted: it may be the only one ({error.message})",
                code="last-copy",
                host=ctx.move.source_host,
            ) from None

    def _offer(self, ctx: Context, direction: Any) -> dict[str, Any]:
        """Make or withdraw the source's offer of its disks and return its answer.

        A source that is declared down is not asked: its offer ends when the disks that it set aside are deleted.
        """
        try:
            return ctx.command(
                ctx.move.source_host,
                "offer_disks",
                commands.OfferDisks(peer=ctx.destination.host),
                direction=direction,
                part="offer" if direction == "execute" else "withdraw",
            )
        except StepError as error:
            if error.error_code != DECLARED_DOWN:
                raise
            return {}
