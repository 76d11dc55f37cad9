"""The narrow interface behind which the hypervisors stand.

Every call is look, decide, act, look: it may be repeated, and it reads the state back.  Directories and copies are
not its business (`droveway.workers.actions.disks`); it defines, starts and stops guests, connects what they use and
knows the formats of their disks.
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
"""Called right before an irreversible effect; raises `droveway.errors.Fenced` when the epoch has moved on."""


BASES: Final = "_base"
"""Nova's directory of the files that overlays rest on, beside those of the servers."""

CONFIG: Final = "disk.config"
"""Nova's config drive, which is raw and whose format Nova records nowhere."""

NO_FORMATS: Final[Mapping[str, str]] = types.MappingProxyType({})
"""Of a guest without disks of its own."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a domain or a disk is: carried by everything that Droveway makes on a host."""

    move: str
    epoch: int


class GuestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One guest as the hypervisor knows it, for `describe_guest` and the audit."""

    server: str
    name: str
    running: bool
    starts: int
    """Starts on this host since the domain was first defined; survives redefinition, the daemon and the worker."""
    vcpus: int
    memory_mb: int
    definition: str
    mark: Mark | None


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume with its connection info resolved."""

    volume: str
    device: str
    boot: bool
    connection: dict[str, Any]


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port to plug."""

    port: str
    mac: str


class Hypervisor(abc.ABC):
    """One host's hypervisor.  ``root`` is the host's directory; guests' disks lie in ``root/instances/<uuid>``."""

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
        """Every guest that is defined or runs here."""

    @abc.abstractmethod
    def guest(self, server: str) -> GuestRecord | None:
        """The server's guest, or None when nothing of it is defined or runs here."""

    @abc.abstractmethod
    def check(self, definition: str, *, vcpus: int, memory_mb: int) -> None:
        """Raise `droveway.errors.DestinationFault` when this host cannot run the guest (machine, CPU, memory)."""

    @abc.abstractmethod
    def create_definition(
        self, *, server: str, name: str, vcpus: int, memory_mb: int, disks: Sequence[Path], boot_volume: bool
    ) -> str:
        """The definition of a guest that never ran anywhere (a lab's new server)."""

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
        """Define the guest from ``definition`` with these sizes (None: as the text says), disks, volumes and ports.

        ``own``: this host told the definition itself and gets it back; that of another one is taken over as far as
        the hypervisor lets it. ``formats`` has what was recorded of each disk, by file name: raw or qcow2, and
        StepError for a disk of which nothing was.  Validated; repeated: the same; raises DestinationFault when the
        host refuses it or a running guest differs.
        """

    def require_movable(self, definition: str) -> None:  # noqa: B027 - most hypervisors' definitions are their own
        """Raise StepError (``definition``) when no other host takes the guest's definition over: on its own host."""

    @abc.abstractmethod
    def unmark(self, server: str) -> None:
        """Take the mark off the guest, which may run and stays as it is else; done when it has none or is not there."""

    @abc.abstractmethod
    def undefine(self, server: str) -> None:
        """Forget the guest with all its metadata; done when it is not there; raises StepError when it runs."""

    @abc.abstractmethod
    def start(self, server: str, fence: Fence) -> None:
        """Start the guest unless it runs; ``fence`` is called right before.

        Raises DestinationFault when it is proved that it never started (off, and the start count unchanged).
        """

    @abc.abstractmethod
    def stop(self, server: str, *, grace: float, fence: Fence) -> None:
        """Shut down within ``grace`` seconds, then destroy; returns when the guest is off; done when it was off."""

    @abc.abstractmethod
    def connector(self) -> dict[str, Any]:
        """What Cinder wants to know of this host to export a volume to it (host, ip, initiator)."""

    @abc.abstractmethod
    def connect_volume(self, server: str, volume: Volume) -> None:
        """Make the volume usable on this host for the server; done when it is connected already."""

    @abc.abstractmethod
    def disconnect_volume(self, server: str, volume: str) -> None:
        """Undo `connect_volume`; done when it is not connected."""

    @abc.abstractmethod
    def connections(self) -> Iterator[tuple[str, str]]:
        """(server, volume) of every volume connected on this host."""

    @abc.abstractmethod
    def plug(self, server: str, port: Port) -> None:
        """Make the port's interface on this host; done when it is there."""

    @abc.abstractmethod
    def unplug(self, server: str, port: str) -> None:
        """Remove the port's interface; done when it is not there."""

    @abc.abstractmethod
    def plugged(self) -> Iterator[tuple[str, str]]:
        """(server, port) of every interface on this host."""

    @abc.abstractmethod
    def disk_info(self, path: Path, disk_format: str) -> DiskInfo:
        """Size, allocation and backing file of one disk, its format being given, never guessed."""

    @abc.abstractmethod
    def create_disk(self, path: Path, *, size: int, kind: str) -> None:
        """A new blank disk of ``size`` bytes in this hypervisor's format (``kind``: root, ephemeral, swap), durable."""

    @abc.abstractmethod
    def grow_disk(self, path: Path, disk_format: str, size: int) -> None:
        """Grow to ``size`` bytes; done when it has that size; never shrinks (StepError)."""

    @abc.abstractmethod
    def running_for(self, server: str) -> float | None:
        """Seconds since the guest's last start, by this host's own clock; None unless its processors run."""

    @abc.abstractmethod
    def rebase_disk(self, path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
        """Let an overlay rest on the same content at another path; done when it does."""

    @abc.abstractmethod
    def ping_agent(self, server: str, *, seconds: float) -> bool:
        """Ask the running guest's agent whether it is there; False when the guest has no channel for one.

        Raises StepError when there is one and no answer of it within ``seconds``.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back connections; guests go on."""
