"""The step that copies the server's disks, and its undo, which deletes no copy that may be the only one."""

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
"""What a host answers that does not hold the server's disks, or not as they were."""
DEADLINE: Final = 24 * 3600.0
"""Seconds that copying a server's disks may take."""


class CopyDisks(HostStep):
    """The destination makes its own verified copy."""

    where = Where.DESTINATION
    deadline = DEADLINE
    does = "copy the disks, verify them"
    undoes = "delete the copy"
    needs: ClassVar[tuple[str, ...]] = ("storage",)
    extra_actions: ClassVar[tuple[str, ...]] = (RENAME,)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """The source offers its disks to exactly this destination while the copy lasts."""
        details = self.details(ctx)
        pull = self.pulls(ctx)
        if pull:
            # Where to fetch them the source says itself: its registration may be away for a moment.  One that is
            # declared down says nothing: the copy is whole by then, or fails.
            details = msgspec.structs.replace(details, address=self._offer(ctx, "execute").get("address", ""))
        copied = self.command(ctx, details)
        if pull:
            self._offer(ctx, "revert")
        return copied

    def undo(self, ctx: Context) -> None:
        """Withdraw the offer, delete the copy, once the source has shown the disks that it was made of.

        A journal that was put back from an older copy may undo a move that was confirmed since: then the source has
        nothing any more, and this copy is the server's only one.  Nobody needs the disks of a deleted server.
        """
        if not is_deleted(ctx):
            try:
                self._require_source(ctx)
            except StepError as error:
                if error.error_code != DECLARED_DOWN:
                    raise
                if ctx.result is not None:
                    # Nobody knows what the source still has: what was proved whole here may be all that there is.
                    kept_copies.rename(ctx, self.host(ctx))
                    self.owe(ctx, self.undo_details(ctx), after=ctx.move.source_host)
                    return
        super().undo(ctx)
        if self.pulls(ctx):
            self._offer(ctx, "revert")

    def undo_evacuated(self, ctx: Context) -> None:
        """Delete the copy once the source has shown what it was made of; else it is kept, and owed.

        In one directory Nova may have started the server from it, so that it stays there.
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
        """The storage probe, which the check of the destination wrote anew, goes as it does after a copy."""
        forget_probe(ctx, self.host(ctx))
        return {}

    def details(self, ctx: Context) -> commands.CopyDisks:
        """From whom, and how."""
        return commands.CopyDisks(
            variant="local" if same_directory(ctx) else "pull",
            source=ctx.move.source_host,
            address="",
            probe=probe_name(ctx),
        )

    def pulls(self, ctx: Context) -> bool:
        """Whether the source offers its disks to the destination."""
        return self.details(ctx).variant == "pull"

    def _require_source(self, ctx: Context) -> None:
        """Raise StepError (``last-copy``) unless the source shows, now, what it set aside for this move, whole."""
        try:
            ctx.command(
                ctx.move.source_host, "check_set_aside", commands.NoDetails(), direction="execute", part="source"
            )
        except StepError as error:
            if error.error_code == "source-changed" and ctx.result is None:
                # The copy was never proved, so that what the source has is all that there is.
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
        """The source's answer; nothing of one that is declared down: an offer ends with what was set aside."""
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
