"""What the host steps share: the command to one worker, and what its details are made of."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Final

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import before
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step, Where
from droveway.flows.steps.rows import lives_on
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Carries
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova import objects
from droveway.wire.commands import CheckDestination, GuestState, NoDetails
from droveway.wire.values import SWAP

STORAGE_AWAY: Final = "storage-away"
"""The code of an undo for which the instances directory is not the one that its step worked in."""

ADOPTED: Final = "adopt"
"""The history's row of a move that was unfinished when the journal was adopted as it is."""


OWED: Final = {"owed": True}
"""The result of a step whose host is declared down and owes it."""


class HostStep(Step):
    """A step whose ``action`` one worker carries out; `details` builds what it needs to know."""

    leaves = NOTHING
    action: ClassVar[str] = ""
    owed_when_down: ClassVar[bool] = False
    """Whether the flow goes on without a host that is declared down, which then owes the action."""

    def details(self, ctx: Context) -> msgspec.Struct:  # noqa: ARG002 - most actions need to know something
        """The action's details, the same for both directions unless `undo_details` says otherwise."""
        return NoDetails()

    def undo_details(self, ctx: Context) -> msgspec.Struct:
        """The details of the undo."""
        return self.details(ctx)

    def host(self, ctx: Context) -> str:
        """The host whose worker is asked."""
        if self.where is Where.RETURN:
            return ctx.return_host
        return ctx.move.source_host if self.where is Where.SOURCE else ctx.destination.host

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Command the worker and return its answer."""
        return self.command_or_owe(ctx, self.details(ctx))

    def command_or_owe(self, ctx: Context, details: msgspec.Struct) -> dict[str, Any]:
        """The worker's answer, or that its host owes it: nothing waits for one that is declared down."""
        try:
            return self.command(ctx, details)
        except StepError as error:
            if not (self.owed_when_down and error.error_code == DECLARED_DOWN):
                raise
        self.owe(ctx, details)
        return dict(OWED)

    def undo(self, ctx: Context) -> None:
        """Command the worker to undo the action.

        A destination that is away, and on which no guest ran, owes it; so does one whose own instances directory is
        away, since what it undoes lies there.  Each host that is declared down owes it, unless it owed the action
        itself and so never carried it out.
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
        """Take away what the destination got; one that is away owes it.  What the source has is left to Nova.

        Nova may have brought the server to the very destination: then nothing of it is touched there either.
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
        """The details of the undo that a host owes."""
        return self.undo_details(ctx)

    def owe(self, ctx: Context, details: msgspec.Struct, *, after: str = "") -> None:
        """Record that the host owes this direction of the action, once ``after`` has shown its copy."""
        ctx.owe(self.host(ctx), self.action_name(), details, deadline=self.deadline, after=after)

    def command(self, ctx: Context, details: msgspec.Struct) -> dict[str, Any]:
        """One command in the step's own direction."""
        return ctx.command(self.host(ctx), self.action_name(), details, deadline=self.deadline)

    @classmethod
    def action_name(cls) -> str:
        """Step and action mostly have one name."""
        return cls.action or cls.step_name()


def has_disks(ctx: Context) -> bool:
    """Whether the server has a disk on its host, not on a volume, that holds anything of its own."""
    return any(disk.name != SWAP for disk in before(ctx.move).guest.disks)


def never_started(ctx: Context) -> bool:
    """Whether the flow never came to starting the guest on this alternate: so nobody can have started it.

    In a journal that was adopted as it is, what is not there proves nothing of the moves that were under way.
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
    """What a host really holds of the server now."""
    return msgspec.convert(query_host(ctx, host, "describe_guest", part=part), type=GuestState)


def query_host(
    ctx: Context, host: str, action: str, *, part: str, details: msgspec.Struct | None = None
) -> dict[str, Any]:
    """Ask the host something that it answers anew each time: what it said to an earlier asking proves nothing now."""
    anew = f"{part}-{secrets.token_hex(4)}"
    return ctx.command(host, action, details or NoDetails(), direction="execute", part=anew)


def probe_name(ctx: Context) -> str:
    """The storage probe of one attempt."""
    return f".droveway-probe-{ctx.move.id}-{ctx.destination.attempt}"


def forget_probe(ctx: Context, host: str) -> None:
    """Have the host remove the storage probe of this attempt, and what was left unfinished there."""
    check = CheckDestination(definition="", vcpus=0, memory_mb=0, disk_bytes=0, probe=probe_name(ctx))
    ctx.command(host, "check_destination", check, direction="revert", part="probe")


def old_flavor(ctx: Context) -> dict[str, Any]:
    """The fields of the flavor that the server had before its move."""
    fields: dict[str, Any] = objects.flavor_data(before(ctx.move).old_flavor)
    return fields


def new_flavor(ctx: Context) -> dict[str, Any]:
    """The fields of the flavor that the server gets."""
    fields: dict[str, Any] = objects.flavor_data(before(ctx.move).new_flavor)
    return fields


def same_directory(ctx: Context) -> bool:
    """Whether both hosts keep their servers in one directory, as the forward flow found out.

    The host in the place of a dead source has its copy from images, in a directory of its own.
    """
    if kinds.of(ctx.run.kind).elsewhere:
        return False
    return ctx.move.storage in ("shared", "same-host") or ctx.same_host
