"""Defines the records that an audit reads; nothing here compares them."""

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
"""The flavors cur, old and new, each as the fields of Nova's Flavor object."""

FLAVOR_COLUMNS: Final = {
    "instance_type_id": "id",
    "memory_mb": "memory_mb",
    "vcpus": "vcpus",
    "root_gb": "root_gb",
    "ephemeral_gb": "ephemeral_gb",
}
"""The columns of ``instances`` that repeat a field of the flavor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDevice:
    """One volume in a server's block device mappings."""

    volume: str
    attachment: str | None
    boot: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerRow:
    """A live row of ``instances`` with the rows of other tables that belong to it."""

    cell: str
    uuid: str
    name: str
    host: str | None
    vm_state: str
    task_state: str | None
    power_state: int | None
    hidden: bool
    columns: Mapping[str, int | None]
    """The columns that repeat the flavor: instance_type_id, memory_mb, vcpus, root_gb, ephemeral_gb."""
    flavors: Flavors
    context: int | None
    """The migration that the migration context names; None when there is no context."""
    old_vm_state: str | None
    fence: str | None
    volumes: tuple[BlockDevice, ...]
    broken: str
    """Why a column could not be read; empty when all could be read."""
    project: str = ""
    user: str = ""
    zone: str | None = None
    """The availability zone of its host."""
    shelved_image: str | None = None
    """The image with the root disk of a shelved server, as its system metadata name it."""

    @property
    def from_volume(self) -> bool:
        """Say whether the root disk is a volume."""
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
    """A live row of ``compute_nodes``; its uuid is that of its provider in Placement."""

    cell: str
    host: str
    uuid: str
    used: Mapping[str, int | None]
    """The columns vcpus_used, memory_mb_used, local_gb_used, free_ram_mb, free_disk_gb and running_vms."""
    memory_mb: int
    local_gb: int
    reserved: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The amount of each resource class that the host reserves for itself, by its inventories in Placement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MappingRow:
    """The instance mapping of a server in Nova's API database."""

    server: str
    cell: str | None
    """The server's cell; None while the server is not built yet."""
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
    """The fields of Nova's Flavor object as the move recorded them at its start; None before that and after its end."""
    profiles: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """The profile of each port's binding, as the move recorded it at its start."""
    from_flavor: str = ""
    to_flavor: str = ""
    """The names or flavorids of both flavors, as the request for the move gave them."""
    error_code: str = ""
    """The code of the error for which it rests or has ended; empty when there was none."""
    marked: bool = False
    """Whether the move has written its task_state into the server's row."""
    recorded: bool = False
    """Whether the move has inserted its row into ``migrations``."""
    keep_image: bool = False
    """Whether the move keeps an image of each disk until its end."""
    return_host: str = ""
    """The host to which a revert under way brings the server instead of the dead source; empty when there is none."""

    @property
    def ended(self) -> bool:
        """Say whether no flow of it will ever run again."""
        return self.state in ENDED

    @property
    def between_cells(self) -> bool:
        """Say whether the move leads from one cell into another, so that both may have rows of its server."""
        return self.dest_cell not in (None, self.source_cell)

    @property
    def stage(self) -> State:
        """Return the move's state; while the move needs an operator, return the state before that."""
        return self.parked_from or State.RUNNING if self.state is State.NEEDS_OPERATOR else self.state

    @property
    def short(self) -> str:
        """Return the first letters of the move's id, which commands take."""
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
    """A write to a service whose end is not known.

    Its ``state`` is ``open`` while the conductor that sent the write has its claim. It is ``late`` when that conductor
    lost its claim before the write was done: the service may still carry the write out.
    """

    move: str
    service: str
    call: str
    state: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebtRow:
    """A clean-up that a host or a cell still owes, or that a host owed until an operator wrote it off."""

    id: int
    host: str
    """The host that owes it; empty where a cell does."""
    move: str
    action: str
    written_off: bool = False
    kept: bool = False
    """Whether the debt is about kept disks.

    After a confirm the source may keep the server's disks for a time. The debt deletes them at its date.
    """
    overdue: bool = False
    """Whether its date passed long ago."""
    cell: str = ""
    """The cell that owes it; empty where a host does."""
    after: str = ""
    """The host that first has to show its own copy of the server's disks; empty where none has to."""

    @property
    def owner(self) -> str:
        """Return who owes it, in words."""
        return f"cell {self.cell}" if self.cell else self.host


@dataclasses.dataclass(frozen=True, kw_only=True)
class PortView:
    """A port of a server."""

    id: str
    server: str
    bindings: Mapping[str, str]
    """Maps each host to the status of the port's binding there, ACTIVE or INACTIVE."""
    profile: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The profile of the active binding."""
    vnic_type: str = "normal"
    owner: str = "compute:nova"
    """The port's device_owner."""
    resources: PortResources | None = None
    """What the port asks of Placement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer of allocations.

    ``kind`` is its consumer type. For a consumer without a type it is INSTANCE, the type of a server, since Nova gives
    a server's consumer no type.
    """

    kind: str
    project: str
    user: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachmentView:
    """An attachment of a volume; ``host`` is None when it has no host, or Cinder does not name the host."""

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
    """The move that made the image; empty when Nova made it."""
    server: str = ""
    """The server whose root disk a shelve put into it; empty for an image that no shelve made."""
    status: str = ACTIVE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory:
    """An entry below a host's instances directory."""

    name: str
    is_directory: bool
    files: frozenset[str]
    move: str
    """The move that the entry's marker or manifest names; empty when the entry has none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Store:
    """One instances directory and the hosts that use it: more than one where storage is shared."""

    hosts: tuple[str, ...]
    path: str
    entries: tuple[Directory, ...]
    """The entries that any of the hosts sees in it."""
    own: Mapping[str, tuple[Directory, ...]] = dataclasses.field(default_factory=dict)
    """The entries that each host sees in it; empty when they were not asked one by one: all see ``entries``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostView:
    """What a host's hypervisor really has."""

    host: str
    guests: tuple[Guest, ...]
    connections: frozenset[tuple[str, str]]
    """Pairs of a server and a volume that is connected for it."""
    plugged: frozenset[tuple[str, str]]
    """Pairs of a server and a port whose interface is plugged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiskDigest:
    """The digest of a disk that is set aside or kept; it is empty while the disk was not yet read to its end."""

    host: str
    name: str
    """The name of the disk's directory."""
    disk: str
    digest: str
    read: int
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandView:
    """A node in ZooKeeper with a command, a result or the progress of a command."""

    host: str
    key: str
    folder: str
    """The node's folder: commands, results or progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unseen:
    """A host, or a part of one, that could not be read."""

    host: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnreadCell:
    """A cell whose database could not be read."""

    name: str
    why: str
    down: str
    """Who declared the cell down, and why; empty when nobody did."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostsSeen:
    """What was read of the hosts; each is in ``hosts``, in ``unseen``, or in both if a part of it could not be read."""

    hosts: tuple[HostView, ...] = ()
    stores: tuple[Store, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    digests: tuple[DiskDigest, ...] = ()
    commands: tuple[CommandView, ...] = ()
    """The nodes for workers; none in a lab, whose ZooKeeper ends with each command."""
