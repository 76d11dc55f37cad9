"""Holds what a server was before its move: the first step writes it, and every undo and revert reads it.

It is changed only where a user stops the server in the middle of the move.
"""

from __future__ import annotations

from typing import Any

import msgspec

from droveway.clients.port_resources import ALLOCATION, PortResources, held_together
from droveway.errors import StepError
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.vm_states import PowerState, VmState
from droveway.wire.commands import GuestState
from droveway.wire.values import SWAP


class VolumeBefore(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one attached volume."""

    volume: str
    attachment: str
    device: str
    boot: bool


class PortBefore(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one port and its binding on the source."""

    port: str
    mac: str
    profile: dict[str, Any]
    device_owner: str
    resources: PortResources | None = None
    """The resources that the port itself asks Placement for."""


class ImageBefore(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the image of a shelved server; ``size`` is in bytes."""

    image: str
    size: int
    checksum: str
    algorithm: str
    format: str


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a server as `record_before` found it; flavors are Nova's Flavor objects."""

    user_id: str
    project_id: str
    vm_state: str
    power_state: int | None
    availability_zone: str | None
    node: str
    compute_id: int | None
    image_ref: str
    boot_from_volume: bool
    launched_at: str | None
    old_flavor: dict[str, Any]
    new_flavor: dict[str, Any]
    request_spec: str
    volumes: list[VolumeBefore]
    ports: list[PortBefore]
    guest: GuestState
    stopped: bool = False
    """Whether its user stopped it in the middle of the move; `stopped_since` says what else the record then has."""
    last_migration: int = 0
    """The id of the newest migration that the server had: an evacuation with a higher id came during the move."""
    image: ImageBefore | None = None
    """The image of a shelved server; None for one whose root disk is a volume, and for a server that is not shelved."""

    @property
    def powered_on(self) -> bool:
        """Tell whether the server is to run once it has arrived: not when it was stopped."""
        return self.vm_state != VmState.STOPPED and not self.stopped


def before(move: Move) -> Before:
    """Return what `record_before` wrote; raises StepError when it has not run."""
    if move.before is None:
        raise StepError(f"move {move.id} has no record of its server before the move", code="internal")
    return msgspec.convert(move.before, type=Before)


def held_by_ports(record: Before) -> dict[str, dict[str, int]]:
    """Return what the ports held on the source: provider that their bindings name → resource class → amount."""
    return held_together((port.resources, port.profile.get(ALLOCATION)) for port in record.ports if port.resources)


def shows_disks(guest: GuestState, record: Before) -> bool:
    """Tell whether a host's answer to `describe_guest` shows each disk of the server, at least as large as before.

    Swap does not count: it is made anew on each host.
    """
    found = {disk.name: disk for disk in guest.disks}
    return all(
        disk.name in found and found[disk.name].virtual_size >= disk.virtual_size
        for disk in record.guest.disks
        if disk.name != SWAP
    )


def stopped_since(record: Before) -> Before:
    """Return the record of a server that its user has stopped in the middle of its move.

    The record of a server that is being unshelved keeps its vm_state, since an undo leaves the server shelved.
    """
    if record.vm_state == VmState.SHELVED_OFFLOADED:
        return msgspec.structs.replace(record, stopped=True)
    guest = msgspec.structs.replace(record.guest, running=False)
    off = {"vm_state": VmState.STOPPED, "power_state": PowerState.SHUTDOWN, "guest": guest}
    return msgspec.structs.replace(record, stopped=True, **off)


def as_json(record: Before) -> dict[str, Any]:
    """Return the record as the journal stores it."""
    stored: dict[str, Any] = msgspec.to_builtins(record)
    return stored
