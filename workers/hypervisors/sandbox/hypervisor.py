"""The sandbox hypervisor: guests are processes, disks are files of real bytes.

The demo and the crash tests use it.  Below the host's directory lie ``domains/<uuid>.json`` and ``<uuid>.starts``,
``run/<uuid>.{lock,pid,ask,answer,log}``, ``connections/`` and ``vifs/``.  Only the lock decides whether a guest runs
(`droveway.workers.hypervisors.sandbox.run`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from droveway.errors import StepError
from droveway.wire.commands import DiskInfo
from droveway.workers.hypervisors import durable
from droveway.workers.hypervisors.attached import AttachingHypervisor, LocalVolume
from droveway.workers.hypervisors.base import NO_FORMATS, Fence, GuestRecord, Mark, Port, Volume
from droveway.workers.hypervisors.sandbox import guest as sandbox_guest
from droveway.workers.hypervisors.sandbox.run import POLL_SECONDS, Run

MACHINE = "sandbox-1"
PROGRAM = str(Path(sandbox_guest.__file__).resolve())
START_SECONDS = 20.0
KILL_SECONDS = 10.0
ANSWER_SECONDS = 10.0


class Definition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The definition of a sandbox guest; disks by file name in the server's directory, memory in MiB."""

    machine: str
    server: str
    name: str
    vcpus: int
    memory_mb: int
    boot: Literal["disk", "volume"]
    disks: list[str]
    volumes: list[LocalVolume]
    ports: list[Port]
    mark: Mark | None


class Sandbox(AttachingHypervisor):
    """The sandbox of one host."""

    name = "sandbox"
    disk_format = "raw"

    def __init__(
        self,
        host: str,
        root: Path,
        *,
        guests_log: Path,
        volumes: Path | None = None,
        memory_mb: int | None = None,
        same_host_cold_migrate: bool = False,
    ) -> None:
        super().__init__(host, root.absolute())
        self.guests_log = guests_log.absolute()
        self.volumes_root = volumes
        self.memory_mb = memory_mb
        self.same_host_cold_migrate = same_host_cold_migrate
        self._domains = self.root / "domains"
        self._runs = self.root / "run"

    def guests(self) -> Iterator[GuestRecord]:
        """Yield every guest that is defined or runs here."""
        found = {path.stem for path in self._domains.glob("*.json")} | {path.stem for path in self._runs.glob("*.lock")}
        for server in sorted(found):
            if not server.startswith(".") and (record := self.guest(server)) is not None:
                yield record

    def guest(self, server: str) -> GuestRecord | None:
        """Return the server's guest; writes the stop line of a run that ended without one."""
        run = self._run(server)
        running = run.held()
        if not running:
            run.write_stop_line()
        text = durable.read(self._definition_file(server))
        if text is None and not running:
            return None
        known = None if text is None else self._decode(text.decode())
        return GuestRecord(
            server=server,
            name=known.name if known else "",
            running=running,
            starts=self._starts(server),
            vcpus=known.vcpus if known else 0,
            memory_mb=known.memory_mb if known else 0,
            definition="" if text is None else text.decode(),
            mark=known.mark if known else None,
        )

    def check(self, definition: str, *, vcpus: int, memory_mb: int) -> None:
        """Raise DestinationFault when this host lacks the machine type or the memory."""
        wanted = self._decode(definition)
        if wanted.machine != MACHINE:
            raise self.fault(f"host {self.host} does not know the machine type {wanted.machine}: it has {MACHINE}")
        if vcpus < 1:
            raise self.fault(f"host {self.host} cannot run a guest with {vcpus} vCPUs: it needs at least 1")
        if self.memory_mb is not None and memory_mb > self.memory_mb:
            raise self.fault(f"host {self.host} has {self.memory_mb} MiB of memory, the guest wants {memory_mb}")

    def create_definition(
        self, *, server: str, name: str, vcpus: int, memory_mb: int, disks: Sequence[Path], boot_volume: bool
    ) -> str:
        """Return a definition for a guest that no host ever ran."""
        new = Definition(
            machine=MACHINE,
            server=server,
            name=name,
            vcpus=vcpus,
            memory_mb=memory_mb,
            boot="volume" if boot_volume else "disk",
            disks=[path.name for path in disks],
            volumes=[],
            ports=[],
            mark=None,
        )
        return _encode(new)

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
        own: bool = False,  # noqa: ARG002 - the interface's
    ) -> None:
        """Define the guest; raises DestinationFault when the host refuses it or another guest is in its way."""
        for disk_format in formats.values():
            self._only_raw(disk_format)
        wanted = self._decode(definition)
        wanted.vcpus = wanted.vcpus if vcpus is None else vcpus
        wanted.memory_mb = wanted.memory_mb if memory_mb is None else memory_mb
        wanted.disks = [path.name for path in disks]
        wanted.volumes = [self.local_volume(volume) for volume in volumes]
        wanted.ports = list(ports)
        wanted.mark = mark
        if wanted.machine != MACHINE:
            raise self.fault(f"host {self.host} does not know the machine type {wanted.machine}: it has {MACHINE}")
        if wanted.server != server:
            raise self.fault(f"the definition of server {server} is of another server, {wanted.server}")
        self._refuse_clash(wanted)
        text = _encode(wanted).encode()
        present = durable.read(self._definition_file(server))
        if present == text:
            return
        if self._run(server).held():
            raise self.fault(f"server {server} runs on {self.host} with another definition: stop it first")
        durable.write(self._definition_file(server), text)

    def unmark(self, server: str) -> None:
        """Take the mark off the guest, which may run; does nothing when it has none."""
        text = durable.read(self._definition_file(server))
        known = None if text is None else self._decode(text.decode())
        if known is not None and known.mark is not None:
            known.mark = None
            durable.write(self._definition_file(server), _encode(known).encode())

    def undefine(self, server: str) -> None:
        """Remove the guest's definition and start count; raises StepError when it runs."""
        if not self._definition_file(server).exists() and not self._starts_file(server).exists():
            return
        run = self._run(server)
        lock = run.take()
        if lock is None:
            raise StepError(f"server {server} runs on {self.host}: stop it before it is undefined", host=self.host)
        try:
            run.write_stop_line()
            durable.remove(self._definition_file(server))
            durable.remove(self._starts_file(server))
        finally:
            run.release(lock)

    def start(self, server: str, fence: Fence) -> None:
        """Start the guest unless it runs; raises DestinationFault when it is proved that it never started."""
        run, deadline = self._run(server), time.monotonic() + START_SECONDS
        while (lock := run.take()) is None:
            # The guest runs, or another starter, which may have been killed, has half started it.
            if run.up():
                return
            if time.monotonic() > deadline:
                raise self._unknown(server, "another start of it does not end")
            time.sleep(POLL_SECONDS)
        try:
            run.write_stop_line()
            known = self._startable(server)
            before = self._starts(server)
            fence()
        except BaseException:
            run.release(lock)
            raise
        try:
            word = self._spawn(known, lock, deadline)
        finally:
            os.close(lock)
        if word == "up":
            return
        run.await_off(deadline)
        if run.held() or self._starts(server) != before:
            raise self._unknown(server, word or "it ended while it booted")
        raise self.fault(f"the guest of server {server} did not start: {word or 'it ended before it booted'}")

    def stop(self, server: str, *, grace: float, fence: Fence) -> None:
        """Press the power button, and kill the guest after ``grace`` seconds; returns when it is off."""
        run = self._run(server)
        if run.held():
            fence()
            run.signal(signal.SIGTERM, grace)
        if run.held():
            fence()
            run.signal(signal.SIGKILL, KILL_SECONDS)
        if run.held():
            raise StepError(f"the guest of server {server} cannot be stopped on {self.host}", host=self.host)
        run.write_stop_line()

    def disk_info(self, path: Path, disk_format: str) -> DiskInfo:
        """Return size and allocation of one disk."""
        self._only_raw(disk_format)
        status = path.stat()
        return DiskInfo(
            name=path.name, format=disk_format, virtual_size=status.st_size, allocated=status.st_blocks * 512
        )

    def create_disk(self, path: Path, *, size: int, kind: str) -> None:
        """Make a new blank disk: a sparse file, the same for every ``kind``."""
        temporary = path.with_name(f"{path.name}.{kind}.part")
        with open(temporary, "wb", opener=_as_a_disk) as file:
            file.truncate(size)
            os.fsync(file.fileno())
        temporary.rename(path)
        durable.sync_directory(path.parent)

    def grow_disk(self, path: Path, disk_format: str, size: int) -> None:
        """Grow the file to ``size`` bytes; raises StepError when it is larger or a guest has it open."""
        self._only_raw(disk_format)
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StepError(f"{path} cannot grow: a guest uses it; stop it first", host=self.host) from None
            present = os.fstat(file.fileno()).st_size
            if present > size:
                raise StepError(f"{path} has {present} bytes: a disk never shrinks (to {size})", host=self.host)
            if present < size:
                file.truncate(size)
                os.fsync(file.fileno())

    def running_for(self, server: str) -> float | None:
        """Return the seconds since the guest's process was started; None when it is not up."""
        return self._run(server).age()

    def rebase_disk(self, path: Path, disk_format: str, backing: Path, backing_format: str) -> None:  # noqa: ARG002 - the interface's
        """Refuse with StepError, because a raw disk rests on no other file."""
        raise StepError(f"{path} is raw and rests on no other file", host=self.host)

    def ping_agent(self, server: str, *, seconds: float) -> bool:
        """Ask the guest's process, which is its own agent; raises StepError when it does not answer."""
        self.probe_guest(server, seconds=seconds)
        return True

    def probe_guest(self, server: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Ask a running guest for its boot count, its sizes and the text that `write_mark` wrote last."""
        return self._run(server).query_guest(None, seconds or ANSWER_SECONDS)

    def write_mark(self, server: str, text: str) -> None:
        """Let the running guest write ``text`` into its own disk, so that a test can tell copies of the disk apart.

        This is not the move's mark, which is in the definition.
        """
        if not 0 < len(text.encode()) < sandbox_guest.MARK_BYTES:
            raise StepError(f"the mark {text!r} must have 1 to {sandbox_guest.MARK_BYTES - 1} bytes", host=self.host)
        self._run(server).query_guest(text, ANSWER_SECONDS)

    def close(self) -> None:
        """Do nothing, because nothing is held open: guests are reached through their files."""

    def _spawn(self, known: Definition, lock: int, deadline: float) -> str:
        """Start the guest's process and return its word: ``up``, why it did not start, or empty when it was killed."""
        directory = self.instances / known.server
        disks = [str(directory / name) for name in known.disks]
        volumes = [
            str(self.volume_file(volume)) for volume in sorted(known.volumes, key=lambda volume: not volume.boot)
        ]
        spec = [known.server, self.host, str(known.vcpus), str(known.memory_mb), str(self.guests_log)]
        spec += [str(self._starts_file(known.server)), str(self._run(known.server).path)]
        spec += volumes + disks if known.boot == "volume" else disks + volumes
        with (self._runs / f"{known.server}.log").open("ab") as errors, _blocked_signals():
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", PROGRAM, *spec],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=[lock],
            )
        with child:
            assert child.stdout is not None  # noqa: S101 - it was asked for
            word, ready = b"", select.poll()
            ready.register(child.stdout, select.POLLIN)
            while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                part = os.read(child.stdout.fileno(), 4096)
                if not part:
                    return word.decode()
                word += part
        raise self._unknown(known.server, f"it did not boot within {START_SECONDS:g} s")

    def _startable(self, server: str) -> Definition:
        """Return the definition of a guest that can be started here; raises DestinationFault when it cannot."""
        text = durable.read(self._definition_file(server))
        if text is None:
            raise self.fault(f"server {server} is not defined on {self.host}")
        known = self._decode(text.decode())
        self.check(text.decode(), vcpus=known.vcpus, memory_mb=known.memory_mb)
        if not (any(volume.boot for volume in known.volumes) if known.boot == "volume" else known.disks):
            raise self.fault(f"the guest of server {server} has no {known.boot} to boot from")
        self.require_attached(server, [volume.volume for volume in known.volumes], [port.port for port in known.ports])
        return known

    def _refuse_clash(self, wanted: Definition) -> None:
        """Raise DestinationFault when another server has this name here, or this server has another name here.

        libvirt refuses that too.
        """
        for path in self._domains.glob("[!.]*.json"):
            other = self._decode((durable.read(path) or b"").decode())
            if (other.server == wanted.server) != (other.name == wanted.name):
                raise self.fault(
                    f"{wanted.name} of server {wanted.server} cannot be defined on {self.host}: "
                    f"{other.name} of server {other.server} is in its way; undefine it first"
                )

    def _run(self, server: str) -> Run:
        return Run(self.host, self._runs, server, self.guests_log)

    def _starts(self, server: str) -> int:
        return int(durable.read(self._starts_file(server)) or 0)

    def _definition_file(self, server: str) -> Path:
        return self._domains / f"{server}.json"

    def _starts_file(self, server: str) -> Path:
        return self._domains / f"{server}.starts"

    def _decode(self, text: str) -> Definition:
        try:
            return msgspec.json.decode(text, type=Definition)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self.fault(f"host {self.host} cannot read the definition: {error}") from None

    def _only_raw(self, disk_format: str) -> None:
        if disk_format != self.disk_format:
            raise StepError(f"the sandbox knows raw disks, not {disk_format}", host=self.host)

    def _unknown(self, server: str, why: str) -> StepError:
        return StepError(
            f"whether the guest of server {server} started on {self.host} is unknown: {why}", host=self.host
        )


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the signals that a guest waits for; a process that this thread starts now begins with them blocked."""
    wanted = {getattr(signal, name) for name in sandbox_guest.SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_a_disk(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o640)


def _encode(definition: Definition) -> str:
    return msgspec.json.encode(definition).decode()
