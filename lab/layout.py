"""Holds the paths of a lab, and reads and writes the file that makes a directory a lab."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from droveway.errors import Refused
from droveway.workers.hypervisors import durable
from droveway.workers.seen import JOURNAL

VERSION: Final = 1
"""The version of a lab's layout; it goes up by one when an older Droveway cannot use the lab any more."""

RECORDED: Final = "recorded"

_SOCKET_PREFIX = "droveway-"
_RANDOM = 8
_LONGEST_SOCKET_ROOT = 40

SOCKET_PATH_BYTES: Final = 107
"""The largest number of bytes in the path of a unix socket."""

# The longest path after the host's name in the directory of the sockets: a guest's monitor where libvirt puts it (a
# daemon starts fewer than 10,000 guests), or else the worker's own socket.
_BEHIND_HOST = {
    "libvirt": "/config/libvirt/qemu/lib/domain-9999-instance-00000000/monitor.sock",
    "sandbox": ".sock",
}


class LabHost(msgspec.Struct, frozen=True, kw_only=True):
    """What the lab knows of a host."""

    cell: str
    memory_mb: int
    shared: str | None = None
    same_host_cold_migrate: bool = False
    isolated: bool = False
    """Whether only workers of its own cell can reach its transfer port."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``lab.json``."""

    version: int
    hypervisor: str
    sockets: str
    """The directory of the lab's unix sockets: short, and of mode 0711."""
    project: str
    user: str
    network: str
    hosts: dict[str, LabHost]
    complete: bool
    """Whether the lab was completely made."""


@dataclass(frozen=True)
class Layout:
    """The paths of a lab."""

    root: Path

    @property
    def identity(self) -> Path:
        """Return the file that identifies the lab."""
        return self.root / "lab.json"

    @property
    def configuration(self) -> Path:
        """Return the lab's configuration file."""
        return self.root / "droveway.conf"

    @property
    def api(self) -> Path:
        """Return the file of Nova's API database."""
        return self.root / "api.sqlite"

    @property
    def cells(self) -> Path:
        """Return the directory of the cell databases."""
        return self.root / "cells"

    @property
    def journal(self) -> Path:
        """Return the file of Droveway's journal."""
        return self.root / "journal.sqlite"

    @property
    def placement(self) -> Path:
        """Return the file of Placement's database."""
        return self.root / "placement.sqlite"

    @property
    def services(self) -> Path:
        """Return the file of the database of ports, volumes and images."""
        return self.root / "services.sqlite"

    @property
    def images(self) -> Path:
        """Return the directory of the images' bytes."""
        return self.root / "images"

    @property
    def volumes(self) -> Path:
        """Return the directory of the volumes' bytes."""
        return self.root / "volumes"

    @property
    def shared(self) -> Path:
        """Return the directory with the instances directories that several hosts share."""
        return self.root / "shared"

    @property
    def hosts(self) -> Path:
        """Return the directory with a directory for each host."""
        return self.root / "hosts"

    @property
    def guests_log(self) -> Path:
        """Return the log with one line for each start and stop of a sandbox guest."""
        return self.root / "guests.log"

    @property
    def lock(self) -> Path:
        """Return the lock file; the process that holds it runs the lab."""
        return self.root / "lock"

    @property
    def faults(self) -> Path:
        """Return the file of the armed faults."""
        return self.root / "faults.json"

    @property
    def stopped_workers(self) -> Path:
        """Return the file that names the hosts whose worker an operator has stopped."""
        return self.root / "stopped-workers.json"

    @property
    def marks(self) -> Path:
        """Return the file with the state of the databases when the lab last ran."""
        return self.root / "marks.json"

    @property
    def recorded(self) -> Path:
        """Return the directory with a file for each move, a copy of what the journal recorded of it."""
        return self.root / RECORDED

    @property
    def log(self) -> Path:
        """Return the lab's log."""
        return self.root / "droveway.log"

    def cell(self, name: str) -> Path:
        """Return the file of a cell's database."""
        return self.cells / f"{name}.sqlite"

    def host(self, name: str) -> Path:
        """Return a host's directory."""
        return self.hosts / name

    def worker(self, host: str) -> Path:
        """Return the file of the journal of a host's worker."""
        return self.host(host) / JOURNAL


def read_identity(layout: Layout, *, unfinished: bool = False) -> Identity:
    """Read which lab the directory is; raises `droveway.errors.Refused` when this version cannot use it.

    With ``unfinished`` a lab that was not completely made is accepted too; only `lab destroy` can use it.
    """
    root = layout.root
    try:
        data = layout.identity.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(f"{root} is no lab: make one with  droveway lab create DIR, or name another with --lab") from None
    except OSError as error:
        raise Refused(f"the lab {root} cannot be read ({error.strerror}): give yourself access to it") from None
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("version")
        if version != VERSION:
            raise Refused(
                f"the lab {root} is of version {version} and this Droveway makes version {VERSION}: use the Droveway "
                "that made it, or make a new lab"
            )
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        raise Refused(f"{layout.identity} is corrupt ({error}): remove {root} and make a new lab") from None
    if not identity.complete and not unfinished:
        raise Refused(f"the lab {root} was never finished: droveway lab destroy {root}, then create it again")
    return identity


def write_identity(layout: Layout, identity: Identity) -> None:
    """Write ``lab.json``, durably."""
    durable.replace(layout.identity, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")


def make_socket_directory(hosts: Iterable[str], hypervisor: str) -> Path:
    """Make a directory for the hosts' unix sockets in ``TMPDIR``, or in ``/tmp`` where that is too long for them.

    Raises `droveway.errors.Refused` for a host whose name is too long even there.
    """
    room = SOCKET_PATH_BYTES - len(_BEHIND_HOST[hypervisor]) - len(f"/{_SOCKET_PREFIX}{'x' * _RANDOM}/")
    longest = max(hosts, key=len)
    given = tempfile.gettempdir()
    roots = [*([given] if len(given) <= _LONGEST_SOCKET_ROOT else []), "/tmp"]  # noqa: S108 - mkdtemp makes a directory of its own
    root = next((root for root in roots if len(os.fsencode(root)) + len(longest) <= room), None)
    if root is None:
        most = room - len(roots[-1])
        raise Refused(f"host {longest} has a name that is too long for a lab's sockets: use at most {most} letters")
    path = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX, dir=root))
    path.chmod(0o711)
    return path


def remove_socket_directory(identity: Identity) -> None:
    """Remove the directory of the sockets, but only if `make_socket_directory` made it."""
    path = Path(identity.sockets)
    if path.name.startswith(_SOCKET_PREFIX):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
