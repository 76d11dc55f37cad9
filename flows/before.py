"""What a server was before its move: written at the start, read by every undo and by revert.

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

"""Made anew wherever a server comes to be, never copied."""


class VolumeBefore(msgspec.Struct, frozen=True, kw_only=True):
    """One attached volume."""

    volume: str
    attachment: str
    device: str
    boot: bool


class PortBefore(msgspec.Struct, frozen=True, kw_only=True):
    """One port and its binding on the source."""

    port: str
    mac: str
    profile: dict[str, Any]
    device_owner: str
    resources: PortResources | None = None
    """What it asks of Placement for itself."""


class ImageBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The image of a shelved server; ``size`` in bytes."""

    image: str
    size: int
    checksum: str
    algorithm: str
    format: str


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """A server as `record_before` found it; flavors are Nova's Flavor objects."""

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
    """Whether its user stopped it since, in the middle of the move: the record then says so of its state too."""

    last_migration: int = 0
    """The newest migration that the server had: a later evacuation is one that came during the move."""
    image: ImageBefore | None = None
    """What a shelved server is made from again; None for one that has volumes alone, and for all others."""

    @property
    def powered_on(self) -> bool:
        """Whether the server is to run once it has arrived: it does not when it was stopped."""
        return self.vm_state != VmState.STOPPED and not self.stopped


def before(move: Move) -> Before:
    """What `record_before` wrote; raises StepError when it has not run."""
    if move.before is None:
        raise StepError(f"move {move.id} has no record of its server before the move", code="internal")
    return msgspec.convert(move.before, type=Before)


def held_by_ports(record: Before) -> dict[str, dict[str, int]]:
    """Return what the ports held on the source, by whom their bindings named: provider → resource class → amount."""
    return held_together((port.resources, port.profile.get(ALLOCATION)) for port in record.ports if port.resources)


def shows_disks(guest: GuestState, record: Before) -> bool:
    """Whether a host's answer to `describe_guest` shows each disk that the server had before its move, as large."""
    found = {disk.name: disk for disk in guest.disks}
    return all(
        disk.name in found and found[disk.name].virtual_size >= disk.virtual_size
        for disk in record.guest.disks
        if disk.name != SWAP
    )


def stopped_since(record: Before) -> Before:
    """Return the record of the server once its user has stopped it in the middle of its move.

    One that is unshelved was shelved all the same.
    """
    if record.vm_state == VmState.SHELVED_OFFLOADED:
        return msgspec.structs.replace(record, stopped=True)
    guest = msgspec.structs.replace(record.guest, running=False)
    off = {"vm_state": VmState.STOPPED, "power_state": PowerState.SHUTDOWN, "guest": guest}
    return msgspec.structs.replace(record, stopped=True, **off)


def as_json(record: Before) -> dict[str, Any]:
    """The record as the journal stores it."""
    stored: dict[str, Any] = msgspec.to_builtins(record)
    return stored
