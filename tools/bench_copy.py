"""`tools/bench copy`: a sparse disk from worker to worker, beside rsync and beside the least that it could take.

All three copy the same bytes between two processes on the same file system, the source out of the page cache before
each copy and the copy synced to the medium at its end.  Droveway's workers moreover read the copy back from the medium
and hold it against what was sent, which rsync does not; the least is measured with that and without.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import multiprocessing
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import bench_figures as figures

from droveway.certificates import Identity
from droveway.wire import commands
from droveway.workers.context import Context, Host
from droveway.workers.directories import Directories, Manifest, SetAsideDisk
from droveway.workers.transfer import endpoints, extents, frames
from droveway.workers.transfer.client import RemoteSource
from droveway.workers.transfer.copying import Tally, copy_disk, readers
from droveway.workers.transfer.endpoints import Endpoint, TlsEndpoint, UnixEndpoint
from droveway.workers.transfer.server import TransferServer
from droveway.workers.transfer.sources import LocalSource

MIB: Final = 1 << 20
ROUNDS: Final = 5
DATA_MB: Final = 256
SIZE_MB: Final = 1024
SERVER: Final = "bench"
SOURCE: Final = "localhost"
"""The name of the source host, which its certificate has."""

NAME: Final = f"{SERVER}_resize"
OF_FLOOR: Final = 0.9
SEND: Final = b"s"
_CHUNK: Final = struct.Struct("!QI32s")

Copy = Callable[[], None]


def main() -> int:
    """Measure the three in turns."""
    parser = argparse.ArgumentParser(prog="tools/bench copy", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder, contextlib.ExitStack() as stack:
        site = Site(Path(folder))
        copies = {name: stack.enter_context(make(site)) for name, make in CONTENDERS.items()}
        best = dict.fromkeys(copies, float("inf"))
        for _ in range(wanted.rounds):
            for name, copy in copies.items():
                best[name] = min(best[name], site.seconds(copy))
    return figures.report(copy_bench(best), write=wanted.write)


class Site:
    """A disk, and where copies of it go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.target = folder / "target"
        (self.source / NAME).mkdir(parents=True)
        self.disk = self.source / NAME / "disk"
        make_disk(self.disk)
        self.copy = self.target / "disk"

    def seconds(self, copy: Copy) -> float:
        """Return the seconds of the copy; raises RuntimeError when it differs from the disk."""
        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()
        with self.disk.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.sync()
        began = time.perf_counter()
        copy()
        took = time.perf_counter() - began
        subprocess.run(["cmp", self.disk, self.copy], check=True)
        if self.copy.stat().st_blocks * 512 > self.disk.stat().st_blocks * 512 * 1.1:
            raise RuntimeError("the copy is not sparse")
        return took


def make_disk(path: Path) -> None:
    """Write a sparse file: runs of 64 KiB to 8 MiB of data that cannot be compressed, the same each time."""
    chance = random.Random(1)  # noqa: S311 - data, not a secret
    with path.open("wb") as file:
        file.truncate(SIZE_MB * MIB)
        left, offset = DATA_MB * MIB, 0
        while left:
            run = min(left, chance.randrange(16, 2048) * 4096)
            file.seek(offset)
            file.write(chance.randbytes(run))
            left -= run
            offset += run + int(run * (SIZE_MB - DATA_MB) / DATA_MB * chance.uniform(0.5, 1.0)) // 4096 * 4096
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def serving(target: Callable[..., None], *facts: Any) -> Iterator[None]:
    """Run ``target`` in a process of its own within the block."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=facts, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def droveway(site: Site, identity: Identity | None = None) -> Iterator[Copy]:
    """Copy by the workers' own code at both ends; through TLS when there is an identity."""
    endpoint: Endpoint = UnixEndpoint(f"{site.folder}/socket")
    if identity is not None:
        where = f"127.0.0.1:{free_port()}"
        endpoint = TlsEndpoint(SOURCE, where, identity, advertised=where)
    status = site.disk.stat()
    disk = SetAsideDisk(
        name="disk",
        format="raw",
        size=status.st_size,
        allocated=DATA_MB * MIB,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
    )
    nothing: dict[str, Any] = dict.fromkeys(("hypervisor", "directories", "references", "journal", "permissions"))
    coordination: Any = SimpleNamespace(session=None)
    host = Host(name="target", transfer_address="", coordination=coordination, **nothing)
    command = commands.Command(
        key="flow.copy_disks.execute.1",
        host="target",
        move="move",
        server=SERVER,
        epoch=1,
        step="copy_disks",
        action="copy_disks",
        direction="execute",
        details={},
        deadline=600,
    )

    def copy() -> None:
        context = Context(host, command)
        hello = frames.Hello(peer=SOURCE, server=SERVER, move="move", epoch=1)
        directory = os.open(site.target, os.O_RDONLY)
        try:
            with readers(
                lambda: RemoteSource(SOURCE, endpoint.address, hello, pause=time.sleep, identity=identity)
            ) as sources:
                copy_disk(context, sources, directory, disk, Tally(context))
            os.fsync(directory)
        finally:
            os.close(directory)

    with serving(serve_disks, site.source, endpoint, disk):
        until(lambda: is_served(endpoint.address, identity))
        yield copy


def is_served(address: str, identity: Identity | None) -> bool:
    """Say whether the other process listens."""
    try:
        endpoints.connect(address, SOURCE, identity).close()
    except OSError:
        return False
    return True


def serve_disks(folder: Path, endpoint: Endpoint, disk: SetAsideDisk) -> None:
    """Serve disks as the source's worker does."""
    manifest = Manifest(move="move", epoch=1, server=SERVER, disks=[disk])

    def admit(_: frames.Hello) -> LocalSource:
        return LocalSource(SOURCE, Directories(folder), NAME, manifest)

    server = TransferServer(SOURCE, endpoint, admit)
    server.start()
    while True:
        time.sleep(3600)


@contextlib.contextmanager
def rsync(site: Site) -> Iterator[Copy]:
    """Copy by rsync to its daemon over loopback, sparse, synced at the end."""
    port = free_port()
    settings = site.folder / "rsyncd.conf"
    settings.write_text(
        f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n[target]\npath = {site.target}\nread only = no\n"
    )
    words = ["rsync", "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={settings}"]
    daemon = subprocess.Popen(words)

    def copy() -> None:
        words = ["rsync", "--sparse", "--whole-file", "--fsync", site.disk, f"rsync://127.0.0.1:{port}/target/"]
        subprocess.run(words, check=True)

    try:
        until(lambda: answers(port))
        yield copy
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def floor(site: Site, identity: Identity | None = None, *, read_back: bool = False) -> Iterator[Copy]:
    """Copy by a plain loop: read, hash, send; receive, hash, write; sync.

    With ``read_back`` the copy is read and hashed at the end. With an identity it goes through TLS.
    """
    port = free_port()

    def copy() -> None:
        with reach(port, identity) as stream, site.copy.open("wb") as file:
            stream.sendall(SEND)
            file.truncate(site.disk.stat().st_size)
            sent = []
            buffer = memoryview(bytearray(extents.CHUNK))
            head = memoryview(bytearray(_CHUNK.size))
            while receive(stream, head):
                offset, length, digest = _CHUNK.unpack(head)
                receive(stream, buffer[:length])
                if hashlib.sha256(buffer[:length]).digest() != digest:
                    raise RuntimeError("the floor is broken")
                os.pwrite(file.fileno(), buffer[:length], offset)
                sent.append((offset, length, digest))
            os.fsync(file.fileno())
        directory = os.open(site.target, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        if read_back:
            with site.copy.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for offset, length, digest in sent:
                    if hashlib.sha256(os.pread(file.fileno(), length, offset)).digest() != digest:
                        raise RuntimeError("the floor is broken")

    with serving(serve_plainly, site.disk, port, identity):
        until(lambda: answers(port))
        yield copy


def reach(port: int, identity: Identity | None) -> socket.socket:
    """Connect to the port on loopback."""
    stream = socket.create_connection(("127.0.0.1", port))
    return stream if identity is None else identity.client_context().wrap_socket(stream, server_hostname=SOURCE)


def serve_plainly(disk: Path, port: int, identity: Identity | None) -> None:
    """Send the disk to each client."""
    with socket.create_server(("127.0.0.1", port)) as listener, disk.open("rb") as file:
        while True:
            plain, _ = listener.accept()
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                stream: socket.socket = stack.enter_context(plain)
                if identity is not None:
                    context = identity.server_context()
                    stream = stack.enter_context(context.wrap_socket(plain, server_side=True))
                if stream.recv(1) != SEND:
                    continue  # a client that only tests whether the port answers
                for offset, length in extents.chunks(extents.data_extents(file.fileno(), disk.stat().st_size)):
                    data = os.pread(file.fileno(), length, offset)
                    stream.sendall(_CHUNK.pack(offset, length, hashlib.sha256(data).digest()))
                    stream.sendall(data)


def receive(stream: socket.socket, view: memoryview) -> bool:
    """Fill the view; False when the other side has ended."""
    got = 0
    while got < len(view):
        count = stream.recv_into(view[got:])
        if not count:
            return False
        got += count
    return True


def free_port() -> int:
    """Return a port on loopback on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    """Say whether somebody listens on the port."""
    with socket.socket() as stream:
        return stream.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition; raises TimeoutError."""
    ends = time.monotonic() + 20
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the other process did not come up")
        time.sleep(0.01)


def copy_bench(best: dict[str, float]) -> figures.Bench:
    """Return the figures and the goals."""
    rate = {name: DATA_MB / seconds for name, seconds in best.items()}
    rows = [
        [TITLES[name], f"{best[name]:.2f}", f"{rate[name]:.0f}", f"{rate[name] / rate['floor']:.2f}"] for name in best
    ]
    return figures.Bench(
        name="copy",
        title="Copy of a disk",
        text=(
            f"A disk of {SIZE_MB} MiB with {DATA_MB} MiB of data in it, from process to process on one file system, "
            "the source out of the page cache, the copy synced to the medium. Droveway's time ends when the copy was "
            "read back from the medium, each chunk of it has the checksum that the source sent with it, and the source "
            "is seen not to have changed, which the others do not do. Rsync runs against its daemon with ``--sparse "
            "--whole-file --fsync``; the floor is a loop that reads, hashes, sends, receives, hashes and writes, in "
            "its last row with the copy read back and hashed again."
        ),
        head=["copy", "seconds", "MiB/s", "times the floor"],
        rows=rows,
        goals=[
            figures.at_least("Droveway, times rsync", rate["droveway"] / rate["rsync"], 1.0),
            figures.at_least("Droveway, times the floor", rate["droveway"] / rate["floor"], OF_FLOOR),
        ],
        bars=[(TITLES[name], rate[name]) for name in best],
        unit="MiB of data a second",
    )


CONTENDERS: Final = {
    "droveway": droveway,
    "rsync": rsync,
    "floor": floor,
    "read-back": functools.partial(floor, read_back=True),
}
TITLES: Final = {
    "droveway": "Droveway",
    "rsync": "rsync",
    "floor": "floor",
    "read-back": "floor, the copy read back",
}

if __name__ == "__main__":
    sys.exit(main())
