"""Clears what hosts may still hold of a move that Nova has ended.

That is the guest, the copy of the disks, the disks that were set aside, and the manifest: the file that lists these.
The server is Nova's again, and may have been moved, stopped or resized since.  So a host removes only what has this
move's mark, and only where the server does not live.  Of two copies of the disks one is deleted only after the other
host has shown its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows import outcome
from droveway.flows.before import before, shows_disks
from droveway.flows.run import UNREACHABLE
from droveway.flows.steps.hosts import kept_copies
from droveway.flows.steps.hosts.command import describe, has_disks, same_directory
from droveway.flows.steps.rows import lives_on
from droveway.persistence.journal.moves import LEFT
from droveway.persistence.journal.tables import MoveStep
from droveway.wire import commands

if TYPE_CHECKING:
    import msgspec

    from droveway.flows.run import Context
    from droveway.wire.commands import GuestState
    from droveway.wire.values import Direction

DEADLINE: Final = 600.0


def stop_left_guest(ctx: Context) -> dict[str, Any]:
    """Revert: switch the destination's guest off if it is this move's and the server does not live there."""
    guest = _guest_state(ctx, ctx.destination.host)
    if guest is None or not guest.running or not _is_left(ctx, guest):
        return outcome.noted()
    return _clear(ctx, ctx.destination.host, "stop_guest", commands.StopGuest(grace=0.0, restart=False), "execute")


def discard_left_source(ctx: Context) -> dict[str, Any]:
    """Confirm: delete what is still set aside, if the destination has shown its copy in this flow.

    A destination that was declared down has shown none.  The source then owes the deletion, and carries it out once the
    destination is back and has shown its copy.
    """
    host, other = ctx.move.source_host, ctx.destination.host
    details = commands.DiscardSource(undefine=False, keep=False)
    guest, told = _guest_state(ctx, host), _told_of_copy(ctx)
    dead = "declared_down" in told and not ctx.move.delete_requested
    # Releases before this one took the word that a host is down for the proof, and the journal may have that still.
    proved = bool(told.get("proved")) and not dead
    if guest is None and proved:
        return _owe(ctx, host, "discard_source", details, "execute")
    if guest is not None and not guest.set_aside:
        return outcome.noted()
    if dead and not ctx.same_host:
        return _owe(ctx, host, "discard_source", details, "execute", after=other)
    if not proved:
        return outcome.noted(
            **{
                LEFT: f"what host {host} may have set aside was left, since host {other} could not show its copy: "
                "droveway audit tells what is there"
            }
        )
    return _clear(ctx, host, "discard_source", details, "execute")


def forget_manifest(ctx: Context) -> dict[str, Any]:
    """Revert: take the manifest away from the source's disks, which are in use again."""
    host = ctx.move.source_host
    guest = _guest_state(ctx, host)
    if guest is None:
        return _owe(ctx, host, "set_aside", commands.NoDetails(), "revert")
    if guest.set_aside or not lives_on(ctx, host):
        return outcome.noted()
    return _clear(ctx, host, "set_aside", commands.NoDetails())


def discard_left_copy(ctx: Context) -> dict[str, Any]:
    """Revert: undefine the destination's guest and delete its copy, if the source shows the server's disks whole.

    A source that is declared down shows nothing: the copy is then renamed, and deleted once that host is back.
    """
    host = ctx.destination.host
    if lives_on(ctx, host):
        return outcome.noted()
    undefine = commands.DefineGuest(definition="", vcpus=0, memory_mb=0, volumes=[], ports=[])
    found = _clear(ctx, host, "define_guest", undefine, part="guest")
    source = _guest_state(ctx, ctx.return_host)
    if has_disks(ctx) and (source is None or not shows_disks(source, before(ctx.move))):
        if ctx.run.declared_down(ctx.return_host):
            return _keep_copy(ctx, host)
        return outcome.noted(
            **{
                LEFT: f"what host {host} may have copied was left, since host {ctx.return_host} could not show "
                "the server's disks: droveway audit tells what is there"
            }
        )
    variant = commands.CopyDisks(variant="pull", source=ctx.return_host, address="", probe="")
    return found | _clear(ctx, host, "copy_disks", variant)


def _keep_copy(ctx: Context, host: str) -> dict[str, Any]:
    guest = _guest_state(ctx, host)
    if guest is not None and not guest.disks:
        return outcome.noted()
    try:
        kept_copies.rename(ctx, host)
    except StepError as error:
        return _left(host, error)
    details = commands.DiscardDestination(same_directory=same_directory(ctx))
    return _owe(ctx, host, "discard_destination", details, "execute", after=ctx.return_host)


def _is_left(ctx: Context, guest: GuestState) -> bool:
    return guest.move == ctx.move.id and not lives_on(ctx, ctx.destination.host)


def _told_of_copy(ctx: Context) -> dict[str, Any]:
    """Return what the check of the destination's copy in this flow came to; empty where it has no result."""
    told = sa.select(MoveStep.result).where(
        MoveStep.flow_uuid == ctx.run.flow_uuid,
        MoveStep.step == "check_destination_copy",
        MoveStep.direction == "execute",
        MoveStep.result.is_not(None),
    )
    with ctx.run.journal.read() as session:
        found = session.scalar(told.order_by(MoveStep.seq.desc()).limit(1))
    return found or {}


def _guest_state(ctx: Context, host: str) -> GuestState | None:
    """Ask the host what it holds of the server; None where it does not answer."""
    try:
        return describe(ctx, host, part=f"look-{host}")
    except StepError:
        return None


def _clear(
    ctx: Context,
    host: str,
    action: str,
    details: msgspec.Struct,
    direction: Direction = "revert",
    *,
    part: str = "clear",
) -> dict[str, Any]:
    """Have the host carry the action out; a host that is away owes it.

    What the host refuses to do stays undone, and the result names it.
    """
    try:
        ctx.command(host, action, details, deadline=DEADLINE, direction=direction, part=part)
    except StepError as error:
        if error.error_code == UNREACHABLE:
            return _owe(ctx, host, action, details, direction)
        return _left(host, error)
    return outcome.noted()


def _left(host: str, error: StepError) -> dict[str, Any]:
    return outcome.noted(**{LEFT: f"something was left on host {host}: {error.message}"})


def _owe(
    ctx: Context, host: str, action: str, details: msgspec.Struct, direction: Direction, *, after: str = ""
) -> dict[str, Any]:
    ctx.owe(host, action, details, deadline=DEADLINE, direction=direction, after=after)
    return outcome.noted(owes=host)
