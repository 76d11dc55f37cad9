"""The interface that every hypervisor has.

Every call looks at the state, acts if something is to be done, and looks again, so it may be repeated.  A hypervisor
defines, starts and stops guests, connects what they use, and knows the formats of their disks.  It does not rename or
copy directories (`droveway.workers.actions.disks`).
"""

from __future__ import annotations

import abc
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from droveway.wire.commands import DiskInfo

Fence = Callable[[], None]
"""A function that is called right before an irreversible effect; raises `droveway.errors.Fenced` to prevent it."""


BASES: Final = "_base"
"""Nova's directory of base files, beside the directories of the servers."""

CONFIG: Final = "disk.config"
"""Nova's config drive, which is raw; Nova records its format nowhere."""

NO_FORMATS: Final[Mapping[str, str]] = types.MappingProxyType({})
"""The formats of a guest without disks of its own."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Names the move, and its epoch, that made something on a host: a guest, a copy, or a directory set aside."""

    move: str
    epoch: int


class GuestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One guest as the hypervisor knows it, for `describe_guest` and the audit; memory in MiB."""

    server: str
    name: str
    running: bool
    starts: int
    """Starts on this host since the guest was first defined; a new definition or a restarted daemon keeps them."""
    vcpus: int
    memory_mb: int
    definition: str
    mark: Mark | None


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume with its connection info, which may hold secrets."""

    volume: str
    device: str
    boot: bool
    connection: dict[str, Any]


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port to plug on a host."""

    port: str
    mac: str


class Hypervisor(abc.ABC):
    """One host's hypervisor.  ``root`` is the host's directory; a guest's disks lie in ``root/instances/<uuid>``."""

    name: ClassVar[str]
    disk_format: ClassVar[str]
    """The format that new disks get: raw (sandbox) or qcow2 (libvirt)."""
    same_host_cold_migrate: bool

    def __init__(self, host: str, root: Path) -> None:
        self.host = host
        self.root = root
        self.instances = root / "instances"

    @abc.abstractmethod
    def guests(self) -> Iterator[GuestRecord]:
        """Yield every guest that is defined or runs here."""

    @abc.abstractmethod
    def guest(self, server: str) -> GuestRecord | None:
        """Return the server's guest; None when it is neither defined nor runs here."""

    @abc.abstractmethod
    def check(self, definition: str, *, vcpus: int, memory_mb: int) -> None:
        """Raise `droveway.errors.DestinationFault` when this host cannot run the guest (machine, CPU, memory)."""

    @abc.abstractmethod
    def create_definition(
        self, *, server: str, name: str, vcpus: int, memory_mb: int, disks: Sequence[Path], boot_volume: bool
    ) -> str:
        """Return a definition for a guest that no host ever ran; ``memory_mb`` in MiB."""

    @abc.abstractmethod
    def define(
        self,
        server: str,
        definition: str,
        *,
        vcpus: int | None,
        memory_mb: int | None,
        disks: Sequence[Path],
        formats: Mapping[str, str] = NO_FORMATS,
        volumes: Sequence[Volume],
        ports: Sequence[Port],
        mark: Mark | None,
        own: bool = False,
    ) -> None:
        """Define the guest from ``definition`` with these sizes (None: those in the text), disks, volumes and ports.

        ``own`` says that this host itself wrote the definition and gets it back.  From a definition of another host,
        only what the hypervisor allows is taken over.  ``formats`` holds the recorded format of each disk, by file
        name: raw or qcow2.

        The hypervisor validates the definition.  A repeated call changes nothing.  Raises StepError for a disk without
        a recorded format, and DestinationFault when the host refuses the definition or the guest runs with another one.
        """

    def require_movable(self, definition: str) -> None:  # noqa: B027 - most hypervisors' definitions are their own
        """Raise StepError (``definition``) when no other host would accept the guest's definition.

        The host that has the guest is asked, before the move changes anything.
        """

    @abc.abstractmethod
    def unmark(self, server: str) -> None:
        """Take the mark off the guest, which may run and stays as it is; does nothing without a mark or guest."""

    @abc.abstractmethod
    def undefine(self, server: str) -> None:
        """Remove the guest's definition and metadata; does nothing without a guest; raises StepError when it runs."""

    @abc.abstractmethod
    def start(self, server: str, fence: Fence) -> None:
        """Start the guest unless it runs; calls ``fence`` right before.

        Raises DestinationFault when it is proved that the guest never started: it is off, and its start count has not
        changed.
        """

    @abc.abstractmethod
    def stop(self, server: str, *, grace: float, fence: Fence) -> None:
        """Shut the guest down within ``grace`` seconds, else cut it off; returns when it is off.

        It calls ``fence`` right before each of the two.  It does nothing when the guest was off.
        """

    @abc.abstractmethod
    def connector(self) -> dict[str, Any]:
        """Return what Cinder has to know about this host to export a volume to it (host, ip, initiator)."""

    @abc.abstractmethod
    def connect_volume(self, server: str, volume: Volume) -> None:
        """Make the volume usable on this host for the server; does nothing when it is connected already."""

    @abc.abstractmethod
    def disconnect_volume(self, server: str, volume: str) -> None:
        """Undo `connect_volume`; does nothing when the volume is not connected."""

    @abc.abstractmethod
    def connections(self) -> Iterator[tuple[str, str]]:
        """Yield (server, volume) for every volume that is connected on this host."""

    @abc.abstractmethod
    def plug(self, server: str, port: Port) -> None:
        """Make the port's interface on this host; does nothing when it is there."""

    @abc.abstractmethod
    def unplug(self, server: str, port: str) -> None:
        """Remove the port's interface; does nothing when it is not there."""

    @abc.abstractmethod
    def plugged(self) -> Iterator[tuple[str, str]]:
        """Yield (server, port) for every interface on this host."""

    @abc.abstractmethod
    def disk_info(self, path: Path, disk_format: str) -> DiskInfo:
        """Return size, allocation and backing file of a disk; its format is given and never guessed from its bytes."""

    @abc.abstractmethod
    def create_disk(self, path: Path, *, size: int, kind: str) -> None:
        """Make a new blank disk of ``size`` bytes in this hypervisor's format, durably.

        ``kind`` is root, ephemeral or swap.
        """

    @abc.abstractmethod
    def grow_disk(self, path: Path, disk_format: str, size: int) -> None:
        """Grow the disk to ``size`` bytes; does nothing when it has that size; raises StepError for a larger disk."""

    @abc.abstractmethod
    def running_for(self, server: str) -> float | None:
        """Return the seconds since the guest's last start by this host's clock; None unless its processors run."""

    @abc.abstractmethod
    def rebase_disk(self, path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
        """Let an overlay rest on a file with the same content at another path; does nothing when it does already."""

    @abc.abstractmethod
    def ping_agent(self, server: str, *, seconds: float) -> bool:
        """Ask the agent of the running guest whether it is there; returns False when the guest has no channel for one.

        Raises StepError when there is a channel and no agent answers within ``seconds``.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections; guests go on running."""
