"""The records that conductor and worker exchange, with a schema per action.

Plain data: JSON objects below ``/hosts/NAME`` in ZooKeeper.  No record carries a secret; a volume travels as its
attachment's id and the worker resolves it with its own service credential.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from droveway.errors import Refused

Direction = Literal["execute", "revert"]

ACTION_VERSION: Final = 1

LEVEL: Final = 5
"""How much is spoken to workers: one more with each release that adds an action; it has all that lower ones have."""

SINCE: Final = {
    "purge_kept": 2,
    "list_guests": 3,
    "list_directories": 3,
    "check_guest": 4,
    "keep_copy": 4,
    "prepare_start": 4,
    "digest_disks": 4,
    "rename_copy": 5,
}
"""The level that an action or an inquiry came with; those that are not named here came with the first."""


MOST_BYTES: Final = 256 * 1024
"""Of a record; ZooKeeper itself takes four times as much."""

MOST_ACTIONS: Final = 200
"""Of one worker."""

LONGEST_ERROR: Final = 2000
"""Characters of one value of an error: it is stored in rows and shown to operators."""

MOST_DISKS: Final = 256
"""Of one server."""

MOST_FIELDS: Final = 64
"""Of what a host tells Cinder of itself."""

MOST_PAGES: Final = 64
"""Of the answer to one inquiry."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}\Z")]
"""What may become the name of a file, a node or a column's value."""

PRINTABLE: Final = r"[^\x00-\x1f\x7f-\x9f]"

Text = Annotated[str, msgspec.Meta(pattern=rf"^{PRINTABLE}{{0,2000}}\Z")]
"""What a terminal may be shown."""

Owner = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:-]{0,254})?\Z")]
"""A `Name`, or nothing."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What a column holds."""

Connector = Annotated[dict[Text, Any], msgspec.Meta(max_length=MOST_FIELDS)]
"""A host as Cinder wants to know it; `require_plain` looks at the values.

A schema of them would be a text in a list in a choice in a dict, of which msgspec reads at the end of a process what it
has freed.
"""

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

_TEXT: Final = re.compile(rf"{PRINTABLE}{{0,2000}}\Z")
_UNPRINTABLE: Final = re.compile(rf"(?!{PRINTABLE}).", re.DOTALL)

_Record = TypeVar("_Record", bound=msgspec.Struct)


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


def encode(record: msgspec.Struct) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes, kind: type[_Record]) -> _Record:
    """The record in a node; raises `droveway.errors.Refused` when it holds none of that kind.

    Whoever may write the node may have written anything.
    """
    name = kind.__name__.lower()
    if len(data) > MOST_BYTES:
        raise Refused(f"the node holds {len(data)} bytes, more than a {name} may have ({MOST_BYTES})")
    if b"\\u0000" in data:
        raise Refused(f"the node holds a NUL character, which no {name} has")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the node holds no valid {name}: {error}") from None


def decode_command(data: bytes) -> Command:
    """The command in a node; raises as `decode` does."""
    return decode(data, Command)


def decode_result(data: bytes) -> Result:
    """The result in a node; raises as `decode` does."""
    result = decode(data, Result)
    if result.error is not None and not {"code", "message"} <= result.error.keys():
        raise Refused("the node holds a result whose error has no code or no message")
    if result.error is not None:
        return msgspec.structs.replace(result, error={key: harmless(text) for key, text in result.error.items()})
    return result


def harmless(text: str) -> str:
    """Return a host's words as they may be stored and shown: in one line, bounded, and `printable`."""
    shown = printable(" ".join(text[:LONGEST_ERROR].split()))
    return shown if len(text) <= LONGEST_ERROR else f"{shown}..."


def printable(text: str) -> str:
    """Return the text as a terminal may be shown it: everything else by its code."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", whole)


def decode_answer(data: bytes, key: str) -> Result:
    """The result of the command ``key`` in a node; raises as `decode` does."""
    result = decode_result(data)
    if result.key != key:
        raise Refused(f"the node holds the result of {result.key[:80]}")
    return result


def decode_inquiry(data: bytes, host: str, number: str) -> Inquiry:
    """The inquiry of this name to this host in a node; raises as `decode` does."""
    inquiry = decode(data, Inquiry)
    if (inquiry.id, inquiry.host) != (number, host):
        raise Refused(f"the node holds the inquiry {inquiry.id[:80]} to host {inquiry.host[:80]}")
    return inquiry


def decode_page(data: bytes, inquiry: Inquiry, number: int) -> Page:
    """The page of the answer to this inquiry in a node; raises as `decode` does."""
    page = decode(data, Page)
    if (page.id, page.host, page.number) != (inquiry.id, inquiry.host, number):
        raise Refused(f"the node holds page {page.number} of {page.id[:80]} by host {page.host[:80]}")
    for held in page.held:
        if not isinstance(held, INQUIRIES[inquiry.question]):
            raise Refused(f"the node holds a {type(held).__name__.lower()}, which is no answer to {inquiry.question}")
    return page


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


def require_plain(connector: Mapping[str, Any]) -> None:
    """Raise ValueError unless each value is a number, a text, a list of texts, true, false or nothing."""
    for name, value in connector.items():
        texts = value if isinstance(value, list) else [value]
        is_text = all(isinstance(each, str) and _TEXT.match(each) for each in texts)
        if not (is_text or isinstance(value, bool | int | float | None)):
            raise ValueError(f"{name} of the connector is no plain value")


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


class CheckDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find out whether this guest can run here; write the storage probe ``probe`` (a file name without a path)."""

    definition: str
    vcpus: int
    memory_mb: int
    disk_bytes: int
    probe: str
    volumes: list[VolumeRef] = []


class FindStorage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look for the destination's probe in this host's instances directory."""

    probe: str


class StopGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shut the guest down within ``grace`` seconds, then cut it off.  Revert starts it when ``restart``."""

    grace: float
    restart: bool
    permission: Owner = ""
    """As in `StartGuest`, for the revert."""


class Connections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Volumes and ports to connect, or to disconnect."""

    volumes: list[VolumeRef]
    ports: list[PortRef]


class OfferDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve the disks that were set aside to ``peer`` (a host) for this move; revert withdraws the offer."""

    peer: str


class CopyDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make this host's own copy of the disks that were set aside: by ``pull`` from the source, or ``local``."""

    variant: Literal["pull", "local"]
    source: str
    address: str
    probe: str


class FitDisks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grow root and ephemeral to the flavor, make swap anew.  Sizes in bytes; 0 for a disk that is not wanted."""

    root_bytes: int
    ephemeral_bytes: int
    swap_bytes: int


class DefineGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Define the guest from the source's own definition with the new sizes and this host's disks."""

    definition: str
    vcpus: int
    memory_mb: int
    volumes: list[VolumeRef]
    ports: list[PortRef]
    previous: str = ""
    """Same host only: the definition that the undo puts back (else it undefines)."""


class StartGuest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start the guest when ``power_on``; ``starts`` is its start count before this step began (once recorded)."""

    power_on: bool
    permission: Owner = ""
    """That of `Ready` which the start is by; empty only in what a conductor below level 4 posted."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The worker can start the guest: the answer of `prepare_start`."""

    permission: Name
    """Good for half a session of the worker with ZooKeeper, and for no other run of it."""


class CheckCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check that the destination's guest is as recorded and its disks are whole."""

    vcpus: int
    memory_mb: int


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


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a worker about all that its host holds; its node's name is ``id``.

    It stands under no move and changes nothing, so it needs no fence.  Its node goes with the session of who asks.
    """

    id: Name
    host: str
    question: Name
    seconds: Seconds
    """So long anybody waits for the answer, from when the worker finds the question."""
    version: int = ACTION_VERSION


class Guest(msgspec.Struct, frozen=True, kw_only=True, tag="guest"):
    """A guest that is defined or runs on the host; memory in MiB."""

    server: Name
    name: Text
    running: bool
    defined: bool
    vcpus: Number
    memory_mb: Number
    move: Owner = ""
    """The move that it is marked with; empty when it has no mark."""


class Connection(msgspec.Struct, frozen=True, kw_only=True, tag="connection"):
    """A volume that is connected on the host."""

    server: Name
    volume: Name


class Interface(msgspec.Struct, frozen=True, kw_only=True, tag="interface"):
    """A port that is plugged on the host."""

    server: Name
    port: Name


class StoreRef(msgspec.Struct, frozen=True, kw_only=True, tag="store"):
    """The instances directory; hosts that name the same ``id`` share it."""

    id: Name
    path: Text


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="entry"):
    """What lies right below the instances directory; one with many files comes in several of the same name."""

    name: Text
    directory: bool
    files: list[Text] = []
    """What lies in it, whatever it is."""
    move: Owner = ""
    """The move that its marker or manifest names; empty when it has none."""


class Digest(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """What a disk holds that was set aside or is kept; sizes in bytes."""

    name: Text
    """Of its directory, right below the instances directory."""
    disk: Text
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    """As `copy_disks` made it of the disk; empty when it was not read to its end yet."""
    read: Number
    size: Number


Held = Guest | Connection | Interface | StoreRef | Entry | Digest

INQUIRIES: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "list_guests": (Guest, Connection, Interface),
    "list_directories": (StoreRef, Entry),
    "digest_disks": (Digest,),
}
"""Each question with what its answer is made of."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the answer to an inquiry, or why there is none; its node's name is ``<id>.<number>``."""

    id: Name
    host: str
    reading: Name
    """New for each time that the worker looked: pages of two readings make no answer."""
    number: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PAGES)]
    pages: Annotated[int, msgspec.Meta(ge=1, le=MOST_PAGES)]
    held: list[Held] = []
    error: Text = ""


ACTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "describe_guest": NoDetails,
    "check_destination": CheckDestination,
    "find_storage": FindStorage,
    "stop_guest": StopGuest,
    "disconnect": Connections,
    "connect": Connections,
    "set_aside": NoDetails,
    "offer_disks": OfferDisks,
    "copy_disks": CopyDisks,
    "fit_disks": FitDisks,
    "define_guest": DefineGuest,
    "prepare_start": NoDetails,
    "start_guest": StartGuest,
    "check_copy": CheckCopy,
    "check_set_aside": NoDetails,
    "check_guest": CheckGuest,
    "check_health": CheckGuest,
    "discard_source": DiscardSource,
    "keep_copy": KeepCopy,
    "purge_kept": PurgeKept,
    "restore_disks": RestoreDisks,
    "prepare_source_guest": PrepareSourceGuest,
    "discard_destination": DiscardDestination,
    "rename_copy": NoDetails,
    "remove_guest": NoDetails,
}

QUESTIONS: Final = frozenset({"check_guest", "check_health", "prepare_start"})
"""Actions that only look and whose answers age: none is kept for a second asking, and none waits for a command.

Releases before level 4 ask ``check_health``, and their workers type that question at the guest's serial line: it is
answered as ``check_guest`` is, and asked of nobody.
"""


def details_of(command: Command) -> Any:
    """The command's details as the action's record; raises Refused for an unknown action or malformed details."""
    schema = ACTIONS.get(command.action)
    if schema is None or command.version != ACTION_VERSION:
        raise Refused(f"this worker does not know the action {command.action}@{command.version}: upgrade it first")
    try:
        return msgspec.convert(command.details, type=schema)
    except msgspec.ValidationError as error:
        raise Refused(f"the details of {command.action} break their schema: {error}") from None


def learn_types() -> None:
    """Let msgspec learn every record type that is loaded; whoever starts threads calls it first.

    A thread that meets a type while another one makes msgspec learn it crashes the process (SIGSEGV, msgspec 0.22).
    """
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__.startswith("droveway.") and each not in _LEARNED:
                msgspec.json.Decoder(each)
                _LEARNED.add(each)


_LEARNED: Final[set[type[msgspec.Struct]]] = set()
