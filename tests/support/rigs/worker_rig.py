"""A rig for the workers' tests: two sandbox hosts, one server with real bytes, an embedded ZooKeeper."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from support.servers.certificates import Authority

from droveway import certificates
from droveway.clients import zookeeper
from droveway.clients.embedded.image import image_service
from droveway.clients.embedded.services import LocalService, services_engine
from droveway.clients.image import Images
from droveway.clients.references import References
from droveway.clients.zookeeper import command_path, epoch_path
from droveway.lab.serve_ports import free_port
from droveway.wire import codec, commands
from droveway.wire.values import Direction
from droveway.workers import stores
from droveway.workers.actions import copies, dispatch
from droveway.workers.context import Context, Host, Probe
from droveway.workers.daemon import Worker
from droveway.workers.directories import Directories
from droveway.workers.hypervisors import guests_log
from droveway.workers.hypervisors.base import Port, Volume
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox
from droveway.workers.journal import WorkerJournal
from droveway.workers.permission import Permissions
from droveway.workers.transfer.endpoints import Endpoint, TlsEndpoint, UnixEndpoint
from droveway.workers.transfer.limits import Bucket
from droveway.workers.transfer.server import TransferServer

MIB = 1 << 20
SERVER = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6ad01"
MOVE = "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"
OTHER_MOVE = "1d2b7c55-0000-4a63-8d4e-2a0f2a0c9b03"
FLOW = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b04"
PROBE = f".droveway-probe-{MOVE}-1"
VOLUME = commands.VolumeRef(volume="vol1", attachment="att1", device="/dev/vdb")
PORT = commands.PortRef(port="port1", mac="fa:16:3e:00:00:01")


class Killed(BaseException):
    """Stands for SIGKILL inside an action: nothing handles it."""


class LocalReferences(References):
    """Every attachment stands for the file of its volume; the images are those of a lab."""

    def __init__(self, folder: Path) -> None:
        self.volumes = folder / "volumes"
        self.folder = folder

    @functools.cached_property
    def service(self) -> LocalService:
        """Made when an image is first asked for."""
        (self.folder / "images").mkdir()
        return image_service(services_engine(self.folder / "services.sqlite"), self.folder / "images")

    @functools.cached_property
    def images(self) -> Images:
        return Images(self.service)

    def close(self) -> None:
        if "service" in self.__dict__:
            self.service.close()

    def _glance(self) -> Images:
        return self.images

    def connection_info(self, attachment_id: str) -> dict[str, Any]:
        path = self.volumes / attachment_id.replace("att", "vol")
        return {"driver_volume_type": "local", "data": {"path": str(path)}}


class KillAt:
    """Kills at the n-th effect and remembers the names of all effects up to there."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.names: list[str] = []

    def __call__(self, step: str, direction: str, phase: str, effect: str) -> None:
        self.names.append(effect)
        if self.number is not None and len(self.names) > self.number:
            raise Killed(effect)


class Cloud:
    """Hosts below ``folder``; with ``shared`` they keep their servers in one directory, with ``tls`` they use TCP."""

    def __init__(self, folder: Path, *, shared: bool = False, tls: bool = False) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki") if tls else None
        self.store = zookeeper.embedded_store()
        self.coordination = zookeeper.connect_embedded(self.store)
        self.log = folder / "guests.log"
        self.volumes = folder / "volumes"
        self.volumes.mkdir(parents=True)
        (self.volumes / "vol1").write_bytes(bytes(MIB))
        self.sockets = Path(tempfile.mkdtemp(prefix="dw"))
        self.references = LocalReferences(folder)
        self.hosts: dict[str, Host] = {}
        self.numbers = itertools.count(1)
        self.servers: dict[str, TransferServer] = {}
        self.endpoints: dict[str, Endpoint] = {}
        for name in ("alpha", "beta"):
            self.add(name, folder / "shared" if shared else None)
        self.set_epoch(1)

    def add(self, name: str, instances: Path | None) -> None:
        root = self.folder / "hosts" / name
        hypervisor = Sandbox(name, root, guests_log=self.log, volumes=self.volumes)
        if instances is not None:
            hypervisor.instances = instances
        identity = None
        endpoint: Endpoint = UnixEndpoint(f"{self.sockets}/{name}")
        if self.authority is not None:
            files = self.authority.issue(name, names=(name,))
            identity = certificates.read(files.certificate, files.key, files.authority)
            where = f"127.0.0.1:{free_port()}"
            endpoint = TlsEndpoint(name, where, identity, advertised=where)
        self.endpoints[name] = endpoint
        self.hosts[name] = Host(
            name=name,
            hypervisor=hypervisor,
            directories=Directories(hypervisor.instances),
            references=self.references,
            coordination=self.coordination,
            journal=WorkerJournal(root / "actions.sqlite", name),
            permissions=Permissions(5.0),
            transfer_address=endpoint.address,
            identity=identity,
        )
        self.hosts[name].directories.ensure()

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()
        for host in self.hosts.values():
            host.hypervisor.stop(SERVER, grace=0, fence=lambda: None)
            host.journal.close()
        self.references.close()
        self.coordination.close()
        for left in self.sockets.iterdir():
            left.unlink()
        self.sockets.rmdir()
        assert guests_log.overlaps(self.log) == []

    def serve(self, name: str, *, uid: int | None = None, limit: Bucket | None = None) -> TransferServer:
        host = self.hosts[name]
        endpoint = self.endpoints[name] if uid is None else UnixEndpoint(f"{self.sockets}/{name}", uid=uid)
        server = TransferServer(name, endpoint, lambda hello: copies.admit(host, hello), limit=limit)
        server.start()
        self.servers[name] = server
        return server

    def set_epoch(self, epoch: int | bytes, move: str = MOVE) -> None:
        data = epoch if isinstance(epoch, bytes) else str(epoch).encode()
        if not self.coordination.put(epoch_path(move), data):
            self.coordination.create(epoch_path(move), data)

    def make_server(self, *, root_mib: int = 5, swap: bool = True, ephemeral: bool = False) -> None:
        """The server on alpha: defined and off, its root disk sparse with 5 extents of bytes."""
        host = self.hosts["alpha"]
        host.directories.create(SERVER)
        disks = [host.directories.path(SERVER, "disk")]
        make_disk(disks[0], root_mib * MIB)
        for wanted, name, size in ((ephemeral, "disk.eph0", 9), (swap, "disk.swap", 1)):
            if wanted:
                disks.append(host.directories.path(SERVER, name))
                make_disk(disks[-1], size * MIB)
        host.directories.write_formats(SERVER, SERVER, {path.name: "raw" for path in disks})
        hypervisor = host.hypervisor
        text = hypervisor.create_definition(
            server=SERVER, name="web", vcpus=1, memory_mb=64, disks=disks, boot_volume=False
        )
        volume = Volume(
            volume="vol1", device=VOLUME.device, boot=False, connection=self.references.connection_info("att1")
        )
        port = Port(port=PORT.port, mac=PORT.mac)
        hypervisor.connect_volume(SERVER, volume)
        hypervisor.plug(SERVER, port)
        hypervisor.define(
            SERVER, text, vcpus=None, memory_mb=None, disks=disks, volumes=[volume], ports=[port], mark=None
        )

    def definition(self, host: str = "alpha") -> str:
        guest = self.hosts[host].hypervisor.guest(SERVER)
        assert guest is not None
        return guest.definition

    def command(
        self,
        host: str,
        action: str,
        details: msgspec.Struct | None = None,
        *,
        direction: Direction = "execute",
        step: str | None = None,
        epoch: int = 1,
        move: str = MOVE,
        attempt: int | None = None,
    ) -> commands.Command:
        number = attempt if attempt is not None else next(self.numbers)
        return commands.Command(
            key=f"{FLOW}.{step or action}.{direction}.{number}",
            host=host,
            move=move,
            server=SERVER,
            epoch=epoch,
            step=step or action,
            action=action,
            direction=direction,
            details=msgspec.to_builtins(details if details is not None else commands.NoDetails()),
            deadline=60.0,
        )

    def run(
        self,
        host: str,
        action: str,
        details: msgspec.Struct | None = None,
        *,
        probe: Probe | None = None,
        tell: Callable[[commands.Progress], None] = lambda progress: None,
        **facts: Any,
    ) -> dict[str, Any]:
        """Carry the action out as the daemon would, without one."""
        command = self.command(host, action, details, **facts)
        context = Context(self.hosts[host], command, probe=probe, report=tell)
        with self.asked(command):
            return dispatch.run(context, codec.details_of(command))

    @contextlib.contextmanager
    def asked(self, command: commands.Command) -> Iterator[None]:
        """While the block runs, the command is asked for."""
        path = command_path(command.host, command.key)
        self.coordination.create(path, codec.encode(command))
        try:
            yield
        finally:
            self.coordination.delete(path)

    def worker(self, name: str, **parts: Any) -> Worker:
        """The daemon of a host, with a session of its own."""
        host = self.hosts[name]
        return Worker(
            name,
            host.hypervisor.root,
            host.hypervisor,
            self.references,
            zookeeper.connect_embedded(self.store),
            endpoint=self.endpoints[name],
            identity=host.identity,
            **parts,
        )

    def snapshot(self) -> dict[str, Any]:
        """All that the hosts hold but the storage probe and their directories' ids.

        Files by content, guests, connections, offers.
        """
        found: dict[str, Any] = {}
        for name, host in self.hosts.items():
            hypervisor = host.hypervisor
            for path in sorted(hypervisor.instances.rglob("*")):
                if path.name in (PROBE, stores.STORE):
                    continue
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
                if path.name == "droveway.json":  # how much the last run sent depends on where it was killed
                    content = re.sub(rb'"sent":\d+', b"", path.read_bytes()).decode()
                found[f"{name}:{path.relative_to(hypervisor.instances)}"] = content
            found[f"{name}: guests"] = [(g.definition, g.running, g.starts > 0) for g in hypervisor.guests()]
            found[f"{name}: connected"] = [*hypervisor.connections(), *hypervisor.plugged()]
            found[f"{name}: offer"] = host.journal.offer(SERVER)
        return found


def make_disk(path: Path, size: int) -> None:
    """A sparse file with reproducible bytes: 64 KiB at the start, then 200 KiB every 3 MiB, and its last bytes."""
    noise = hashlib.shake_256(path.name.encode()).digest(256 * 1024)
    with path.open("wb") as file:
        file.truncate(size)
        # The first block is the sandbox guest's own.
        file.seek(64 * 1024)
        file.write(noise[: 64 * 1024])
        for start in range(3 * MIB, size, 3 * MIB):
            file.seek(start)
            file.write(noise[: 200 * 1024])
        file.seek(size - 100)
        file.write(noise[:100])
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def cloud(folder: Path, *, shared: bool = False, tls: bool = False) -> Iterator[Cloud]:
    """A cloud that is taken down at the end, its guests too."""
    made = Cloud(folder, shared=shared, tls=tls)
    try:
        yield made
    finally:
        made.close()


def effects_of(run: Callable[[Probe], object]) -> int:
    """How many effects the action has."""
    probe = KillAt()
    run(probe)
    return len(probe.names)
