"""Holds what the host steps share: the command to one worker, and what its details are made of."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import before
from droveway.flows.run import DECLARED_DOWN, OWED, UNREACHABLE, Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step, Where
from droveway.flows.steps.rows import lives_on
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Carries
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova import objects
from droveway.wire.commands import CheckDestination, GuestState, NoDetails
from droveway.wire.values import SWAP

STORAGE_AWAY: Final = "storage-away"
"""The code of an undo that finds another instances directory than the one in which its step worked."""


class HostStep(Step):
    """Has one worker carry out an ``action``; `details` makes what the worker needs to know."""

    leaves = NOTHING
    action: ClassVar[str] = ""
    owed_when_down: ClassVar[bool] = False
    """Whether the flow goes on without a host that is declared down; the host then owes the action."""

    def details(self, ctx: Context) -> msgspec.Struct:  # noqa: ARG002 - most actions need to know something
        """Make the action's details; `undo_details` makes the same unless a step has its own."""
        return NoDetails()

    def undo_details(self, ctx: Context) -> msgspec.Struct:
        """Make the details of the undo."""
        return self.details(ctx)

    def host(self, ctx: Context) -> str:
        """Name the host whose worker is asked."""
        if self.where is Where.RETURN:
            return ctx.return_host
        return ctx.move.source_host if self.where is Where.SOURCE else ctx.destination.host

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Command the worker and return its answer."""
        return self.command_or_owe(ctx, self.details(ctx))

    def command_or_owe(self, ctx: Context, details: msgspec.Struct) -> dict[str, Any]:
        """Command the worker and return its answer.

        Where the host is declared down and the step may be owed, record the debt and return `OWED`.
        """
        try:
            return self.command(ctx, details)
        except StepError as error:
            if not (self.owed_when_down and error.error_code == DECLARED_DOWN):
                raise
        self.owe(ctx, details)
        return dict(OWED)

    def undo(self, ctx: Context) -> None:
        """Command the worker to undo the action, or record that the host owes the undo.

        The host owes the undo if it is declared down.  The host that the flow leads to also owes it, if no guest was
        ever started there, in these cases:

        * Its worker is away.
        * Its instances directory is away, and the source does not share that directory.

        The flow leads to the destination, or to the host that takes a dead source's place.

        If the host still owed the action itself, it never carried the action out.  Then that debt becomes void, and the
        host does not owe the undo.
        """
        details, host = self.undo_details(ctx), self.host(ctx)
        owed = self.owed_when_down and ctx.run.void(ctx.step, host=host)
        tried = Where.RETURN if kinds.of(ctx.run.kind).elsewhere else Where.DESTINATION
        may_owe = self.where is tried and never_started(ctx)
        try:
            if not (may_owe and ctx.run.owes(host)):
                self.command(ctx, details)
                return
        except StepError as error:
            apart = error.error_code == STORAGE_AWAY and not same_directory(ctx)
            away = may_owe and (error.error_code == UNREACHABLE or apart)
            if not (away or error.error_code == DECLARED_DOWN):
                raise
        if not owed:
            self.owe(ctx, self.owed_undo(ctx))

    def undo_evacuated(self, ctx: Context) -> None:
        """Undo the action on the destination only; a destination that is away owes the undo.

        What the source has is left to Nova.  So is what the destination has, where Nova evacuated the server to it.
        """
        if self.where is not Where.DESTINATION or lives_on(ctx, self.host(ctx)):
            return
        try:
            self.undo(ctx)
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise
            self.owe(ctx, self.owed_undo(ctx))

    def owed_undo(self, ctx: Context) -> msgspec.Struct:
        """Make the details of an undo that a host owes."""
        return self.undo_details(ctx)

    def owe(self, ctx: Context, details: msgspec.Struct, *, after: str = "") -> None:
        """Record that the host owes the action in this direction, to be paid once host ``after`` has shown its copy."""
        ctx.owe(self.host(ctx), self.action_name(), details, deadline=self.deadline, after=after)

    def command(self, ctx: Context, details: msgspec.Struct) -> dict[str, Any]:
        """Send one command in the step's own direction and return the answer."""
        return ctx.command(self.host(ctx), self.action_name(), details, deadline=self.deadline)

    @classmethod
    def action_name(cls) -> str:
        """Name the action: ``action``, or the step's own name where that is empty."""
        return cls.action or cls.step_name()


def has_disks(ctx: Context) -> bool:
    """Tell whether the server has a disk on its host that holds data: swap and volumes do not count."""
    return any(disk.name != SWAP for disk in before(ctx.move).guest.disks)


def never_started(ctx: Context) -> bool:
    """Tell whether the flow has never asked for a start of the guest on this alternate.

    False where the journal was adopted in the middle of the move: it may lack the start.  False also if source and
    destination are the same host, and in flows that bring the server back to its source.
    """
    record = kinds.of(ctx.run.kind)
    if not (record.carries is Carries.TO_DESTINATION or record.elsewhere) or ctx.same_host:
        return False
    there = MoveStep.host == ctx.return_host if record.elsewhere else MoveStep.attempt == ctx.move.attempt
    asked = sa.and_(MoveStep.flow_uuid == ctx.run.flow_uuid, MoveStep.step == "start_guest", there)
    adopted = sa.and_(MoveStep.move_id == ctx.move.id, MoveStep.step == ADOPTED)
    with ctx.run.journal.read() as session:
        return session.scalar(sa.select(MoveStep.seq).where(sa.or_(asked, adopted)).limit(1)) is None


def describe(ctx: Context, host: str, *, part: str) -> GuestState:
    """Ask a host what it holds of the server now."""
    return msgspec.convert(query_host(ctx, host, "describe_guest", part=part), type=GuestState)


def query_host(
    ctx: Context, host: str, action: str, *, part: str, details: msgspec.Struct | None = None
) -> dict[str, Any]:
    """Ask the host under a new key each time, so that its worker looks anew and does not repeat an earlier answer."""
    anew = f"{part}-{secrets.token_hex(4)}"
    return ctx.command(host, action, details or NoDetails(), direction="execute", part=anew)


def probe_name(ctx: Context) -> str:
    """Name the file that is the storage probe of this alternate."""
    return f".droveway-probe-{ctx.move.id}-{ctx.destination.attempt}"


def forget_probe(ctx: Context, host: str) -> None:
    """Have the host remove the storage probe of this alternate, and leftovers of an unfinished copy."""
    check = CheckDestination(definition="", vcpus=0, memory_mb=0, disk_bytes=0, probe=probe_name(ctx))
    ctx.command(host, "check_destination", check, direction="revert", part="probe")


def old_flavor(ctx: Context) -> dict[str, Any]:
    """Return the fields of the flavor that the server had before its move."""
    fields: dict[str, Any] = objects.flavor_data(before(ctx.move).old_flavor)
    return fields


def new_flavor(ctx: Context) -> dict[str, Any]:
    """Return the fields of the flavor that the server gets."""
    fields: dict[str, Any] = objects.flavor_data(before(ctx.move).new_flavor)
    return fields


def same_directory(ctx: Context) -> bool:
    """Tell whether both hosts keep their servers in one directory, as the forward flow found out.

    False for a host in the place of a dead source: its directory is never that of the destination.
    """
    if kinds.of(ctx.run.kind).elsewhere:
        return False
    return ctx.move.storage in ("shared", "same-host") or ctx.same_host
