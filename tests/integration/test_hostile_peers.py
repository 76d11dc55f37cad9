"""Hostile peers at the disk transfer of a running worker, while a resize copies from it: they get and change nothing.

Everything is as in production: daemons, mutual TLS, and a copy whose bytes are compared at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import sqlalchemy as sa
from support import checksums
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, differences, history, in_child, picture, read_move, until
from support.labs.snapshot import Snapshot
from support.servers import zookeeper_server
from support.servers.certificates import Authority, Files

from droveway import certificates
from droveway.clients.zookeeper import epoch_in, epoch_path, worker_path
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DrovewayError, StepError
from droveway.lab import build, cloud
from droveway.persistence.journal.states import State
from droveway.persistence.nova.cell import Instance
from droveway.wire import codec, commands
from droveway.workers.directories import BASES, MANIFEST, BaseFile, Manifest, SetAsideDisk
from droveway.workers.transfer import endpoints, frames
from droveway.workers.transfer.client import RemoteSource
from droveway.workers.transfer.server import MOST_CONNECTIONS
from droveway.workers.transfer.sources import base_name

SOURCE: Final = "host1"
DESTINATION: Final = "host2"
ANOTHER: Final = "host3"
"""Its certificate is as good as theirs."""

AGAIN: Final = 5
"""So often each of them tries."""

_HOST: Final = "{{vcpus: {0}, memory_mb: {0}000, disk_gb: {0}0}}"
CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{{SOURCE}: {_HOST.format(8)}, {DESTINATION}: {_HOST.format(99)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 2}}
images: {{base: {{size_mb: 512}}, tiny: {{size_mb: 1}}}}
servers:
  web: {{flavor: small, host: {SOURCE}, image: base, ports: [{{}}], state: stopped}}
  old: {{flavor: small, host: {SOURCE}, image: tiny, ports: [{{}}], state: stopped}}
"""
"""A sixteenth of an image is data."""

LIMITED: Final = {"OS_WORKER__TRANSFER_LIMIT_EACH": "2"}
"""MiB a second: the copy takes a quarter of a minute."""


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    folder = tmp_path_factory.mktemp("daemons")
    in_child(lambda: build.create(folder / "lab", cloud.parse_cloud(CLOUD, "hostile")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


class Besieged:
    """A resize that copies from the source's worker, and what strangers know of it."""

    def __init__(self, site: Installation, authority: Authority) -> None:
        self.site = site
        self.authority = authority
        self.workers: dict[str, Daemon] = {}
        self.conductor = site.conductor()
        for host in (SOURCE, DESTINATION):
            self.workers[host] = site.worker(host, **LIMITED)
        found = site.session.get(worker_path(SOURCE))
        assert found is not None
        self.address = codec.decode(found[0], commands.Registration).address
        self.where = endpoints.split(self.address.removeprefix("tcp:"))
        self.secret = site.lab.layout.host(SOURCE) / "secret"
        self.secret.write_bytes(b"nobody may read this" * 4096)
        site.lab.layout.guests_log.touch()  # no guest ever ran here, and a picture has all of them

    def offer(self, name: str) -> frames.Hello:
        """Resize the server; how its disks are asked for once they are offered."""
        filed = submit(self.site.lab, MoveSpec(server=name, flavor="large"))
        move, server = filed.id, filed.server
        self.site.await_step(move, "copy_disks")
        found = self.site.session.get(epoch_path(move))
        assert found is not None
        epoch = epoch_in(found[0])
        assert epoch is not None
        return frames.Hello(peer=DESTINATION, server=server, move=move, epoch=epoch)

    def await_copy(self, hello: frames.Hello, mib: int) -> None:
        """Wait until so much of the disk is at the destination."""
        until(lambda: (read_move(self.site.lab, hello.move).progress_done or 0) >= mib << 20, "the copy", LONG)

    def copies(self, hello: frames.Hello) -> bool:
        """Whether the copy is still under way."""
        return read_move(self.site.lab, hello.move).step == "copy_disks"

    def issued(self, name: str) -> certificates.Identity:
        """Another certificate of that name: the workers' own files stay as they are."""
        folder = self.site.folder / "stolen"
        folder.mkdir(exist_ok=True)
        kept = self.authority._folder
        self.authority._folder = folder
        try:
            return identity(self.authority.issue(name))
        finally:
            self.authority._folder = kept

    def asked(self, who: certificates.Identity, hello: frames.Hello) -> RemoteSource:
        """The source as a peer with this certificate reaches it."""
        return RemoteSource(SOURCE, self.address, hello, pause=lambda _: None, patience=0.0, identity=who)

    def refused(self, who: certificates.Identity, hello: frames.Hello) -> str:
        """The code with which the hello is answered, again and again."""
        codes = set()
        for _ in range(AGAIN):
            with contextlib.closing(self.asked(who, hello)) as peer, pytest.raises(DrovewayError) as no:
                peer.offered()
            codes.add(no.value.error_code if isinstance(no.value, StepError) else no.value.code)
        [code] = codes
        return str(code)

    def complaints(self) -> list[str]:
        """What the source's worker said of those that it turned away."""
        lines = self.workers[SOURCE].log.read_text().splitlines()
        return [line for line in lines if f"Turned away at the disk transfer of {SOURCE}" in line]

    def await_complaint(self, words: str) -> None:
        """Wait for the one line that says it."""
        until(lambda: [line for line in self.complaints() if words in line], words, LONG)
        assert len([line for line in self.complaints() if words in line]) == 1, self.complaints()

    @contextlib.contextmanager
    def unharmed(self, hello: frames.Hello) -> Iterator[None]:
        """Nothing changes meanwhile, but for the copy, which goes on; all processes live and none has a traceback."""
        before, processes = self._picture(), {name: daemon.process.pid for name, daemon in self.workers.items()}
        done = read_move(self.site.lab, hello.move).progress_done or 0
        yield
        assert self.copies(hello), "it ended too early to be disturbed"
        assert differences(before, self._picture()) == []
        assert {name: daemon.process.pid for name, daemon in self.workers.items()} == processes
        for daemon in (*self.workers.values(), self.conductor):
            assert daemon.process.poll() is None
            assert "Traceback" not in daemon.log.read_text()
        self.await_copy(hello, (done >> 20) + 1)

    def _picture(self) -> dict[str, object]:
        """All files of the hosts, but for what the copy itself writes."""
        ours = {host: f"hosts/{host}/" for host in self.workers}
        return {
            key: seen
            for key, seen in picture(self.site.lab.layout).items()
            if key.startswith(tuple(ours.values()))
            and ".part-" not in key
            and not key.startswith(f"{ours[DESTINATION]}worker.sqlite")
        }

    def verify(self, hello: frames.Hello) -> None:
        """The move ends, and what it copied is what was set aside, byte for byte."""
        assert self.site.await_rest_of(hello.move) == State.VERIFYING, self.conductor.text()
        [row] = [row for row in history(self.site.lab, hello.move) if row.step == "copy_disks" and row.result]
        assert row.result is not None
        [disk] = row.result["disks"]
        assert disk["checksum"] == checksums.recorded(self.aside(hello) / "disk")
        assert 0 < disk["sent"] <= disk["allocated"]
        kept = self.aside(hello) / "disk"
        copy = self.site.lab.layout.host(DESTINATION) / "instances" / hello.server / "disk"
        with kept.open("rb") as one, copy.open("rb") as other:
            while block := one.read(4 << 20):
                assert other.read(len(block)) == block
        assert_balanced(self.site.lab)

    def aside(self, hello: frames.Hello) -> Path:
        """Where the source has set the disks aside."""
        return self.site.lab.layout.host(SOURCE) / "instances" / f"{hello.server}_resize"


@pytest.fixture(name="besieged")
def fixture_besieged(
    rest: Snapshot, protected_zookeeper: zookeeper_server.Server, authority: Authority, tmp_path: Path
) -> Iterator[Besieged]:
    lab = rest.restore()
    with installation(lab, tmp_path, protected_zookeeper.hosts, None, authority) as site:
        yield Besieged(site, authority)
    lab.close()


def identity(files: Files) -> certificates.Identity:
    return certificates.read(files.certificate, files.key, files.authority)


def test_who_does_not_prove_to_be_the_destination_gets_nothing(besieged: Besieged, tmp_path: Path) -> None:
    """Another host's certificate, another authority's, none, and no TLS at all."""
    another = besieged.issued(ANOTHER)
    strange = Authority(tmp_path / "strange", "strange").issue(DESTINATION)
    stranger = identity(Files(strange.certificate, strange.key, besieged.authority.path))
    hello = besieged.offer("web")
    besieged.await_copy(hello, 1)
    with besieged.unharmed(hello):
        assert besieged.refused(another, hello) == "certificate"
        assert besieged.refused(another, msgspec.structs.replace(hello, peer=ANOTHER)) == "not-offered"
        assert besieged.refused(stranger, hello) == "source-unreachable"
        for _ in range(AGAIN):
            _without_certificate(besieged)
            _without_tls(besieged)
        for words in (
            f"{hello.server} says it is {DESTINATION} and does not prove it",
            f"127.0.0.1 ({ANOTHER}, localhost): host {SOURCE} offers no disks of server {hello.server} to {ANOTHER}",
            "127.0.0.1, which does not prove who it is: CERTIFICATE_VERIFY_FAILED",
            "127.0.0.1, which does not prove who it is: PEER_DID_NOT_RETURN_A_CERTIFICATE",
            "127.0.0.1, which does not prove who it is: HTTP_REQUEST",
        ):
            besieged.await_complaint(words)
        assert len(besieged.complaints()) == 5, besieged.complaints()
    besieged.verify(hello)


def _without_certificate(besieged: Besieged) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(besieged.where, timeout=LONG) as stream,
        contextlib.closing(context.wrap_socket(stream)) as wrapped,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        frames.FrameSocket(wrapped).receive()


def _without_tls(besieged: Besieged) -> None:
    with socket.create_connection(besieged.where, timeout=LONG) as plain:
        assert _hung_up(plain, b"GET / HTTP/1.1\r\n\r\n")


def _hung_up(stream: socket.socket, noise: bytes) -> bool:
    """Whether the other side answers the noise with no frame, and ends it, be it before it has all of it."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        stream.sendall(noise)
        while data := stream.recv(4096):
            assert b"type" not in data
    return True


def test_the_destination_gets_nothing_but_the_disks_that_were_offered_to_it(besieged: Besieged) -> None:
    """Who has stolen its certificate asks for other servers, at other times, and for other files."""
    thief = besieged.issued(DESTINATION)
    over = besieged.offer("old")
    assert besieged.site.await_rest_of(over.move) == State.VERIFYING
    assert besieged.refused(thief, over) == "not-offered"
    move_requests.file_request(besieged.site.lab, over.move, move_requests.revert)
    until(lambda: read_move(besieged.site.lab, over.move).state == State.REVERTED, "the end of the offer", LONG)
    _look_like_an_overlay(besieged)
    hello = besieged.offer("web")
    besieged.await_copy(hello, 1)
    with besieged.unharmed(hello):
        assert besieged.refused(thief, over) == "not-offered"
        for facts, code in (
            ({"server": over.server}, "not-offered"),
            ({"move": over.move}, "not-offered"),
            ({"epoch": hello.epoch - 1}, "not-offered"),
            ({"epoch": hello.epoch + 1}, "fenced"),
            ({"epoch": 1 << 70}, "fenced"),
            ({"server": "../" + hello.server}, "not-offered"),
            ({"move": "/", "server": "\0'; DROP TABLE offers; --"}, "not-offered"),
        ):
            assert besieged.refused(thief, msgspec.structs.replace(hello, **facts)) == code
        for name in (
            *("../secret", "../../secret", str(besieged.secret), f"../{hello.server}/disk", "droveway-manifest.json"),
            *(f"../{over.server}/disk", "", ".", "disk/", "disk\0", base_name("0" * 64)),
        ):
            _assert_unserved(besieged.asked(thief, hello), name, "missing")
        lines = besieged.complaints()
        assert len(lines) == len({line.partition(SOURCE)[2] for line in lines}) == 3, lines
    besieged.verify(hello)
    move_requests.file_request(besieged.site.lab, hello.move, move_requests.confirm)
    assert besieged.site.await_rest(hello.move) == State.DONE
    assert besieged.refused(thief, hello) == "not-offered"


def _assert_unserved(source: RemoteSource, name: str, code: str) -> None:
    """Neither where its data lies nor any of it is told."""
    memory = memoryview(bytearray(1 << 20))
    for ask in (lambda: source.disk_map(name), lambda: source.read(name, 0, 4096, memory)):
        with contextlib.closing(source), pytest.raises(StepError) as no:
            ask()
        assert no.value.error_code == code, no.value
    assert not any(memory)


def _look_like_an_overlay(besieged: Besieged) -> None:
    """What a guest can write at the start of its own raw disk: that it rests on a file of the host."""
    header = besieged.site.folder / "header"
    made = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", besieged.secret, header, "1M"]
    subprocess.run(made, check=True)
    with besieged.site.lab.cell_databases["cell1"].read() as session:
        server = session.scalars(sa.select(Instance.uuid).where(Instance.display_name == "web")).one()
    with (besieged.site.lab.layout.host(SOURCE) / "instances" / server / "disk").open("r+b") as disk:
        disk.write(header.read_bytes()[: 64 << 10])


def test_what_was_made_to_lead_elsewhere_is_not_followed(besieged: Besieged) -> None:
    """A link as a disk or a base, and a manifest whose files lie outside, all put there by whoever has that host."""
    thief = besieged.issued(DESTINATION)
    hello = besieged.offer("web")
    besieged.await_copy(hello, 1)
    folder = besieged.aside(hello)
    record, bases = folder / MANIFEST, folder.parent / BASES
    bases.mkdir(exist_ok=True)
    facts: Any = {"format": "raw", "size": besieged.secret.stat().st_size, "mtime_ns": 1, "inode": 1}
    with besieged.unharmed(hello), _as_it_was(record, folder, bases):
        kept = record.read_bytes()
        manifest = msgspec.json.decode(kept, type=Manifest)
        for linked in (bases / "linked", folder / "disk.eph0"):
            linked.symlink_to(besieged.secret)
        for file in ("../../secret", str(besieged.secret), "linked", ".."):
            base = BaseFile(file=file, digest="0" * 64, **facts)
            disk = SetAsideDisk(name="disk.eph0" if file == "linked" else file, allocated=1, **facts)
            record.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, disks=[disk], bases=[base])))
            for name in (base_name(base.digest), disk.name):
                _assert_unserved(besieged.asked(thief, hello), name, "link")
        record.write_bytes(kept)
        for linked in (bases / "linked", folder / "disk.eph0"):
            linked.unlink()
    besieged.verify(hello)


@contextlib.contextmanager
def _as_it_was(*paths: Path) -> Iterator[None]:
    """Put back the times of what the test itself changes."""
    before = {path: path.stat() for path in paths}
    yield
    for path, status in before.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_frames_that_are_none_end_that_connection_alone(besieged: Besieged) -> None:
    """Too long, torn, of another kind, or of numbers beyond all sense: before the hello and after it."""
    thief = besieged.issued(DESTINATION)
    hello = besieged.offer("web")
    besieged.await_copy(hello, 1)
    lengths = struct.Struct("!II")
    noise = (
        lengths.pack(frames.LONGEST_QUESTION + 1, 0),
        lengths.pack(frames.LONGEST_QUESTION + 1, 0) + b"{" * (frames.LONGEST_QUESTION + 1),
        lengths.pack((1 << 32) - 1, (1 << 32) - 1),
        lengths.pack(2, 1 << 20) + b"{}",
        lengths.pack(2, 0) + b"{}",
        lengths.pack(0, 0),
        lengths.pack(32768, 0) + b"[" * 32768,
        lengths.pack(9, 0) + b'{"type":"',
        b"\xff" * 8,
        b"\0" * 4096,
    )
    with besieged.unharmed(hello):
        for welcome in (False, True):
            for each in noise:
                with _connected(besieged, thief, hello, welcome=welcome) as peer:
                    assert _hung_up(peer.stream, each)
        for strange in (frames.Welcome(disks=[]), frames.MapRequest(disk="disk"), frames.LaterFrame(seconds=1)):
            with _connected(besieged, thief, hello, welcome=False) as peer:
                assert _answer_to(peer, strange) == "protocol"
        for offset, length in ((1 << 63, 1), (1 << 70, 1), (-1, 1), (0, 0), (0, 1 << 31), (0, 1 << 70)):
            with _connected(besieged, thief, hello, welcome=True) as peer:
                assert _answer_to(peer, frames.ChunkRequest(disk="disk", offset=offset, length=length)) == "protocol"
        besieged.await_complaint("bytes is too long")
        besieged.await_complaint("a transfer begins with a hello")
        assert len(besieged.complaints()) == 2, besieged.complaints()
    besieged.verify(hello)


@contextlib.contextmanager
def _connected(
    besieged: Besieged, who: certificates.Identity, hello: frames.Hello, *, welcome: bool
) -> Iterator[frames.FrameSocket]:
    with contextlib.closing(frames.FrameSocket(endpoints.connect(besieged.address, SOURCE, who))) as peer:
        if welcome:
            peer.send(hello)
            assert isinstance(peer.receive()[0], frames.Welcome)
        yield peer


def _answer_to(peer: frames.FrameSocket, question: frames.Frame) -> str:
    peer.send(question)
    answer, _ = peer.receive()
    assert isinstance(answer, frames.Refusal)
    return answer.error["code"]


def test_many_who_ask_for_nothing_keep_nobody_out(besieged: Besieged) -> None:
    """As many as are served at once and more, anew as fast as they are hung up on, before a copy begins and on."""
    with _besieging(besieged, MOST_CONNECTIONS + 64) as besiegers:
        hello = besieged.offer("web")
        besieged.await_copy(hello, 1)
        with besieged.unharmed(hello):
            came = besiegers()
            until(lambda: besiegers() > came + AGAIN, "that some of them came again", LONG)
        besieged.workers[DESTINATION].kill()
        besieged.workers[DESTINATION] = besieged.site.worker(DESTINATION, **LIMITED)
        done = read_move(besieged.site.lab, hello.move).progress_done or 0
        besieged.await_copy(hello, (done >> 20) + 1)
        assert besieged.copies(hello)
        besieged.await_complaint(f"which had asked for nothing while there were {MOST_CONNECTIONS} peers")
        besieged.verify(hello)
    assert len(besieged.complaints()) <= 4, besieged.complaints()


@contextlib.contextmanager
def _besieging(besieged: Besieged, many: int) -> Iterator[Callable[[], int]]:
    """So many peers that say nothing; yields how many there were so far."""
    over, came = threading.Event(), itertools.count()
    seen = [0]

    def besiege() -> None:
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:

            def come() -> None:
                stream = stack.enter_context(socket.create_connection(besieged.where, timeout=LONG))
                waiting.register(stream, selectors.EVENT_READ)
                seen[0] = next(came)

            for _ in range(many):
                come()
            while not over.is_set():
                for key, _ in waiting.select(0.1):
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    come()

    thread = threading.Thread(target=besiege)
    thread.start()
    try:
        until(lambda: seen[0] >= MOST_CONNECTIONS, "the besiegers", LONG)
        yield lambda: seen[0]
    finally:
        over.set()
        thread.join()
