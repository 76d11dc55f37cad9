"""Holds what a conductor asks of a worker and what the worker answers: commands, results, and a schema for each action.

The records are JSON objects below ``/hosts/NAME`` in ZooKeeper.  No record carries a secret.  A command names a volume
by the id of its attachment, and the worker gets the connection info from Cinder with its own service credential.

Each action has a record of its details, which the conductor sends.  The docstring of such a record is an imperative
sentence: it says what the worker is told to do.  ``wire/__init__.py`` explains the words mark, marker, manifest, set
aside, kept, fence and storage probe.
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
"""Most actions of one worker."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a step asks of a host's worker; the name of its node is ``key``."""

    key: str
    """``<flow>.<step>.<direction>.<number>[.<part>]``; the number is the id of the step's row in ``move_steps``."""
    host: str
    move: Name
    server: Name
    epoch: Number
    step: Name
    action: Name
    direction: Direction
    details: dict[str, Any]
    deadline: Seconds
    """Seconds that the action may take, from when the worker begins it."""
    version: int = ACTION_VERSION


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command.  ``error`` is a `droveway.errors.StepError.as_dict`, or None when it succeeded."""

    key: str
    epoch: Number
    value: dict[str, Any] | None = None
    error: dict[str, str] | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a long action has come: bytes done so far, and bytes in all."""

    key: str
    done: Number
    total: Number
    kept: Number = 0
    """How many of the bytes done were left by an earlier, interrupted run of the action."""
    seconds: Seconds = 0.0
    """How long this run of the action has taken so far."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports of itself in an ephemeral node; the worker is up for as long as the node exists."""

    host: Text
    version: Text
    hypervisor: Text
    actions: Annotated[list[Text], msgspec.Meta(max_length=MOST_ACTIONS)]
    """``action@version`` of everything that the worker can do."""
    address: Text
    """Where other workers connect to fetch disks, e.g. ``unix:/path``."""
    same_host_cold_migrate: bool = False
    pid: Number = 0
    """The worker's process on the host; a new number tells of a restart."""
    epoch: Number = 0
    """The highest epoch in any command that this worker has taken.

    It tells when the journal of moves was restored from an older copy: the journal's highest epoch is then lower than
    this number, and the journal does not know all that this host did.
    """
    step: Number = 0
    """The highest step number in the keys of the commands that this worker has taken."""
    boot: str = ""
    """The boot id of the machine.  Two workers of one host name with different boot ids run on two machines."""


class VolumeRef(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as a command names it; the worker asks Cinder for the connection info of ``attachment``."""

    volume: str
    attachment: str
    device: str
    boot: bool = False


class PortRef(msgspec.Struct, frozen=True, kw_only=True):
    """A port that the host plugs for the server."""

    port: str
    mac: str


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One local disk of a server; sizes in bytes.  ``name`` is Nova's file name (disk, disk.eph0, disk.swap)."""

    name: Name
    format: Text
    virtual_size: Number
    allocated: Number
    backing: Text = ""
    backing_format: Text = ""
    checksum: Text = ""


class GuestState(msgspec.Struct, frozen=True, kw_only=True):
    """What a host really has of a server: the answer to `describe_guest`."""

    defined: bool
    running: bool
    starts: Number
    """How often the guest was started on this host, as the hypervisor counts."""
    definition: str
    """The hypervisor's definition of the guest (domain XML or JSON), without secrets; empty when it is not defined."""
    move: Text
    """The move whose mark the definition carries; empty when it carries none."""
    disks: Annotated[list[DiskInfo], msgspec.Meta(max_length=MOST_DISKS)]
    set_aside: bool
    """Whether the host has a directory ``<uuid>_resize``."""
    connector: Connector = {}
    """What Cinder has to know about this host to export a volume to it."""

    def __post_init__(self) -> None:
        require_plain(self.connector)


class NoDetails(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The details of an action that needs no more than the command's server.

    The actions with this record, and what the worker is told to do:

    - ``describe_guest`` reports the server's guest and disks on the host, and changes nothing.
    - ``set_aside`` renames the server's directory to ``<uuid>_resize`` on the source and lists its disks.
    - ``check_set_aside`` checks that the disks set aside are whole.
    - ``prepare_start`` gives the permission to start the guest.
    - ``rename_copy`` renames the move's copy to ``<uuid>_keep-<move>`` and undefines its guest.  It is asked when
      nobody knows whether the copy is good.
    - ``remove_guest`` undefines the server's guest and deletes the server's directory.
    """


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an action that succeeded and has nothing to report."""


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


class CheckedAside(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `check_set_aside`: the disks that are set aside on the host, and the host's connector."""

    disks: AsideDisks
    connector: Connector

    def __post_init__(self) -> None:
        require_plain(self.connector)


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `discard_source` and `rename_copy`: the name of the directory that is kept, empty when none is."""

    kept: Owner


class CheckDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out whether the guest can run here, and write the storage probe, a file named ``probe``.

    If the definition is empty, here or in `DefineGuest`, the worker lets its hypervisor make a new one from the sizes
    in the command.  Only workers from level 6 on get an empty definition.
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
    """Tell whether the destination's storage probe is in this host's instances directory, which both then share."""

    probe: str


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `find_storage`."""

    shared: bool


class StopGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shut the guest down within ``grace`` seconds, then cut it off.  The undo starts it if ``restart`` is set."""

    grace: float
    restart: bool
    permission: Owner = ""
    """The permission for the start that the undo makes; as in `StartGuest`."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `stop_guest`: whether the guest ran before."""

    ran: bool


class Connections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The volumes and ports to connect, or to disconnect."""

    volumes: list[VolumeRef]
    ports: list[PortRef]


class OfferDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let the host ``peer`` fetch the disks that were set aside for this move; the undo withdraws the offer."""

    peer: str


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `offer_disks`."""

    address: Text


class ProbeTransfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out whether this host can connect to the transfer port of host ``source`` at ``address``."""

    source: str
    address: str


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `probe_transfer`; ``why`` tells why the port was not reached."""

    reached: bool
    why: Text = ""


class CopyDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copy the disks that were set aside: ``pull`` fetches them from ``source``, ``local`` copies them on this host.

    ``probe`` is the name of the storage probe.  The worker removes the probe once the copy is complete.
    """

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
    """The answer to `copy_disks` and `download_disks`; ``bytes`` is how much crossed the network."""

    variant: Text
    disks: CopiedDisks
    bases: CopiedDisks
    bytes: Number


class ImageOfDisk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk of the server, and the image that is to hold it."""

    disk: Name
    image: Name


class UploadDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Upload the bytes of each disk to its image, which the conductor has made without data.

    A disk that rests on a base is first flattened into a file of the move.  The undo removes these flat files.
    """

    disks: Annotated[list[ImageOfDisk], msgspec.Meta(max_length=MOST_DISKS)]
    aside: bool = False
    """Upload the disks that this move has set aside; ``disks`` then has to name each of them but swap."""


class UploadedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that was uploaded.  The worker compared ``size`` (bytes) and ``checksum`` with those of the image."""

    disk: Name
    image: Name
    size: Number
    checksum: Text
    format: Text
    """raw or qcow2; the image service says the same."""


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `upload_disks`."""

    disks: Annotated[list[UploadedDisk], msgspec.Meta(max_length=MOST_DISKS)]


class DownloadedDisk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk that is made from an image, and what the conductor recorded of that image; ``size`` in bytes."""

    disk: Name
    image: Name
    size: Number
    checksum: Text
    """The checksum of the image's bytes by ``algorithm``.

    It is empty where the image service tells none; the worker then compares only the size.
    """
    algorithm: Text
    format: Text


class DownloadDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make this host's copy of a server's disks from images.

    The answer, the undo and the use of ``probe`` are the same as for `CopyDisks`.
    """

    disks: Annotated[list[DownloadedDisk], msgspec.Meta(max_length=MOST_DISKS)]
    probe: str


class FitDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grow root and ephemeral disk to the flavor, make swap anew.  Sizes in bytes; 0 for a disk that is not wanted."""

    root_bytes: int
    ephemeral_bytes: int
    swap_bytes: int


Disks = Annotated[list[DiskInfo], msgspec.Meta(max_length=MOST_DISKS)]


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `fit_disks`."""

    disks: Disks


class DefineGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Define the guest from the source's definition, with the new sizes and this host's disks."""

    definition: str
    vcpus: int
    memory_mb: int
    volumes: list[VolumeRef]
    ports: list[PortRef]
    previous: str = ""
    """On the same host: the definition that the undo puts back.  The undo undefines the guest when this is empty."""


class Defined(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `define_guest` and `prepare_source_guest`: how often the host had started the guest before."""

    starts: Number


class StartGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start the guest if ``power_on`` is set."""

    power_on: bool
    permission: Owner = ""
    """The permission from `Ready`; empty without ``power_on``, and in commands of conductors below level 4."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `start_guest`."""

    started: bool
    running: bool
    starts: Number


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `prepare_start`: the worker can start the guest now."""

    permission: Name
    """The name of a permission to start the guest.

    It is good for half the timeout of the worker's ZooKeeper session.  A restart of the worker ends it.
    """


class CheckCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check that the destination's guest has the recorded sizes and that its disks are whole."""

    vcpus: int
    memory_mb: int


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `check_copy`."""

    running: bool
    starts: Number
    disks: Disks


class CheckGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask how the guest is.  Its agent has ``probe_seconds`` to answer; with 0 the worker does not ask the agent."""

    probe_seconds: float


class GuestHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a guest is: the answer to `check_guest`."""

    running: bool
    starts: Number
    """As in `GuestState`."""
    running_for: Seconds
    """Time since the last start, by the host's own clock; a reboot from inside the guest is no start."""
    answers: bool | None
    """Whether the guest's agent answered; None when the guest has no agent or the agent was not asked."""
    why: Text = ""
    """Why the agent did not answer."""


class DiscardSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete what this move set aside on its source, or with ``keep`` rename it so that `PurgeKept` deletes it later.

    With ``undefine`` the worker also undefines the source's guest, since the server lives on another host now.
    """

    undefine: bool
    keep: bool = False


class KeepCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take the move's mark off the server's disks and its guest on the destination.

    The copy then stays for good: no undo or revert of the move deletes it any more.  ``disks`` names the disks that
    must be there.

    `KeepCopy` and `PurgeKept` are no pair.  This action is about the copy on the destination, and `PurgeKept` deletes
    the source's disks that a confirm kept.
    """

    disks: list[str]


class PurgeKept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete what the confirm of move ``of_move`` kept on this host.

    The keeper sends ``<of_move>.kept`` as the command's own ``move``.  No worker takes a command of an ended move, so
    the purge has an epoch of its own under that name.  The worker fences with that epoch.
    """

    of_move: Name


class RestoreDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rename ``<uuid>_resize`` back to ``<uuid>``.

    With ``same_directory`` the destination's copy has the name ``<uuid>``, and is first renamed to ``<uuid>_del``.
    """

    same_directory: bool


class PrepareSourceGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Define the guest as it was before the move, connect its volumes and ports; ``previous`` as in `DefineGuest`."""

    definition: str
    volumes: list[VolumeRef]
    ports: list[PortRef]
    previous: str = ""


class DiscardDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Undefine the guest and delete its disks here.

    With ``same_directory``, delete only ``<uuid>_del``, the name that `RestoreDisks` gave the copy.
    """

    same_directory: bool


class Schema(NamedTuple):
    """The details and the answer of one action, and the level that added it.

    A conductor knows nothing else of an action.  The function of the same name in ``workers/actions`` carries it out.
    """

    details: type[msgspec.Struct]
    """The type of the record in `Command.details`."""
    answer: type[msgspec.Struct]
    """The type of the record in `Result.value` of an ``execute``; a ``revert`` answers `Nothing`."""
    since: int
    """The level at which the action was added: see `droveway.wire.levels`."""
    ages: bool = False
    """Whether the action is a question about the present, whose answer is soon out of date.

    The worker keeps no answer to such a question but looks anew each time, and the question waits for no other command.
    """


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
    "check_set_aside": Schema(NoDetails, CheckedAside, since=1),
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

Conductors of releases before level 4 ask ``check_health``, and this worker answers it like ``check_guest``.  Conductors
of this release never ask it, because a worker of those releases types its question at the guest's serial line.
"""


def ages(action: str) -> bool:
    """Return whether the action is a question whose answer ages (`Schema.ages`); False for an unknown action."""
    return action in ACTIONS and ACTIONS[action].ages
