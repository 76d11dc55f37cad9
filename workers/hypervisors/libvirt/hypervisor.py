"""The libvirt hypervisor: QEMU guests through a libvirt daemon.

Every action looks, decides, acts and looks again.  After a call without an answer (the daemon died) it looks on a new
connection.  New disks are qcow2.  `droveway.workers.hypervisors.libvirt.starts` tells how starts are counted, and
`droveway.workers.hypervisors.libvirt.xml` where the ports of an unprivileged daemon are recorded.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from droveway.errors import DestinationFault, StepError
from droveway.wire.commands import DiskInfo
from droveway.workers.hypervisors import headers, processes, qcow2
from droveway.workers.hypervisors.attached import AttachingHypervisor
from droveway.workers.hypervisors.base import BASES, NO_FORMATS, Fence, GuestRecord, Mark, Port, Volume
from droveway.workers.hypervisors.libvirt import agent as libvirt_agent
from droveway.workers.hypervisors.libvirt import files as libvirt_files
from droveway.workers.hypervisors.libvirt import lines as libvirt_lines
from droveway.workers.hypervisors.libvirt import xml as libvirt_xml
from droveway.workers.hypervisors.libvirt.connection import Connection, Overdue, library, within
from droveway.workers.hypervisors.libvirt.errors import Code, is_code, is_lost, text_of
from droveway.workers.hypervisors.libvirt.starts import Power, Starts
from droveway.workers.hypervisors.libvirt.xml import NAMESPACE, PREFIX, Domain

T = TypeVar("T")

START_SECONDS = 60.0
DESTROY_SECONDS = 30.0
PRESS_AGAIN_SECONDS = 1.0
POLL_SECONDS = 0.02
PRESS = "power-button"
"""Name of the threads that press a guest's power button."""
# virDomainUndefineFlags: remove managed save, snapshots' metadata, NVRAM, checkpoints' metadata.
UNDEFINE_ALL = 1 | 2 | 4 | 16
INACTIVE = 2
DEFINE_VALIDATE = 1
METADATA_ELEMENT = 2
AFFECT_LIVE, AFFECT_CONFIG = 1, 2
FAIL_INCOMPATIBLE = 1
# The values of virDomainState and of its reasons that decide something here.
RUNNING, PAUSED, SHUTOFF = 1, 3, 5
PAUSED_STARTING_UP = 11
SHUTOFF_FAILED = 6


class Libvirt(AttachingHypervisor):
    """One host's libvirt daemon at ``uri``.

    A session daemon of root runs guests as the user ``qemu_user``.  That user gets a guest's files before the guest
    starts.
    """

    name = "libvirt"
    disk_format = "qcow2"
    same_host_cold_migrate = False

    def __init__(
        self,
        host: str,
        root: Path,
        *,
        uri: str,
        volumes: Path | None = None,
        memory_mb: int | None = None,
        kind: str = "qemu",
        qemu_user: str = "nobody",
    ) -> None:
        super().__init__(host, root.absolute())
        self.volumes_root = volumes
        self.memory_mb = memory_mb
        self._kind = kind
        self._connection = Connection(uri, host)
        self._calls: dict[str, list[threading.Thread]] = {}
        self._owner = pwd.getpwnam(qemu_user) if os.geteuid() == 0 and "/session" in uri else None

    def guests(self) -> Iterator[GuestRecord]:
        """Yield every guest that is defined or runs here."""
        for server in self._connection.call_repeatable(
            lambda libvirt: [domain.UUIDString() for domain in libvirt.listAllDomains()]
        ):
            if (record := self.guest(server)) is not None:
                yield record

    def guest(self, server: str) -> GuestRecord | None:
        """Return the server's guest; its definition is the one for the next boot, without secrets."""
        text = self._text(server)
        power = self._power(server)
        if text is None or power is None:
            return None
        domain = Domain(text)
        return GuestRecord(
            server=server,
            name=domain.name,
            running=power.running,
            starts=self._starts(server).counted(power),
            vcpus=domain.vcpus,
            memory_mb=domain.memory_mb,
            definition=text,
            mark=domain.mark,
        )

    def check(self, definition: str, *, vcpus: int, memory_mb: int) -> None:
        """Raise DestinationFault when this host lacks the machine type, the CPU's features, vCPUs or memory."""
        domain = self._taken_over(definition)
        libvirt = library()
        kind = (domain.architecture, domain.machine, domain.kind)
        try:
            text = self._connection.call_repeatable(lambda connection: connection.getDomainCapabilities(None, *kind))
            if domain.cpu is not None:
                cpu = domain.cpu
                self._connection.call_repeatable(
                    lambda connection: connection.compareHypervisorCPU(None, *kind, cpu, FAIL_INCOMPATIBLE)
                )
            memory = self.memory_mb or self._connection.call_repeatable(lambda connection: int(connection.getInfo()[1]))
        except libvirt.libvirtError as error:
            raise self.fault(f"host {self.host} cannot run the guest: {text_of(error)}") from None
        most = libvirt_xml.most_vcpus(text)
        if not 1 <= vcpus <= most:
            raise self.fault(f"host {self.host} can give a guest 1 to {most} vCPUs, the guest wants {vcpus}")
        if memory_mb > memory:
            raise self.fault(f"host {self.host} has {memory} MiB of memory, the guest wants {memory_mb}")

    def create_definition(
        self, *, server: str, name: str, vcpus: int, memory_mb: int, disks: Sequence[Path], boot_volume: bool
    ) -> str:
        """Return a definition for a guest that no host ever ran: with a fixed machine type and a named CPU model."""
        capabilities = self._connection.call_repeatable(
            lambda connection: connection.getDomainCapabilities(None, "x86_64", "pc", self._kind)
        )
        machine = libvirt_xml.machine(capabilities)
        domain = Domain.new(
            kind=self._kind, machine=machine, server=server, name=name, vcpus=vcpus, memory_mb=memory_mb
        )
        if not boot_volume:
            domain.set_disks(disks, {path.name: self.disk_format for path in disks}, [])
        return domain.text()

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
        """Define the guest, validated; raises DestinationFault when libvirt refuses or another guest is in its way."""
        wanted = self._taken_over(definition, own=own)
        if wanted.server != server:
            raise self.fault(f"the definition of server {server} is of another server, {wanted.server}")
        wanted.set_sizes(vcpus, memory_mb)
        local = [self.local_volume(volume) for volume in volumes]
        placed = [msgspec.structs.replace(volume, path=str(self.volume_file(volume))) for volume in local]
        for path in disks:
            headers.require_format(formats.get(path.name, "nothing"), str(path))
        wanted.set_disks(disks, formats, placed)
        wanted.set_metadata(mark, ports)
        self._adapt(wanted, server)
        power, present = self._power(server), self._text(server)
        if power is not None and power.running:
            if present is None or Domain(present).facts() != wanted.facts():
                raise self.fault(f"server {server} runs on {self.host} with another definition: stop it first")
            return
        libvirt = library()
        try:
            # Without validation libvirt silently drops what it does not know.  libvirt itself makes sure that a name
            # belongs to one server and a server has one name.
            self._connection.call_repeatable(
                lambda connection: connection.defineXMLFlags(wanted.text(), DEFINE_VALIDATE)
            )
        except libvirt.libvirtError as error:
            raise self.fault(f"host {self.host} cannot define server {server}: {text_of(error)}") from None

    def require_movable(self, definition: str) -> None:
        """Raise StepError (``definition``) for a guest whose definition holds what no other host takes over."""
        try:
            Domain.taken_over(definition)
        except ValueError as error:
            raise StepError(
                f"the guest's definition on {self.host} cannot be moved: {error}", code="definition", host=self.host
            ) from None

    def unmark(self, server: str) -> None:
        """Take the mark off the guest, at once and for its next boot; does nothing when it has none."""
        text = self._text(server)
        if text is None or Domain(text).mark is None:
            return
        wanted = Domain(text).metadata_without_mark()
        flags = AFFECT_CONFIG | (AFFECT_LIVE if self._running(server) else 0)
        refusal = self._act(
            lambda domain: domain.setMetadata(METADATA_ELEMENT, wanted, PREFIX, NAMESPACE, flags), server
        )
        if refusal is not None and not is_code(refusal, Code.NO_DOMAIN):
            raise StepError(
                f"host {self.host} cannot take the mark off the guest of server {server}: {text_of(refusal)}",
                host=self.host,
            )

    def undefine(self, server: str) -> None:
        """Remove the guest's definition, saved state, snapshot metadata, start count; raises StepError when it runs."""
        libvirt = library()
        with self._starts(server).held(START_SECONDS):
            # libvirt would undefine a running guest, which goes on running and leaves no trace when it ends.
            self._refuse_running(server)
            try:
                self._connection.call_repeatable(
                    lambda connection: connection.lookupByUUIDString(server).undefineFlags(UNDEFINE_ALL)
                )
            except libvirt.libvirtError as error:
                if not is_code(error, Code.NO_DOMAIN):
                    raise StepError(
                        f"host {self.host} cannot undefine server {server}: {text_of(error)}", host=self.host
                    ) from None
            self._refuse_running(server)
            self._starts(server).forget()

    def start(self, server: str, fence: Fence) -> None:
        """Start the guest unless it runs; raises DestinationFault when it is proved that it never started."""
        starts = self._starts(server)
        deadline = time.monotonic() + START_SECONDS
        with starts.held(START_SECONDS):
            before = starts.count_start(power := self._power_after_start(server, deadline))
            while not (power and power.running):
                if power is None:
                    raise self.fault(f"server {server} is not defined on {self.host}")
                self._make_startable(server)
                fence()
                starts.announce(power)
                refusal = self._act(lambda domain: domain.create(), server)
                power = self._power_after_start(server, deadline)
                # Without an answer the next round tries again, whatever this start did.
                failed = refusal is not None and not is_lost(refusal) and not (power and power.running)
                counted = starts.count_start(power, failed=failed)
                if failed:
                    why = f"the guest of server {server} did not start on {self.host}: {text_of(refusal)}"
                    raise self.fault(why) if counted == before else StepError(why, host=self.host)
                if refusal is None:
                    return
                if time.monotonic() > deadline:
                    raise StepError(
                        f"whether the guest of server {server} started on {self.host} is unknown: "
                        f"its libvirt daemon did not answer; look after the daemon",
                        host=self.host,
                    )

    def stop(self, server: str, *, grace: float, fence: Fence) -> None:
        """Press the power button for ``grace`` seconds, then cut the guest off; returns when it is off.

        Raises StepError when the guest still runs after that, or when libvirt has not answered every call to stop it.
        """
        self._require_answers(server)
        if not self._running(server):
            return
        fence()
        calls = self._calls[server] = []
        if grace > 0:
            # shutdown() blocks while the guest's QEMU hangs, so it runs in a thread and no deadline waits for it.
            enough = threading.Event()
            calls.append(threading.Thread(target=self._press, args=(server, enough), name=PRESS, daemon=True))
            calls[0].start()
            try:
                deadline = time.monotonic() + grace
                while self._running(server) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
            finally:
                enough.set()
        refusal = None
        deadline = time.monotonic() + DESTROY_SECONDS
        while self._running(server):
            if time.monotonic() > deadline:
                why = "QEMU hangs" if refusal is None else text_of(refusal)
                raise StepError(f"the guest of server {server} cannot be stopped on {self.host}: {why}", host=self.host)
            fence()
            try:
                refusal = within(DESTROY_SECONDS, lambda: self._act(lambda domain: domain.destroy(), server))
            except Overdue as overdue:
                calls.append(overdue.thread)
        self._require_answers(server)

    def disk_info(self, path: Path, disk_format: str) -> DiskInfo:
        """Return size, allocation and backing file of one disk."""
        return qcow2.info(path, disk_format)

    def create_disk(self, path: Path, *, size: int, kind: str) -> None:
        """Make a new blank disk."""
        qcow2.create(path, size, kind=kind)

    def grow_disk(self, path: Path, disk_format: str, size: int) -> None:
        """Grow the disk to ``size`` bytes; raises StepError for a larger disk, or one that a guest has locked."""
        qcow2.grow(path, disk_format, size)

    def running_for(self, server: str) -> float | None:
        """Return the seconds since the guest's QEMU was started; its process has the server's id as an argument."""
        found = self._state(server)
        return processes.age_of_youngest(server) if found is not None and found[:2] == (True, RUNNING) else None

    def rebase_disk(self, path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
        """Let an overlay rest on a file with the same content at another path."""
        qcow2.rebase(path, disk_format, backing, backing_format)

    def ping_agent(self, server: str, *, seconds: float) -> bool:
        """Ask the running guest's agent, if the guest has a channel for one."""
        text = self._query_domain(lambda connection: str(connection.lookupByUUIDString(server).XMLDesc(0)))
        if text is None or not libvirt_lines.has_agent(Domain(text).root.find("devices")):
            return False

        def ping() -> None:
            libvirt_agent.ping(self._connection.get().lookupByUUIDString(server), seconds)

        try:
            # libvirt first checks that the agent is there, which may take longer than ``seconds`` by itself.
            within(seconds, ping)
        except TimeoutError:
            why = f"it says nothing within {seconds:g} s"
        except libvirt_agent.Mute as error:
            why = str(error)
        except library().libvirtError as error:
            raise StepError(f"libvirt of host {self.host} fails: {text_of(error)}", host=self.host) from None
        else:
            return True
        raise StepError(f"the guest agent of server {server} on {self.host} does not answer: {why}", host=self.host)

    def close(self) -> None:
        """Close this thread's connection; guests go on running."""
        self._connection.close()

    def _press(self, server: str, enough: threading.Event) -> None:
        """Press the power button until the guest obeys: a guest that is booting does not notice the first press."""
        # `stop` looks at the guest meanwhile, so it meets and reports any error of the daemon or the guest itself.
        with contextlib.suppress(StepError, library().libvirtError):
            while not enough.is_set():
                domain = self._connection.get().lookupByUUIDString(server)
                # On a busy host, opening the connection may have taken longer than the grace that the guest has.
                if not enough.is_set():
                    domain.shutdown()
                enough.wait(PRESS_AGAIN_SECONDS)

    def _require_answers(self, server: str) -> None:
        """Raise StepError unless libvirt answered all calls to stop the guest: a late one would stop its next run."""
        deadline = time.monotonic() + DESTROY_SECONDS
        for call in self._calls.get(server, []):
            call.join(max(0.0, deadline - time.monotonic()))
            if call.is_alive():
                raise StepError(
                    f"the libvirt daemon of {self.host} has not answered each call to stop the guest of server "
                    f"{server}: look after the daemon",
                    code="hypervisor-away",
                    host=self.host,
                )
        self._calls.pop(server, None)

    def _act(self, call: Callable[[Any], object], server: str) -> Any:
        """Call the domain once; returns the libvirtError, or None when the call succeeded."""
        libvirt = library()
        try:
            call(self._connection.get().lookupByUUIDString(server))
        except libvirt.libvirtError as error:
            return error
        return None

    def _power(self, server: str) -> Power | None:
        """Return whether the domain runs, or why it is off; None when it is not defined."""
        found = self._state(server)
        if found is None:
            return None
        active, state, reason = found
        return Power(running=active, failed=not active and (state, reason) == (SHUTOFF, SHUTOFF_FAILED))

    def _power_after_start(self, server: str, deadline: float) -> Power | None:
        """Return what `_power` does, once no start is under way; a starter that was killed may have left one.

        Raises StepError when the start has not ended by ``deadline`` (monotonic).
        """
        while (found := self._state(server)) is not None and found[0] and _is_starting(*found[1:]):
            if time.monotonic() > deadline:
                raise StepError(f"a start of server {server} on {self.host} does not end", host=self.host)
            time.sleep(POLL_SECONDS)
        return self._power(server)

    def _state(self, server: str) -> tuple[bool, int, int] | None:
        def question(connection: Any) -> tuple[bool, int, int]:
            domain = connection.lookupByUUIDString(server)
            state, reason = domain.state()
            return bool(domain.isActive()), state, reason

        return self._query_domain(question)

    def _running(self, server: str) -> bool:
        found = self._state(server)
        return found is not None and found[0]

    def _text(self, server: str) -> str | None:
        return self._query_domain(lambda connection: str(connection.lookupByUUIDString(server).XMLDesc(INACTIVE)))

    def _query_domain(self, question: Callable[[Any], T]) -> T | None:
        libvirt = library()
        try:
            return self._connection.call_repeatable(question)
        except libvirt.libvirtError as error:
            if is_code(error, Code.NO_DOMAIN):
                return None
            raise StepError(f"libvirt of host {self.host} fails: {text_of(error)}", host=self.host) from None

    def _refuse_running(self, server: str) -> None:
        if self._running(server):
            raise StepError(f"server {server} runs on {self.host}: stop it before it is undefined", host=self.host)

    def _make_startable(self, server: str) -> None:
        """Require the guest's volumes and ports to be ready here, and give its files to the daemon's user."""
        domain = Domain(self._text(server) or "")
        volumes = [serial for _, _, serial in domain.sources if serial]
        self.require_attached(server, volumes, [port.port for port in domain.ports])
        if self._owner is not None:
            disks = [Path(source) for _, source, _ in domain.sources]
            libvirt_files.hand_over(self._owner, disks)
            local = [Path(source) for _, source, serial in domain.sources if not serial]
            libvirt_files.let_reach(local, self.instances / BASES)
        elif os.geteuid() == 0:
            text = self._connection.call_repeatable(lambda connection: str(connection.getCapabilities()))
            local = [Path(source) for _, source, serial in domain.sources if not serial]
            libvirt_files.let_enter(local, libvirt_xml.qemu_group(text, domain.kind))

    def _starts(self, server: str) -> Starts:
        return Starts(self.root / "starts", server)

    def _adapt(self, wanted: Domain, server: str) -> None:
        """Put what belongs to this host into the definition."""
        wanted.adapt_to_host(self.instances / server)

    def _taken_over(self, definition: str, *, own: bool = False) -> Domain:
        try:
            return Domain(definition) if own else Domain.taken_over(definition)
        except ValueError as error:
            why = f"host {self.host} does not take the definition: {error}"
            raise DestinationFault(why, code="definition", host=self.host) from None


def _is_starting(state: int, reason: int) -> bool:
    """Return whether an active domain is still being started: its processors have not run yet."""
    return state == SHUTOFF or (state, reason) == (PAUSED, PAUSED_STARTING_UP)
