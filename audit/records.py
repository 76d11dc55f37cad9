"""What an audit reads, as plain records: nothing here decides anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from droveway.clients.image import ACTIVE
from droveway.clients.port_resources import PortResources
from droveway.persistence.journal.states import ENDED, State
from droveway.printable import SHORT
from droveway.wire.queries import Guest

Flavors = Mapping[str, Mapping[str, Any] | None]
"""cur, old and new as fields of Nova's Flavor object."""

FLAVOR_COLUMNS: Final = {
    "instance_type_id": "id",
    "memory_mb": "memory_mb",
    "vcpus": "vcpus",
    "root_gb": "root_gb",
    "ephemeral_gb": "ephemeral_gb",
}
"""Columns of ``instances`` that repeat a field of the flavor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDevice:
    """One volume in a server's block device mappings."""

    volume: str
    attachment: str | None
    boot: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerRow:
    """A live row of ``instances`` with what hangs on it."""

    cell: str
    uuid: str
    name: str
    host: str | None
    vm_state: str
    task_state: str | None
    power_state: int | None
    hidden: bool
    columns: Mapping[str, int | None]
    """The flavor's copies in the row: instance_type_id, memory_mb, vcpus, root_gb, ephemeral_gb."""
    flavors: Flavors
    context: int | None
    """The migration that the migration context names; None when there is no context."""
    old_vm_state: str | None
    fence: str | None
    volumes: tuple[BlockDevice, ...]
    broken: str
    """Why a column could not be read; empty when all could."""
    project: str = ""
    user: str = ""
    zone: str | None = None
    """The availability zone of its host."""
    shelved_image: str | None = None
    """The image with its root disk that its system metadata names while it is shelved."""

    @property
    def from_volume(self) -> bool:
        """Whether the root disk is a volume."""
        return any(device.boot for device in self.volumes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigrationRow:
    """A live row of ``migrations`` of a resize or a cold migration."""

    cell: str
    id: int
    uuid: str
    server: str
    status: str
    source: str | None
    destination: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """A live row of ``compute_nodes``; its uuid is its provider's."""

    cell: str
    host: str
    uuid: str
    used: Mapping[str, int | None]
    """vcpus_used, memory_mb_used, local_gb_used, free_ram_mb, free_disk_gb, running_vms."""
    memory_mb: int
    local_gb: int
    reserved: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Resource class → what the host keeps for itself, by its inventories in Placement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MappingRow:
    """Which cell the API database says that a server is in; None when it is not built yet."""

    server: str
    cell: str | None
    deleted: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoveRow:
    """A move in the journal."""

    id: str
    kind: str
    server: str
    server_name: str
    state: State
    parked_from: State | None
    source_cell: str
    source_host: str
    dest_cell: str | None
    dest_host: str | None
    flow_uuid: str | None
    delete_requested: bool
    old_flavor: Mapping[str, Any] | None
    new_flavor: Mapping[str, Any] | None
    """Fields of Nova's Flavor object, as the move recorded them at its start; None before that or once it ended."""
    profiles: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Port → the profile of its binding, recorded likewise."""
    from_flavor: str = ""
    to_flavor: str = ""
    """The flavors' names, or their flavorids, as the move was asked for."""
    error_code: str = ""
    """Why it rests or has ended; empty when nothing was wrong."""
    marked: bool = False
    """Whether it has marked its server as being moved, so that it has written in the cell."""
    recorded: bool = False
    """Whether it has inserted its migration."""
    keep_image: bool = False
    """Whether it keeps an image of each disk until its end."""
    return_host: str = ""
    """The host that a revert under way brings its server to in the place of its dead source; empty in any other."""

    @property
    def ended(self) -> bool:
        """Whether no flow of it will ever run again."""
        return self.state in ENDED

    @property
    def between_cells(self) -> bool:
        """Tell whether it leads from one cell into another, so that each may have rows of its server."""
        return self.dest_cell not in (None, self.source_cell)

    @property
    def stage(self) -> State:
        """Its state; while it needs an operator, the one that it was parked from."""
        return self.parked_from or State.RUNNING if self.state is State.NEEDS_OPERATOR else self.state

    @property
    def short(self) -> str:
        """The letters of its id that commands take."""
        return self.id[:SHORT]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowRow:
    """A flow in the journal."""

    uuid: str
    move: str
    kind: str
    ended: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRow:
    """A run of a step that has no end in the journal."""

    move: str
    flow: str
    step: str
    direction: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntentRow:
    """A cloud write of which nobody has seen the end: ``open`` or ``late``."""

    move: str
    service: str
    call: str
    state: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebtRow:
    """A clean-up that a host still owes, or owed until it was written off."""

    id: int
    host: str
    move: str
    action: str
    written_off: bool = False
    kept: bool = False
    """Whether it is the end of what the host keeps of the move's source for a time."""
    overdue: bool = False
    """Whether that should have ended long ago."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PortView:
    """A port of a server."""

    id: str
    server: str
    bindings: Mapping[str, str]
    """Host → ACTIVE or INACTIVE."""
    profile: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of the active binding, as the vnic type."""
    vnic_type: str = "normal"
    owner: str = "compute:nova"
    """Its device_owner."""
    resources: PortResources | None = None
    """What it asks of Placement for itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer of allocations; ``kind`` is its consumer type, a server's for one that Nova made without a type."""

    kind: str
    project: str
    user: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachmentView:
    """An attachment of a volume; ``host`` is None when it is exported to none or the service does not say where."""

    id: str
    volume: str
    server: str
    host: str | None
    status: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageView:
    """An image that a move or a shelve made, or that a server names as its root disk."""

    id: str
    name: str
    move: str
    """Empty when Nova made it."""
    server: str = ""
    """Whose root disk a shelve put into it; empty for what no shelve made."""
    status: str = ACTIVE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory:
    """An entry below a host's instances directory."""

    name: str
    is_directory: bool
    files: frozenset[str]
    move: str
    """The move that its marker or manifest names; empty when it has none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Store:
    """One instances directory and the hosts that use it: more than one where storage is shared."""

    hosts: tuple[str, ...]
    path: str
    entries: tuple[Directory, ...]
    """What any of the hosts sees in it."""
    own: Mapping[str, tuple[Directory, ...]] = dataclasses.field(default_factory=dict)
    """Host → what that host sees in it, where each was asked; else all see the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostView:
    """What a host's hypervisor really holds."""

    host: str
    guests: tuple[Guest, ...]
    connections: frozenset[tuple[str, str]]
    """(server, volume)."""
    plugged: frozenset[tuple[str, str]]
    """(server, port)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiskDigest:
    """What a disk holds that is set aside or kept; ``digest`` is empty when it was not read to its end yet."""

    host: str
    name: str
    """Of its directory."""
    disk: str
    digest: str
    read: int
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandView:
    """A command, a result or what a worker told of its progress, in ZooKeeper."""

    host: str
    key: str
    folder: str
    """commands, results or progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unseen:
    """A host, or a part of one, that could not be looked at."""

    host: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostsSeen:
    """What was seen of the hosts, each of which is in ``hosts`` or in ``unseen``."""

    hosts: tuple[HostView, ...] = ()
    stores: tuple[Store, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    digests: tuple[DiskDigest, ...] = ()
    commands: tuple[CommandView, ...] = ()
    """Empty in a lab, whose ZooKeeper ends with each command."""
