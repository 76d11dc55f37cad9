"""Disk data on its way: only what is allocated, proved by what its medium holds, resumed where a kill left it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import checksums
from support.rigs import copying_worker
from support.rigs.transfer_site import ASIDE, PART, Site, at, chunks_of, flip, set_aside
from support.rigs.worker_rig import MIB, MOVE, OTHER_MOVE, SERVER, Killed, cloud, make_disk

from droveway.clients.zookeeper import command_path, result_path
from droveway.errors import Cancelled, DestinationFault, Fenced, StepError
from droveway.wire import codec, commands
from droveway.workers.actions import dispatch
from droveway.workers.context import Context
from droveway.workers.daemon import JOURNAL, Worker
from droveway.workers.directories import BaseFile, Directories, SetAsideDisk
from droveway.workers.journal import WorkerJournal
from droveway.workers.transfer import copying, endpoints, extents, frames
from droveway.workers.transfer.chunk_log import ChunkLog
from droveway.workers.transfer.client import RemoteSource
from droveway.workers.transfer.sources import Identity, LocalSource


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with set_aside(tmp_path, monkeypatch, root_mib=20, ephemeral=True) as site:
        yield site


@pytest.fixture
def single(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with one disk, whose effects come one after the other."""
    with set_aside(tmp_path, monkeypatch, root_mib=8, swap=False) as site:
        yield site


def data_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(length for _, length in extents.data_extents(file.fileno(), path.stat().st_size))


def test_exactly_the_allocated_extents_cross_the_wire(site: Site) -> None:
    """R0-04, R0-05: between separate directories that much and no more, proved by its checksum."""
    value = site.copy()
    assert [disk["name"] for disk in value["disks"]] == ["disk", "disk.eph0"]
    for disk in value["disks"]:
        assert disk["sent"] == disk["allocated"] == data_of(site.source_disk(disk["name"]))
        assert disk["checksum"] == checksums.recorded(site.source_disk(disk["name"]))
        assert site.same_bytes(disk["name"])
    assert sum(length for _, _, length in site.served) == value["bytes"] < 3 * MIB
    assert not site.cloud.hosts["beta"].directories.path(SERVER, "disk.swap").exists()
    copy = site.cloud.hosts["beta"].directories.path(SERVER, "disk")
    assert copy.stat().st_blocks * 512 < 4 * MIB


def test_chunks_are_on_their_way_while_the_one_before_is_written(single: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader has another in its memory by then, and none is another's."""
    read, write, came = RemoteSource.read, extents.Direct.write, threading.Semaphore(0)
    (first, _), *_ = chunks_of(single.source_disk())

    def reading(source: RemoteSource, *chunk: Any) -> tuple[memoryview, str]:
        found = read(source, *chunk)
        came.release()
        return found

    def writing(copy: extents.Direct, data: memoryview, offset: int) -> None:
        if offset == first:
            assert all(came.acquire(timeout=20) for _ in range(copying.READERS + 1))
        write(copy, data, offset)

    monkeypatch.setattr(RemoteSource, "read", reading)
    monkeypatch.setattr(extents.Direct, "write", writing)
    single.copy()
    assert len(single.served) == len(set(single.served)) > copying.READERS
    assert single.same_bytes()


def test_a_repeated_copy_sends_nothing_and_says_the_same(site: Site) -> None:
    value = site.copy()
    served = len(site.served)
    assert site.copy() == value
    assert len(site.served) == served


def test_a_disk_without_data_is_copied_as_its_size(site: Site) -> None:
    site.cloud.run("alpha", "set_aside", direction="revert")
    with site.cloud.hosts["alpha"].directories.path(SERVER, "disk").open("wb") as file:
        file.truncate(3 * MIB)
    site.set_aside()
    value = site.copy()
    assert (value["disks"][0]["size"], value["disks"][0]["sent"]) == (3 * MIB, 0)
    assert site.same_bytes()


def test_a_server_without_disks_gets_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cloud(tmp_path) as made:
        made.hosts["alpha"].directories.create(SERVER)
        site = Site(made, monkeypatch)
        site.set_aside()
        assert site.copy()["disks"] == []
        assert made.hosts["beta"].directories.marker(SERVER) is not None


@pytest.mark.parametrize(
    "spoil",
    [lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: bytes(data[:-1]) + bytes([data[-1] ^ 128])],
    ids=["first", "last"],
)
def test_a_byte_flipped_on_the_wire_fails_the_step(site: Site, spoil: Callable[[memoryview], bytes]) -> None:
    """What arrived is not hashed: the proof of what was written finds what the wire spoiled, and none of it is kept."""
    site.mangle = spoil
    with pytest.raises(DestinationFault, match="other data than alpha sent; look at its disks and at the network"):
        site.copy()
    assert not site.cloud.hosts["beta"].directories.exists(SERVER)
    site.mangle = bytes
    site.copy()
    assert site.same_bytes()


def test_a_chunk_that_arrives_short_fails_the_step(single: Site) -> None:
    single.mangle = lambda data: data[: len(data) - extents.BLOCK // 2]
    with pytest.raises(DestinationFault, match="other data than alpha sent") as caught:
        single.copy()
    assert (caught.value.error_code, caught.value.host) == ("checksum", "beta")


def test_a_chunk_that_is_longer_than_asked_for_is_not_taken(site: Site) -> None:
    site.mangle = lambda data: bytes(data) + b"x"
    with contextlib.closing(site.remote(patience=0.1)) as source, pytest.raises(StepError, match="is too long"):
        source.read("disk", 0, extents.BLOCK, extents.memory())


def write_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(70 * 1024)
        file.write(b"changed")


def flip_in(path: Path) -> None:
    flip(path, 70 * 1024)


@pytest.mark.parametrize("change", [write_to, flip_in], ids=["written to", "with its mtime set back"])
@pytest.mark.parametrize("effect", ["chunk", "verify"])
def test_a_source_changed_in_mid_copy_fails_the_step(single: Site, effect: str, change: Callable[[Path], None]) -> None:
    with pytest.raises(StepError, match="was changed on alpha after it was set aside") as caught:
        single.copy(probe=at(effect, lambda: change(single.source_disk())))
    assert (caught.value.error_code, caught.value.host) == ("source-changed", "alpha")
    assert not single.cloud.hosts["beta"].directories.exists(SERVER)


def test_other_rights_to_what_was_set_aside_do_not_change_it(single: Site) -> None:
    """They move the disk's ctime, which only a copy that has begun is held against."""
    single.source_disk().chmod(0o600)
    single.copy()
    assert single.same_bytes()


def test_a_source_cut_in_mid_copy_fails_the_step(single: Site) -> None:
    with pytest.raises(StepError) as caught:
        single.copy(probe=at("chunk", lambda: os.truncate(single.source_disk(), MIB), count=2))
    assert (caught.value.error_code, caught.value.host) == ("source-changed", "alpha")


def test_a_source_changed_after_it_was_set_aside_is_not_copied(site: Site) -> None:
    os.utime(site.source_disk(), ns=(1, 1))
    with pytest.raises(StepError, match="after it was set aside"):
        site.copy()
    assert site.served == [entry for entry in site.served if entry[0] != "disk"]


@pytest.mark.parametrize(("call", "served"), [("posix_fallocate", False), ("pwrite", True)])
def test_a_full_destination_is_its_fault(site: Site, monkeypatch: pytest.MonkeyPatch, call: str, served: bool) -> None:
    """It is found before anything is sent, where the file system sets blocks aside."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DestinationFault, match="on beta is full in copy_disks of server") as caught:
        site.copy()
    assert (caught.value.error_code, caught.value.host) == ("disk-full", "beta")
    assert bool(site.served) == served
    monkeypatch.undo()
    site.copy(direction="revert")
    assert not site.cloud.hosts["beta"].directories.exists(PART)


def test_what_was_journaled_is_not_sent_again_after_a_sigkill(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, a real SIGKILL when nine tenths were copied, the next worker going on from its journal."""
    monkeypatch.setattr(copying, "SYNC_BYTES", MIB // 2)
    root = site.cloud.hosts["beta"].hypervisor.root
    chunks = sum(len(list(chunks_of(site.source_disk(name)))) for name in ("disk", "disk.eph0"))
    command = site.cloud.command("beta", "copy_disks", site.details)
    spec = copying_worker.Spec(
        root=str(root),
        guests_log=str(site.cloud.log),
        command=command,
        sync_bytes=MIB // 2,
        kill_at_chunk=chunks * 9 // 10,
    )
    ended = subprocess.run(
        [sys.executable, copying_worker.__file__, msgspec.json.encode(spec).decode()], check=False, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    sent = set(site.served)
    journaled = {(name, offset, length) for name in ("disk", "disk.eph0") for offset, length in _journaled(site, name)}
    assert 0 < len(journaled) < chunks
    assert journaled <= sent
    site.served.clear()
    begun = WorkerJournal(root / JOURNAL, "beta")
    assert begun.begun() == [command.key]
    begun.close()
    worker = site.cloud.worker("beta")
    _carry_out(site, worker, command)
    assert set(site.served) & journaled == set()
    assert len(site.served) == chunks - len(journaled)
    assert site.same_bytes()
    assert site.same_bytes("disk.eph0")


def _journaled(site: Site, name: str) -> list[tuple[int, int]]:
    there: Any = site.cloud.hosts["alpha"].directories
    where = LocalSource("alpha", there, ASIDE, there.manifest(ASIDE))
    try:
        identity = where.disk_map(name).identity
        with site.cloud.hosts["beta"].directories.open(PART) as directory:
            log = ChunkLog(directory, name, identity)
            log.close()
    finally:
        where.close()
    return list(log.done)


def _carry_out(site: Site, worker: Worker, command: commands.Command) -> None:
    coordination = site.cloud.coordination
    coordination.create(command_path("beta", command.key), codec.encode(command))
    worker.start()
    try:
        for _ in range(2000):
            found = coordination.get(result_path("beta", command.key))
            if found is not None:
                assert codec.decode_result(found[0]).error is None
                return
            worker._thread.join(0.01)  # type: ignore[union-attr]
        raise AssertionError("no answer")
    finally:
        worker.stop()
        worker.coordination.close()


def test_a_copy_that_was_proved_is_not_made_again(site: Site) -> None:
    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        site.copy(probe=at("rename", kill))
    site.served.clear()
    site.copy()
    assert site.served == []
    assert site.same_bytes()


def test_a_source_that_was_touched_since_starts_over(site: Site) -> None:
    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        site.copy(probe=at("verify", kill, count=2))
    first = len(site.served)
    site.served.clear()
    site.cloud.run("alpha", "set_aside", direction="revert")
    os.utime(site.cloud.hosts["alpha"].directories.path(SERVER, "disk"), ns=(5, 5))
    site.set_aside()
    site.copy()
    again = [disk for disk, _, _ in site.served]
    assert again.count("disk") == len(list(chunks_of(site.source_disk())))
    assert len(again) <= first


def test_a_source_that_was_changed_since_starts_over_whatever_its_mtime(
    single: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the copy would be half of the one and half of the other."""
    monkeypatch.setattr(copying, "SYNC_BYTES", 1)

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        single.copy(probe=at("verify", kill, count=3))
    assert len(_journaled(single, "disk")) == 3
    flip_in(single.source_disk())
    single.served.clear()
    single.copy()
    assert len(single.served) == len(list(chunks_of(single.source_disk())))
    assert single.same_bytes()


def test_a_source_worker_that_starts_anew_is_asked_again(site: Site) -> None:
    def restart() -> None:
        site.cloud.servers["alpha"].stop()
        site.cloud.serve("alpha")

    value = site.copy(probe=at("chunk", restart, count=3))
    assert value["bytes"] == sum(disk["allocated"] for disk in value["disks"])
    assert site.same_bytes()


def test_who_connects_while_a_server_stops_is_turned_away(site: Site) -> None:
    """Else the stop would wait for a thread that waits for its peer."""
    server = site.cloud.servers["alpha"]
    server.stop()
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(20)
        server._enter(frames.FrameSocket(theirs))
        assert ours.recv(1) == b""
    assert not server._open


def test_a_cancel_ends_a_copy_at_its_next_chunk(site: Site) -> None:
    command = site.cloud.command("beta", "copy_disks", site.details)
    contexts: list[Context] = []

    probe = at("chunk", lambda: [ctx.cancel() for ctx in contexts], count=2)
    contexts.append(Context(site.cloud.hosts["beta"], command, probe=probe))
    with pytest.raises(Cancelled):
        dispatch.run(contexts[0], codec.details_of(command))
    # Three chunks that were to be written, since one may have come beside the cancel, and of either disk those on
    # their way.
    assert (
        len(site.served)
        <= 3 + 2 * copying.READERS
        < sum(len(list(chunks_of(site.source_disk(name)))) for name in ("disk", "disk.eph0"))
    )


def test_a_cancel_ends_the_setting_aside_of_blocks(single: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long where the file system cannot do it but has each block written."""
    command = single.cloud.command("beta", "copy_disks", single.details)
    context, lengths = Context(single.cloud.hosts["beta"], command), []

    def slow(_file: int, _offset: int, length: int) -> None:
        lengths.append(length)
        context.cancel()

    monkeypatch.setattr(os, "posix_fallocate", slow)
    with pytest.raises(Cancelled):
        dispatch.run(context, codec.details_of(command))
    assert (len(lengths), single.served) == (1, [])


@pytest.mark.parametrize(
    "facts", [{"peer": "gamma"}, {"move": OTHER_MOVE}, {"server": "another"}, {"epoch": 0}], ids=str
)
def test_disks_are_served_to_nobody_else(site: Site, facts: dict[str, Any]) -> None:
    with pytest.raises(StepError, match="offers no disks") as caught:
        site.remote(**facts).offered()
    assert (caught.value.error_code, caught.value.host) == ("not-offered", "alpha")
    assert site.served == []


def test_a_withdrawn_offer_serves_nobody(site: Site) -> None:
    site.offer(direction="revert")
    with pytest.raises(StepError, match="offers no disks"):
        site.remote().offered()


def test_an_offer_outlives_the_worker(site: Site) -> None:
    again = WorkerJournal(site.cloud.hosts["alpha"].journal.path, "alpha")
    offer = again.offer(SERVER)
    again.close()
    assert offer is not None
    assert (offer.peer, offer.move) == ("beta", MOVE)


def test_a_stale_epoch_is_served_nothing(site: Site) -> None:
    site.cloud.set_epoch(2)
    with pytest.raises(Fenced):
        site.remote(epoch=1).offered()
    with pytest.raises(Fenced):
        site.copy()
    assert site.copy(epoch=2)["bytes"] > 0


def test_disks_of_a_running_guest_are_not_served(site: Site) -> None:
    hypervisor = site.cloud.hosts["alpha"].hypervisor
    site.cloud.hosts["alpha"].directories.path(SERVER).mkdir()
    for name in ("disk", "disk.eph0", "disk.swap"):
        make_disk(site.cloud.hosts["alpha"].directories.path(SERVER, name), MIB)
    hypervisor.start(SERVER, lambda: None)
    with pytest.raises(StepError) as caught:
        site.remote().offered()
    assert caught.value.error_code == "guest-runs"


def test_another_user_is_turned_away(site: Site) -> None:
    site.cloud.servers["alpha"].stop()
    site.cloud.serve("alpha", uid=os.geteuid() + 1)
    with pytest.raises(StepError, match="does not serve the disks") as caught:
        site.remote(patience=0.1).offered()
    assert caught.value.error_code == "source-unreachable"


def test_a_source_without_a_worker_is_named(site: Site) -> None:
    site.cloud.servers["alpha"].stop()
    with pytest.raises(StepError, match="the worker of alpha does not serve") as caught:
        site.remote(patience=0.1).disk_map("disk")
    assert (caught.value.error_code, caught.value.host) == ("source-unreachable", "alpha")


@pytest.mark.parametrize("disk", ["disk.info", "../alpha/disk", "disk.swapper", "droveway-manifest.json", ""])
def test_only_disks_that_were_set_aside_are_served(site: Site, disk: str) -> None:
    with pytest.raises(StepError, match="was not set aside"):
        site.remote().disk_map(disk)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, extents.CHUNK + 1), (-1, 10), (0, 0), (0, -5), (1 << 40, 10), (1 << 63, 10), (1 << 70, 1)],
)
def test_only_chunks_of_the_disk_are_served(site: Site, offset: int, length: int) -> None:
    with pytest.raises(StepError) as caught:
        site.remote().read("disk", offset, length, extents.memory())
    wanted = "source-changed" if offset == 1 << 40 else "protocol"
    assert caught.value.error_code == wanted, "answered, not hung up on"
    assert site.served == []


def test_what_is_no_question_is_refused(site: Site) -> None:
    with (
        contextlib.closing(site.remote()) as source,
        pytest.raises(StepError, match="Welcome is no question") as caught,
    ):
        source._retried(lambda peer: source._request(peer, frames.Welcome(disks=[]), frames.Welcome))
    assert (caught.value.error_code, caught.value.host) == ("protocol", "alpha")


def test_a_link_in_what_was_set_aside_is_not_followed(site: Site) -> None:
    site.source_disk().rename(site.cloud.folder / "away")
    site.source_disk().symlink_to(site.cloud.folder / "away")
    with pytest.raises(StepError, match="is a link") as caught:
        site.remote().disk_map("disk")
    assert caught.value.error_code == "link"


def test_a_transfer_begins_with_a_hello(site: Site) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(endpoints.socket_path(site.cloud.hosts["alpha"].transfer_address))
        peer = frames.FrameSocket(stream)
        peer.send(frames.MapRequest(disk="disk"))
        answer, _ = peer.receive()
        assert isinstance(answer, frames.Refusal)
        assert answer.error["code"] == "protocol"


@pytest.mark.parametrize(
    "noise", [b"\xff" * 8, b"\0\0\0\2\0\0\0\0{}", b"\0\0\0\1\0\0\0\0{", b"\0\0\0\1\xff\0\0\0{", b"\0"]
)
def test_noise_on_the_socket_harms_nobody(site: Site, noise: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(endpoints.socket_path(site.cloud.hosts["alpha"].transfer_address))
        stream.sendall(noise)
        stream.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert stream.recv(1) == b""
    assert site.copy()["bytes"] > 0


_FACTS: Any = {"format": "raw", "size": 1, "mtime_ns": 1, "inode": 1}


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        (frames.Welcome(disks=[SetAsideDisk(name="../disk", allocated=1, **_FACTS)]), "no disk's name"),
        (frames.Welcome(disks=[], bases=[BaseFile(file="b", digest="../disk", **_FACTS)]), "no digest of a base"),
        (frames.Welcome(disks=[SetAsideDisk(name="disk", allocated=1, backing="a", **_FACTS)]), "no digest of a base"),
    ],
)
def test_a_source_that_offers_a_path_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, offered: frames.Welcome, words: str
) -> None:
    monkeypatch.setattr(RemoteSource, "offered", lambda source: offered)
    with pytest.raises(StepError, match=words):
        site.copy()


@pytest.mark.parametrize("address", ["udp:host:1", "unix:", "", "/path"])
def test_an_address_of_another_kind_is_refused(site: Site, address: str) -> None:
    details = msgspec.structs.replace(site.details, address=address)
    with pytest.raises(StepError, match="is no transfer address"):
        site.cloud.run("beta", "copy_disks", details)


def cloning(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Copies on the host itself, whose file system can share blocks."""

    def clone(copy: int, request: int, source: int) -> int:
        assert request == 0x40049409
        os.copy_file_range(source, copy, os.fstat(source).st_size, 0, 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    site.cloud.run("alpha", "offer_disks", commands.OfferDisks(peer="alpha"), direction="revert")
    details = msgspec.structs.replace(site.details, variant="local")
    return lambda **facts: site.cloud.run("alpha", "copy_disks", details, **facts)


def test_where_the_file_system_can_share_blocks_nothing_is_copied(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """R0-04: where both hosts see the disks, no byte crosses the wire and the source keeps its own."""
    value = cloning(site, monkeypatch)()
    assert (value["bytes"], site.served) == (0, [])
    assert [disk["checksum"] for disk in value["disks"]] == [
        checksums.recorded(site.source_disk(disk["name"])) for disk in value["disks"]
    ]
    directories = site.cloud.hosts["alpha"].directories
    assert directories.path(SERVER, "disk").read_bytes() == site.source_disk().read_bytes()


def test_a_clone_that_was_cut_off_shares_its_blocks_again(single: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SYNC_BYTES", 1)
    copy = cloning(single, monkeypatch)

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        copy(probe=at("verify", kill))
    assert (copy()["bytes"], single.served) == (0, [])


def test_a_source_that_changes_once_it_was_cloned_fails_the_step(single: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked what it holds after that, so the clone would be blamed."""
    copy = cloning(single, monkeypatch)
    with pytest.raises(StepError, match="was changed on alpha after it was set aside") as caught:
        copy(probe=at("chunk", lambda: flip_in(single.source_disk())))
    assert not isinstance(caught.value, DestinationFault)
    assert (caught.value.error_code, caught.value.host) == ("source-changed", "alpha")


def test_a_torn_line_of_the_chunk_log_does_not_count(tmp_path: Path) -> None:
    identity = Identity(size=10, mtime_ns=1, inode=2, ctime_ns=3)
    data = os.open(tmp_path / "disk", os.O_RDWR | os.O_CREAT)
    directory = os.open(tmp_path, os.O_RDONLY)
    log = ChunkLog(directory, "disk", identity)
    assert log.done == {}
    log.begin()
    log.add(0, 5, "abc")
    log.add(5, 5, "def")
    log.sync(data)
    log.close()
    path = tmp_path / log.name
    path.write_bytes(path.read_bytes()[:-2])
    torn = ChunkLog(directory, "disk", identity)
    assert torn.done == {(0, 5): "abc"}
    torn.add(5, 5, "xyz")
    torn.sync(data)
    torn.close()
    whole = ChunkLog(directory, "disk", identity)
    assert whole.done == {(0, 5): "abc", (5, 5): "xyz"}
    whole.close()
    for changed in ({"size": 11}, {"mtime_ns": 2}, {"inode": 3}, {"ctime_ns": 4}):
        other = ChunkLog(directory, "disk", msgspec.structs.replace(identity, **changed))
        assert other.done == {}
        other.close()
    os.close(directory)
    os.close(data)


def test_the_directories_refuse_names_that_leave_them(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    for name in ("..", "../x", "a/b", "", ".", "/etc"):
        with pytest.raises(Exception, match="no plain file name"):
            directories.create(name)
    assert list(tmp_path.iterdir()) == []
