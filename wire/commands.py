"""What a worker is asked to do and what it answers: commands, their results, and a schema for each action.

Plain data: JSON objects below ``/hosts/NAME`` in ZooKeeper.  No record carries a secret; a volume travels as its
attachment's id and the worker resolves it with its own service credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from droveway.wire.values import (
    ACTION_VERSION,
    MOST_DISKS,
    Connector,
    Direction,
    Name,
    Number,
    Owner,
    Seconds,
    Text,
    require_plain,
)

MOST_ACTIONS: Final = 200
"""Of one worker."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a host step asks of a worker; its node's name is ``key``."""

    key: str
    """``<flow>.<step>.<direction>.<attempt>``, the attempt being the number of the step's row in ``move_steps``."""
    host: str
    move: Name
    server: Name
    epoch: Number
    step: Name
    action: Name
    direction: Direction
    details: dict[str, Any]
    deadline: Seconds
    """Seconds that the action may take from when the worker begins it."""
    version: int = ACTION_VERSION


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command.  ``error`` is a `droveway.errors.StepError.as_dict`, or None when it went well."""

    key: str
    epoch: Number
    value: dict[str, Any] | None = None
    error: dict[str, str] | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a long action is: bytes done and in all."""

    key: str
    done: Number
    total: Number
    kept: Number = 0
    """Bytes of those done that an earlier, interrupted run of the action had left."""
    seconds: Seconds = 0.0
    """How long the worker has been at it in this run."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself in an ephemeral node: it is up while the node stands."""

    host: Text
    version: Text
    hypervisor: Text
    actions: Annotated[list[Text], msgspec.Meta(max_length=MOST_ACTIONS)]
    """``action@version`` of everything that it can do."""
    address: Text
    """Where other workers reach its disk transfer, e.g. ``unix:/path``."""
    same_host_cold_migrate: bool = False
    pid: Number = 0
    """Of its process on the host; another one tells of a restart."""
    epoch: Number = 0
    """The highest epoch that it has seen: a journal below it is older than what the host has done."""
    step: Number = 0
    """The highest number of a step that a command of it had in its key."""
    boot: str = ""
    """Of the machine: two workers of one host name with different ones are on two machines."""


class VolumeRef(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as the worker sees it: it resolves ``attachment`` to the connection info itself."""

    volume: str
    attachment: str
    device: str
    boot: bool = False


class PortRef(msgspec.Struct, frozen=True, kw_only=True):
    """A port that the host plugs for the server."""

    port: str
    mac: str


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One local disk of a server; sizes in bytes.  ``name`` is Nova's (disk, disk.eph0, disk.swap)."""

    name: Name
    format: Text
    virtual_size: Number
    allocated: Number
    backing: Text = ""
    backing_format: Text = ""
    checksum: Text = ""


class GuestState(msgspec.Struct, frozen=True, kw_only=True):
    """What a host really holds of a server: the answer of `describe_guest`."""

    defined: bool
    running: bool
    starts: Number
    """How often the guest was started on this host, by the hypervisor's own count."""
    definition: str
    """The hypervisor's own text of the guest (domain XML or JSON), without secrets; empty when not defined."""
    move: Text
    """The move that the definition is marked with; empty when Droveway did not make it."""
    disks: Annotated[list[DiskInfo], msgspec.Meta(max_length=MOST_DISKS)]
    set_aside: bool
    """Whether ``<uuid>_resize`` stands on this host."""
    connector: Connector = {}
    """What Cinder wants to know of this host to export a volume to it."""

    def __post_init__(self) -> None:
        require_plain(self.connector)


class NoDetails(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action that needs to know nothing but its server."""


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """Done."""


class _Disk(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    format: Text
    size: Number
    allocated: Number
    checksum: Text = ""
    backing: Text = ""
    backing_format: Text = ""


class AsideDisk(_Disk, frozen=True, kw_only=True):
    """A disk as it was when it was set aside; sizes in bytes."""

    mtime_ns: int
    inode: Annotated[int, msgspec.Meta(ge=0)]


AsideDisks = Annotated[list[AsideDisk], msgspec.Meta(max_length=MOST_DISKS)]


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `set_aside`."""

    disks: AsideDisks


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `check_set_aside`."""

    disks: AsideDisks
    connector: Connector

    def __post_init__(self) -> None:
        require_plain(self.connector)


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `discard_source` and `rename_copy`: the name of what is kept; empty for nothing."""

    kept: Owner


class CheckDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out whether this guest can run here; write the storage probe ``probe`` (a file name without a path).

    An empty definition, here and in `DefineGuest`, asks for a new one: only workers from level 6 on are told that.
    """

    definition: str
    vcpus: int
    memory_mb: int
    disk_bytes: int
    probe: str
    volumes: list[VolumeRef] = []


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `check_destination`."""

    connector: Connector
    free_bytes: Number

    def __post_init__(self) -> None:
        require_plain(self.connector)


class FindStorage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look for the destination's probe in this host's instances directory."""

    probe: str


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `find_storage`."""

    shared: bool


class StopGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shut the guest down within ``grace`` seconds, then cut it off.  Revert starts it when ``restart``."""

    grace: float
    restart: bool
    permission: Owner = ""
    """As in `StartGuest`, for the revert."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `stop_guest`: whether the guest ran before."""

    ran: bool


class Connections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Volumes and ports to connect, or to disconnect."""

    volumes: list[VolumeRef]
    ports: list[PortRef]


class OfferDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve the disks that were set aside to ``peer`` (a host) for this move; revert withdraws the offer."""

    peer: str


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `offer_disks`."""

    address: Text


class ProbeTransfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out whether this host reaches the transfer port of ``source`` at its address."""

    source: str
    address: str


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `probe_transfer`; ``why`` says why not."""

    reached: bool
    why: Text = ""


class CopyDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make this host's own copy of the disks that were set aside: by ``pull`` from the source, or ``local``."""

    variant: Literal["pull", "local"]
    source: str
    address: str
    probe: str


class CopiedDisk(_Disk, frozen=True, kw_only=True):
    """A disk that was copied; sizes in bytes."""

    sent: Number
    source_checksum: Text


CopiedDisks = Annotated[list[CopiedDisk], msgspec.Meta(max_length=MOST_DISKS)]


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `copy_disks` and `download_disks`; ``bytes`` is what crossed the wire."""

    variant: Text
    disks: CopiedDisks
    bases: CopiedDisks
    bytes: Number


class ImageOfDisk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk of the server, and the image that it becomes."""

    disk: Name
    image: Name


class UploadDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Give each image, which waits for its data, the bytes of a disk; revert removes what was made for that."""

    disks: Annotated[list[ImageOfDisk], msgspec.Meta(max_length=MOST_DISKS)]
    aside: bool = False
    """Of what this move has set aside, all of it: each disk but swap has to be named."""


class UploadedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that is an image now; ``size`` in bytes and ``checksum`` are the image's, and were compared."""

    disk: Name
    image: Name
    size: Number
    checksum: Text
    format: Text
    """raw or qcow2, as the image says too."""


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `upload_disks`."""

    disks: Annotated[list[UploadedDisk], msgspec.Meta(max_length=MOST_DISKS)]


class DownloadedDisk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk that is made of an image, and what was recorded of that."""

    disk: Name
    image: Name
    size: Number
    checksum: Text
    """Of the image's bytes by ``algorithm``; empty where the image service tells none: then only the size is held."""
    algorithm: Text
    format: Text


class DownloadDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make this host's own copy of a server's disks from images; answered and undone as `CopyDisks` is."""

    disks: Annotated[list[DownloadedDisk], msgspec.Meta(max_length=MOST_DISKS)]
    probe: str


class FitDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grow root and ephemeral to the flavor, make swap anew.  Sizes in bytes; 0 for a disk that is not wanted."""

    root_bytes: int
    ephemeral_bytes: int
    swap_bytes: int


Disks = Annotated[list[DiskInfo], msgspec.Meta(max_length=MOST_DISKS)]


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `fit_disks`."""

    disks: Disks


class DefineGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Define the guest from the source's own definition with the new sizes and this host's disks."""

    definition: str
    vcpus: int
    memory_mb: int
    volumes: list[VolumeRef]
    ports: list[PortRef]
    previous: str = ""
    """Same host only: the definition that the undo puts back (else it undefines)."""


class Defined(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `define_guest` and `prepare_source_guest`: how often the guest was started on the host before."""

    starts: Number


class StartGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start the guest when ``power_on``."""

    power_on: bool
    permission: Owner = ""
    """That of `Ready` which the start is by; empty only in what a conductor below level 4 posted."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `start_guest`."""

    started: bool
    running: bool
    starts: Number


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The worker can start the guest: the answer of `prepare_start`."""

    permission: Name
    """Good for half a session of the worker with ZooKeeper, and for no other run of it."""


class CheckCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check that the destination's guest is as recorded and its disks are whole."""

    vcpus: int
    memory_mb: int


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `check_copy`."""

    running: bool
    starts: Number
    disks: Disks


class CheckGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out how the guest is; its agent has ``probe_seconds`` to answer, and is not asked with 0."""

    probe_seconds: float


class GuestHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a guest is: the answer of `check_guest`."""

    running: bool
    starts: Number
    """As in `GuestState`."""
    running_for: Seconds
    """Since its last start, by the host's own clock; a reboot from within is no start."""
    answers: bool | None
    """Whether its agent answered; None when it has none, or was not asked."""
    why: Text = ""
    """Why it did not answer."""


class DiscardSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete what was set aside, or with ``keep`` rename it until `PurgeKept`; undefine what lives elsewhere."""

    undefine: bool
    keep: bool = False


class KeepCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take the move's mark off the server's disks and its guest; ``disks``: those that must be there."""

    disks: list[str]


class PurgeKept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete what the confirm of ``of_move`` kept; the command's own move is but the fence of the purge."""

    of_move: Name


class RestoreDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``<uuid>_resize`` becomes ``<uuid>`` again; with ``same_directory`` the present ``<uuid>`` makes room first."""

    same_directory: bool


class PrepareSourceGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Define the guest as it was before the move and connect its volumes and ports; ``previous`` as in DefineGuest."""

    definition: str
    volumes: list[VolumeRef]
    ports: list[PortRef]
    previous: str = ""


class DiscardDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Undefine the guest and delete its disks here; with ``same_directory`` only ``<uuid>_del`` goes."""

    same_directory: bool


class Schema(NamedTuple):
    """How an action is spoken: its row below is all that conductors know of it.

    What it does is a function of its name in ``workers/actions``.
    """

    details: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    """What the value of its answer holds; an undo answers `Nothing`."""
    since: int
    """The level that it came with: see `droveway.wire.levels`."""
    ages: bool = False
    """Whether it only looks and its answer ages: none is kept for a second asking, and none waits for a command."""


ACTIONS: Final[Mapping[str, Schema]] = {
    "describe_guest": Schema(NoDetails, GuestState, since=1),
    "check_destination": Schema(CheckDestination, Checked, since=1),
    "find_storage": Schema(FindStorage, Storage, since=1),
    "stop_guest": Schema(StopGuest, Stopped, since=1),
    "disconnect": Schema(Connections, Nothing, since=1),
    "connect": Schema(Connections, Nothing, since=1),
    "set_aside": Schema(NoDetails, SetAside, since=1),
    "offer_disks": Schema(OfferDisks, Offered, since=1),
    "probe_transfer": Schema(ProbeTransfer, Reached, since=7, ages=True),
    "copy_disks": Schema(CopyDisks, Copied, since=1),
    "upload_disks": Schema(UploadDisks, Uploaded, since=6),
    "download_disks": Schema(DownloadDisks, Copied, since=6),
    "fit_disks": Schema(FitDisks, Fitted, since=1),
    "define_guest": Schema(DefineGuest, Defined, since=1),
    "prepare_start": Schema(NoDetails, Ready, since=4, ages=True),
    "start_guest": Schema(StartGuest, Started, since=1),
    "check_copy": Schema(CheckCopy, Whole, since=1),
    "check_set_aside": Schema(NoDetails, Kept, since=1),
    "check_guest": Schema(CheckGuest, GuestHealth, since=4, ages=True),
    "check_health": Schema(CheckGuest, GuestHealth, since=1, ages=True),
    "discard_source": Schema(DiscardSource, Discarded, since=1),
    "keep_copy": Schema(KeepCopy, Nothing, since=4),
    "purge_kept": Schema(PurgeKept, Nothing, since=2),
    "restore_disks": Schema(RestoreDisks, Nothing, since=1),
    "prepare_source_guest": Schema(PrepareSourceGuest, Defined, since=1),
    "discard_destination": Schema(DiscardDestination, Nothing, since=1),
    "rename_copy": Schema(NoDetails, Discarded, since=5),
    "remove_guest": Schema(NoDetails, Nothing, since=1),
}
"""Every action by its name.

Releases before level 4 ask ``check_health``, and their workers type that question at the guest's serial line: it is
answered as ``check_guest`` is, and asked of nobody.
"""


def ages(action: str) -> bool:
    """Whether the action is one whose answer ages; False for an unknown one."""
    return action in ACTIONS and ACTIONS[action].ages
