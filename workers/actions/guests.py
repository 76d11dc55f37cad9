"""Actions that stop, define and start guests."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from droveway.errors import CoordinationLost, DestinationFault, DrovewayError, Fenced
from droveway.wire.commands import DefineGuest, NoDetails, PrepareSourceGuest, Ready, StartGuest, StopGuest
from droveway.wire.values import PERMISSION_VOID
from droveway.workers.actions.connections import as_ports, connect_all, disconnect_all
from droveway.workers.actions.definitions import new_definition
from droveway.workers.actions.ownership import (
    deleted_name,
    forget_manifest,
    in_use,
    own_copy,
    refuse_foreign,
    refuse_running,
    set_aside_name,
    undefine_own,
)
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context
from droveway.workers.hypervisors.base import Fence, GuestRecord, Mark
from droveway.workers.permission import PermissionVoid

ASKED: Final = "asked"
DOWN: Final = "down"
"""Notes of `stop_guest`: the guest was asked to shut down, and the shutdown has come to its end."""


@action(thrifty=True)
def stop_guest(ctx: Context, details: StopGuest) -> dict[str, Any]:
    """Shut the guest down, or cut it off after the grace; the answer says whether it ran before the step began."""
    guest = _known(ctx)
    runs = guest is not None and guest.running
    ran = ctx.journal.note(ctx.step_key, "ran", int(runs))
    ctx.effect("stop")
    if runs:
        # From here on the guest may be shutting down, however long that takes.
        ctx.journal.note(ctx.step_key, ASKED, 1)
        ctx.hypervisor.stop(ctx.server, grace=details.grace, fence=ctx.fence)
    ctx.effect("stopped")
    return {"ran": bool(ran)}


@undo
def undo_stop_guest(ctx: Context, details: StopGuest) -> dict[str, Any]:
    """Start the guest again if it is to run.

    It starts only on its own disks and, where the command carries a permission, only while that is good.
    """
    guest = _known(ctx)
    if details.restart:
        _refuse_set_aside(ctx)
        if guest is not None and guest.running and _goes_down(ctx):
            # A guest that is shutting down still runs, and would be off a moment after it was taken for running.
            ctx.effect("end_stop")
            ctx.hypervisor.stop(ctx.server, grace=details.grace, fence=ctx.fence)
            guest = _known(ctx)
        ctx.journal.note(ctx.step_key, DOWN, 1)
        ctx.effect("start")
        ctx.hypervisor.start(ctx.server, _permitted(ctx, details.permission, guest))
    ctx.effect("started")
    ctx.journal.forget(ctx.step_key)
    return {}


def _goes_down(ctx: Context) -> bool:
    """Return whether the step asked the guest to shut down, and no undo has seen the shutdown end yet."""
    return bool(ctx.journal.noted(ctx.step_key, ASKED, 0)) and not ctx.journal.noted(ctx.step_key, DOWN, 0)


@action(of_destination=True, fills_disk=True)
def define_guest(ctx: Context, details: DefineGuest) -> dict[str, Any]:
    """Define the guest with its new sizes on the copy of its disks; the answer has its start count on this host."""
    _known(ctx)
    own_copy(ctx)
    volumes = ctx.volumes(details.volumes)
    formats = ctx.directories.formats(ctx.server)
    disks = in_use(ctx, formats)
    definition = details.definition or new_definition(
        ctx, vcpus=details.vcpus, memory_mb=details.memory_mb, disks=disks, volumes=details.volumes
    )
    ctx.effect("define")
    ctx.hypervisor.define(
        ctx.server,
        definition,
        vcpus=details.vcpus,
        memory_mb=details.memory_mb,
        disks=disks,
        formats=formats,
        volumes=volumes,
        ports=as_ports(details.ports),
        mark=ctx.mark,
    )
    ctx.effect("defined")
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None or guest.mark is None or guest.mark.move != ctx.move:
        raise ctx.fault(f"host {ctx.host.name} does not show the guest of server {ctx.server} that it just defined")
    return {"starts": guest.starts}


@undo
def undo_define_guest(ctx: Context, details: DefineGuest) -> dict[str, Any]:
    """Undefine the guest; if this host is also the source, put back the definition that the guest had before."""
    guest = _known(ctx)
    if not details.previous:
        undefine_own(ctx)
        return {}
    if guest is not None and (guest.mark is None or guest.mark.move != ctx.move):
        return {}  # the guest still has the definition that it had before the step
    refuse_running(ctx, "its definition is put back")
    aside = set_aside_name(ctx.server)
    directory = aside if ctx.directories.exists(aside) else ctx.server
    _define_as_it_was(ctx, details, details.previous, directory, mark=None)
    ctx.effect("defined")
    return {}


@action(thrifty=True)
def prepare_start(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Issue a permission to start the guest here: a `droveway.wire.commands.Ready`.

    Raises StepError (``foreign``) when the guest belongs to another move that has not ended; checks nothing else.
    """
    _known(ctx)
    ctx.effect("ready")
    found: dict[str, Any] = msgspec.to_builtins(Ready(permission=ctx.host.permissions.ready(ctx.server)))
    return found


@action(of_destination=True, thrifty=True)
def start_guest(ctx: Context, details: StartGuest) -> dict[str, Any]:
    """Start the guest on its new host: the point of no return.

    Raises DestinationFault when it is proved that the guest never started.  Raises StepError ``start-unknown`` when
    that cannot be known, and ``went-off`` for a guest that was started and is off again.  The step's first try notes
    the start count, so that a later try sees whether an earlier one started the guest.
    """
    if not details.power_on:
        ctx.effect("leave_off")
        ctx.fence()
        forget_manifest(ctx)
        return {"started": False, "running": False, "starts": _starts(_known(ctx))}
    guest = _known(ctx)
    if guest is None:
        raise ctx.fault(f"server {ctx.server} is not defined on {ctx.host.name}: it cannot start", code="start-failed")
    before = ctx.journal.note(ctx.step_key, "starts", guest.starts - int(guest.running))
    _refuse_set_aside(ctx)
    ctx.effect("start")
    fence = _permitted(ctx, details.permission, guest)
    ctx.fence()
    try:
        # Also for a guest that runs: a starter that was killed may have left it half started.
        ctx.hypervisor.start(ctx.server, fence)
    except (Fenced, CoordinationLost):
        raise
    except (DrovewayError, OSError) as error:
        _judge(ctx, before, error)
    ctx.effect("started")
    # The guest may have written to its disks, whether it still runs or not.
    forget_manifest(ctx)
    return {"started": True, "running": True, "starts": require_up(ctx).starts}


def require_up(ctx: Context) -> GuestRecord:
    """Return the guest that was started, as it is now; raises StepError (``went-off``) when it is off.

    The start count does not matter here: a guest that somebody started by hand runs as well.
    """
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None or not guest.running:
        raise ctx.failed(
            f"the guest of server {ctx.server} was started on {ctx.host.name} and went off at once: its console and "
            "the hypervisor's log say why",
            code="went-off",
        )
    return guest


@undo
def undo_start_guest(ctx: Context, _: StartGuest) -> dict[str, Any]:
    """Leave the guest off; raises StepError (``start-unknown``) unless it is proved that the guest never started."""
    guest = _known(ctx)
    if guest is not None:
        before = ctx.journal.noted(ctx.step_key, "starts", guest.starts)
        if guest.running or guest.starts != before:
            raise ctx.failed(
                f"the guest of server {ctx.server} has run on {ctx.host.name}: its start is not undone",
                code="start-unknown",
            )
    ctx.effect("left_off")
    ctx.journal.forget(ctx.step_key)
    return {}


@action()
def prepare_source_guest(ctx: Context, details: PrepareSourceGuest) -> dict[str, Any]:
    """Define the guest as it was before the move, without a mark, and connect its volumes and ports."""
    _known(ctx)
    connect_all(ctx, details.volumes, details.ports)
    refuse_running(ctx, "its definition is put back")
    _define_as_it_was(ctx, details, details.definition, ctx.server, mark=None)
    ctx.effect("defined")
    return {"starts": _starts(ctx.hypervisor.guest(ctx.server))}


@undo
def undo_prepare_source_guest(ctx: Context, details: PrepareSourceGuest) -> dict[str, Any]:
    """Disconnect volumes and ports; if this host is also the destination, first put the definition of its guest back.

    The details have that definition in ``previous``, which is empty on any other host.
    """
    guest = _known(ctx)
    if details.previous and (guest is None or guest.mark is None):
        refuse_running(ctx, "its definition is put back")
        copy = deleted_name(ctx.server)
        directory = copy if ctx.directories.exists(copy) else ctx.server
        _define_as_it_was(ctx, details, details.previous, directory, mark=ctx.mark)
    disconnect_all(ctx, details.volumes, details.ports)
    return {}


def _define_as_it_was(
    ctx: Context, details: DefineGuest | PrepareSourceGuest, definition: str, directory: str, *, mark: Mark | None
) -> None:
    """Define the guest by a definition that it had on this host before, sizes included, on disks in ``directory``."""
    volumes = ctx.volumes(details.volumes)
    formats = ctx.directories.formats(directory)
    ctx.effect("define")
    ctx.hypervisor.define(
        ctx.server,
        definition,
        vcpus=None,
        memory_mb=None,
        disks=in_use(ctx, formats),
        formats=formats,
        volumes=volumes,
        ports=as_ports(details.ports),
        mark=mark,
        own=True,
    )


def _known(ctx: Context) -> GuestRecord | None:
    """Return the guest, or None; raises StepError (``foreign``) when it belongs to another move that has not ended."""
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None:
        refuse_foreign(ctx, guest)
    return guest


def _permitted(ctx: Context, permission: str, guest: GuestRecord | None) -> Fence:
    """Return what the hypervisor calls right before it starts the guest.

    It fences, and then checks that the permission is still good.  If the command has no permission, it fences and
    checks nothing.  If the guest runs, it checks nothing either: an earlier run of this command has started the guest
    with a good permission.
    """
    if not permission or (guest is not None and guest.running):
        return ctx.fence

    def fence() -> None:
        ctx.fence()
        ctx.host.permissions.require(permission, ctx.server, ctx.host.name)

    return fence


def _refuse_set_aside(ctx: Context) -> None:
    """Raise StepError (``missing``) when the server's directory is not there: its guest would have no disks."""
    if not ctx.directories.exists(ctx.server):
        raise ctx.failed(
            f"{ctx.directories.path(ctx.server)} is not there on {ctx.host.name}: the guest is not started without "
            "its disks",
            code="missing",
        )


def _judge(ctx: Context, before: int, error: DrovewayError | OSError) -> None:
    """Judge a failed start: return if the guest runs all the same and the start was counted, else raise an error.

    The error is a DestinationFault when it is proved that the guest never started, else StepError (``start-unknown``).
    """
    try:
        guest = ctx.hypervisor.guest(ctx.server)
    except (DrovewayError, OSError) as blind:
        raise ctx.failed(f"nobody can say whether {ctx.server} runs: {blind}", code="start-unknown") from None
    running = guest is not None and guest.running
    if running and _starts(guest) != before:
        return
    if not running and _starts(guest) == before and isinstance(error, DestinationFault):
        raise ctx.fault(
            str(error), code=PERMISSION_VOID if isinstance(error, PermissionVoid) else "start-failed"
        ) from None
    raise ctx.failed(
        f"whether the guest of server {ctx.server} started on {ctx.host.name} is unknown: {error}",
        code="start-unknown",
    ) from None


def _starts(guest: GuestRecord | None) -> int:
    return guest.starts if guest is not None else 0
