"""Actions that only look: what a host holds of a server, and whether it could run the server."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from droveway.errors import StepError
from droveway.wire.commands import (
    CheckCopy,
    CheckDestination,
    CheckGuest,
    DiskInfo,
    FindStorage,
    GuestHealth,
    GuestState,
    NoDetails,
)
from droveway.wire.values import SWAP, harmless
from droveway.workers.actions import backing_files
from droveway.workers.actions.definitions import new_definition
from droveway.workers.actions.ownership import (
    base_of,
    discard_parts,
    hold_storage,
    is_set_aside,
    own_copy,
    own_manifest,
    refuse_foreign,
    require_storage,
    set_aside_name,
)
from droveway.workers.actions.table import action, undo
from droveway.workers.context import Context
from droveway.workers.transfer.sources import LocalSource

_BEFORE: Final = "record_before"
"""The step that looks at a server before its move touches it; a guest that no other host could run is refused here."""


@action(thrifty=True)
def describe_guest(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Report what this host really has of the server: a `droveway.wire.commands.GuestState`."""
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None and ctx.command.step == _BEFORE:
        ctx.hypervisor.require_movable(guest.definition)
    state = GuestState(
        defined=guest is not None and bool(guest.definition),
        running=guest is not None and guest.running,
        starts=guest.starts if guest is not None else 0,
        definition=guest.definition if guest is not None else "",
        move=guest.mark.move if guest is not None and guest.mark is not None else "",
        disks=_disks(ctx) if ctx.directories.exists(ctx.server) else [],
        set_aside=ctx.directories.exists(set_aside_name(ctx.server)),
        connector=ctx.hypervisor.connector(),
    )
    found: dict[str, Any] = msgspec.to_builtins(state)
    return found


@action(of_destination=True, fills_disk=True)
def check_destination(ctx: Context, details: CheckDestination) -> dict[str, Any]:
    """Check that the guest could run here, and write the storage probe.

    The storage probe is a file in the instances directory.  If the source sees it too (`find_storage`), the hosts share
    that directory.  The answer has the host's connector for Cinder and the free space in bytes.  Raises
    DestinationFault when the host cannot run the guest, with the code ``disk-full`` when the guest's disks do not fit.
    """
    definition = details.definition or new_definition(
        ctx, vcpus=details.vcpus, memory_mb=details.memory_mb, disks=[], volumes=details.volumes
    )
    ctx.hypervisor.check(definition, vcpus=details.vcpus, memory_mb=details.memory_mb)
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is not None:
        refuse_foreign(ctx, guest)
    free = ctx.directories.free_bytes()
    if free < details.disk_bytes:
        raise ctx.fault(
            f"host {ctx.host.name} has {free} bytes free, the disks of server {ctx.server} need {details.disk_bytes}",
            code="disk-full",
        )
    hold_storage(ctx)
    ctx.effect("probe")
    ctx.directories.write_probe(details.probe, ctx.move)
    ctx.effect("probed")
    return {"connector": ctx.hypervisor.connector(), "free_bytes": free}


@undo
def undo_check_destination(ctx: Context, details: CheckDestination) -> dict[str, Any]:
    """Remove the storage probe and what this move left unfinished."""
    require_storage(ctx)
    ctx.effect("probe")
    ctx.directories.remove_probe(details.probe)
    discard_parts(ctx)
    ctx.journal.forget(ctx.step_key)
    return {}


@action()
def find_storage(ctx: Context, details: FindStorage) -> dict[str, Any]:
    """Report whether the destination's storage probe is seen here; an error is raised and never taken for "no".

    Disks that could not go along are refused here, while the guest still runs.  If a base is missing, the
    guest could not start again once it is off.
    """
    ctx.effect("look")
    for disk in _disks(ctx) if ctx.directories.exists(ctx.server) else []:
        if disk.backing and disk.name != SWAP:
            backing_files.require(ctx, disk)
    return {"shared": ctx.directories.has_probe(details.probe)}


@action(thrifty=True)
def check_copy(ctx: Context, details: CheckCopy) -> dict[str, Any]:
    """Check that the destination's guest is as recorded and its disks are whole; the answer says whether it runs."""
    own_copy(ctx)
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None or guest.mark is None or guest.mark.move != ctx.move:
        raise ctx.failed(f"{ctx.host.name} has no guest of server {ctx.server} from move {ctx.move}", code="damaged")
    if (guest.vcpus, guest.memory_mb) != (details.vcpus, details.memory_mb):
        raise ctx.failed(
            f"the guest of server {ctx.server} on {ctx.host.name} has {guest.vcpus} vCPUs and {guest.memory_mb} MiB, "
            f"not {details.vcpus} and {details.memory_mb}",
            code="damaged",
        )
    marker = ctx.directories.marker(ctx.server)
    disks = {disk.name: disk for disk in _disks(ctx)}
    for copied in marker.disks if marker is not None else []:
        found = disks.get(copied.name)
        # The file of a disk never gets shorter: neither the guest nor a change of the flavor shortens it.
        if (
            found is None
            or (found.format, found.backing) != (copied.format, base_of(ctx, copied))
            or ctx.directories.path(ctx.server, copied.name).stat().st_size < copied.size
        ):
            raise ctx.failed(
                f"{copied.name} of server {ctx.server} on {ctx.host.name} is gone or not whole", code="damaged"
            )
    return {"running": guest.running, "starts": guest.starts, "disks": [msgspec.to_builtins(disks[d]) for d in disks]}


@action(thrifty=True)
def check_set_aside(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Check that the disks set aside are this move's and all that the manifest lists.

    The answer has the disks and the host's connector for Cinder.
    """
    require_storage(ctx, stem=ctx.move)
    name = set_aside_name(ctx.server)
    if not ctx.directories.exists(name) and is_set_aside(ctx)(ctx.server):
        # A revert has renamed the directory back.  A conductors' journal that was restored from an older copy does not
        # know of that revert.
        name = ctx.server
    manifest = own_manifest(ctx, name)
    source = LocalSource(ctx.host.name, ctx.directories, name, manifest)
    try:
        for disk in manifest.disks:
            source.disk_map(disk.name)
    finally:
        source.close()
    return {
        "disks": [msgspec.to_builtins(disk) for disk in manifest.disks],
        "connector": ctx.hypervisor.connector(),
    }


@action()
def check_guest(ctx: Context, details: CheckGuest) -> dict[str, Any]:
    """Report whether the guest runs, for how long, and whether its agent answers: a `GuestHealth`."""
    guest = ctx.hypervisor.guest(ctx.server)
    if guest is None:
        raise ctx.failed(f"{ctx.host.name} has no guest of server {ctx.server}", code="missing")
    running_for = ctx.hypervisor.running_for(ctx.server) if guest.running else None
    answers, why = (None, "") if running_for is None else _ask_agent(ctx, details.probe_seconds)
    health: dict[str, Any] = msgspec.to_builtins(
        GuestHealth(
            running=running_for is not None,
            starts=guest.starts,
            running_for=running_for or 0.0,
            answers=answers,
            why=why,
        )
    )
    return health


@action()
def check_health(ctx: Context, details: CheckGuest) -> dict[str, Any]:
    """Answer as `check_guest` does: conductors below protocol level 4 (`droveway.wire.levels`) ask by this name."""
    return check_guest(ctx, details)


def _ask_agent(ctx: Context, seconds: float) -> tuple[bool | None, str]:
    """Ask the guest's agent, which has ``seconds`` to answer, and return `GuestHealth.answers` and `GuestHealth.why`.

    The first is True when the agent answered, False when it did not, and None when it was not asked or the guest has
    none.  The second says why it did not answer.
    """
    if not seconds:
        return None, ""
    ctx.effect("probe")
    try:
        return (True if ctx.hypervisor.ping_agent(ctx.server, seconds=seconds) else None), ""
    except StepError as error:
        return False, harmless(error.message)


def _disks(ctx: Context) -> list[DiskInfo]:
    return [
        ctx.hypervisor.disk_info(ctx.directories.path(ctx.server, disk), disk_format)
        for disk, disk_format in ctx.directories.formats(ctx.server).items()
    ]
