"""Disks on their way between machines: TCP with mutual TLS, and whom a worker turns away."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.small_lab import until
from support.rigs.transfer_site import Site, at, flip, set_aside
from support.rigs.worker_rig import MIB, MOVE, SERVER
from support.servers.certificates import Authority, Files

from droveway import certificates
from droveway.errors import Fenced, Refused, StepError
from droveway.workers.transfer import endpoints, frames, limits
from droveway.workers.transfer import server as transfer_server
from droveway.workers.transfer.limits import Bucket, Limits


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with set_aside(tmp_path, monkeypatch, tls=True, root_mib=20, ephemeral=True) as site:
        yield site


def identity(files: Files) -> certificates.Identity:
    return certificates.read(files.certificate, files.key, files.authority)


def authority(site: Site) -> Authority:
    assert site.cloud.authority is not None
    return site.cloud.authority


def port(site: Site) -> int:
    return endpoints.split(site.cloud.hosts["alpha"].transfer_address.removeprefix("tcp:"))[1]


def test_a_copy_goes_through_tls(site: Site) -> None:
    assert site.cloud.hosts["alpha"].transfer_address.startswith("tcp:127.0.0.1:")
    value = site.copy()
    assert [disk["name"] for disk in value["disks"]] == ["disk", "disk.eph0"]
    assert all(disk["sent"] == disk["allocated"] for disk in value["disks"])
    assert site.same_bytes("disk")
    assert site.same_bytes("disk.eph0")


def test_nothing_of_a_disk_is_seen_on_the_wire(site: Site) -> None:
    """A relay in the middle sees neither the disk's bytes nor the server's id."""
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def forward(one: socket.socket, other: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 16):
                    seen.extend(data)
                    other.sendall(data)
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)

        def relay() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = stack.enter_context(listener.accept()[0])
                    far = stack.enter_context(socket.create_connection(("127.0.0.1", port(site))))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        threading.Thread(target=relay, daemon=True).start()
        remote = site.remote()
        remote._address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.closing(remote):
            where = remote.disk_map("disk")
            offset, length = where.extents[0]
            data, _ = remote.read("disk", offset, length, memoryview(bytearray(4 * MIB)))
        assert len(seen) > length
        assert bytes(data[:64]) not in seen
        assert SERVER.encode() not in seen
        listener.shutdown(socket.SHUT_RDWR)


def refused(site: Site, files: Files, caplog: pytest.LogCaptureFixture, **facts: object) -> StepError:
    """What a peer with these files is told; nothing is served to it, and one line says so."""
    remote = site.remote(patience=0.0, **facts)
    remote._identity = identity(files)
    with caplog.at_level(logging.WARNING), pytest.raises(StepError) as told:
        remote.offered()
    assert site.served == []
    return told.value


def turned_away(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Turned away" in record.getMessage()]


def test_the_worker_of_another_host_gets_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Neither as itself, which nothing is offered to, nor as the one that something is offered to."""
    gamma = authority(site).issue("gamma", names=("gamma",))
    for _ in range(3):
        assert refused(site, gamma, caplog, peer="gamma").error_code == "not-offered"
        assert refused(site, gamma, caplog, peer="beta").error_code == "certificate"
    offers, proof = turned_away(caplog)
    assert "127.0.0.1 (gamma): host alpha offers no disks" in offers
    assert "127.0.0.1 (gamma): the peer that asks" in proof
    assert "says it is beta and does not prove it" in proof
    assert site.copy()["bytes"] > 0


def test_a_certificate_of_another_authority_gets_nothing(
    site: Site, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger").issue("beta")
    own = Files(stranger.certificate, stranger.key, authority(site).path)
    assert refused(site, own, caplog).error_code == "source-unreachable"
    until(lambda: turned_away(caplog), "the line in the log")
    assert "127.0.0.1, which does not prove who it is: CERTIFICATE_VERIFY_FAILED" in turned_away(caplog)[0]
    assert site.copy()["bytes"] > 0


def test_who_shows_no_certificate_gets_nothing(site: Site) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port(site))) as stream,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context.wrap_socket(stream) as wrapped,
    ):
        frames.FrameSocket(wrapped).receive()
    with socket.create_connection(("127.0.0.1", port(site))) as plain:
        plain.settimeout(20)
        with contextlib.suppress(ConnectionError):
            plain.sendall(b"\0\0\0\2\0\0\0\0{}")
            while plain.recv(4096):
                pass
    assert site.copy()["bytes"] > 0


def test_a_source_that_does_not_prove_its_name_is_not_read_from(site: Site) -> None:
    """Something else at its address: the step says so at once, and nothing of it is taken for a disk."""
    impostor = authority(site).issue("impostor", names=("impostor",))
    site.cloud.servers["alpha"].stop()
    where = site.cloud.hosts["alpha"].transfer_address.removeprefix("tcp:")
    endpoint = endpoints.TlsEndpoint("alpha", where, identity(impostor))

    def admit(_: frames.Hello) -> None:
        raise AssertionError("a peer was let in")

    server = transfer_server.TransferServer("impostor", endpoint, admit)  # type: ignore[arg-type]
    server.start()
    try:
        with pytest.raises(StepError, match="does not prove to be the worker of alpha: Hostname mismatch") as told:
            site.copy()
        assert told.value.error_code == "certificate"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("facts", "code"),
    [({"server": "another"}, "not-offered"), ({"move": "another"}, "not-offered"), ({"epoch": 2}, "fenced")],
)
def test_another_server_move_or_epoch_gets_nothing(
    site: Site, caplog: pytest.LogCaptureFixture, facts: dict[str, object], code: str
) -> None:
    beta = authority(site).issue("beta", names=("beta",))
    if code != Fenced.code:
        assert refused(site, beta, caplog, **facts).error_code == code
    else:
        with pytest.raises(Fenced):
            site.remote(**facts).offered()
    assert site.served == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "disk/../../x", "disk.swap/..", "", "nul\0"])
def test_a_name_that_leads_out_of_the_directory_is_no_disk(site: Site, name: str) -> None:
    with contextlib.closing(site.remote()) as remote, pytest.raises(StepError, match="was not set aside"):
        remote.disk_map(name)


@pytest.mark.parametrize("noise", [b"\xff" * 8, b"\0\0\0\2\0\0\0\0{}", b"\0\0\x80\0\0\0\0\0" + b"[" * 32768])
def test_noise_within_tls_harms_nobody(site: Site, noise: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stream = endpoints.connect(
            site.cloud.hosts["alpha"].transfer_address, "alpha", site.cloud.hosts["beta"].identity
        )
        # Whether the server closes before the noise is sent whole is nobody's matter.
        with stream, contextlib.suppress(OSError):
            stream.sendall(noise)
            assert stream.recv(1) == b""
        until(lambda: turned_away(caplog), "the line in the log")
    assert site.copy()["bytes"] > 0


def test_a_mute_peer_keeps_nobody_waiting(site: Site) -> None:
    """The handshake is each connection's own."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port(site))))
        began = time.monotonic()
        assert site.copy()["bytes"] > 0
        assert time.monotonic() - began < endpoints.HANDSHAKE


def test_no_more_peers_are_served_than_may_be(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfer_server, "MOST_CONNECTIONS", 2)
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        for _ in range(2):
            stack.enter_context(contextlib.closing(site.remote())).offered()
        one_more = stack.enter_context(socket.create_connection(("127.0.0.1", port(site))))
        one_more.settimeout(20)
        assert one_more.recv(1) == b""
    assert "one peer more than 2" in turned_away(caplog)[0]


def test_who_has_proved_nothing_makes_room_for_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that has been here longest; none that was let in."""
    monkeypatch.setattr(transfer_server, "MOST_CONNECTIONS", 3)
    server = site.cloud.servers["alpha"]
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        proved = stack.enter_context(contextlib.closing(site.remote()))
        proved.offered()
        mute = []
        for number in range(2):
            mute.append(stack.enter_context(socket.create_connection(("127.0.0.1", port(site)))))
            until(lambda number=number: len(server._open) == number + 2, "the peer")
        another = stack.enter_context(contextlib.closing(site.remote(patience=0.0)))
        assert another.offered().disks
        mute[0].settimeout(20)
        assert mute[0].recv(1) == b""
        kept = proved._connection
        assert proved.disk_map("disk").extents
        assert proved._connection is kept
        assert len(server._open) == 3
        # Before the peers hang up, of which the server may tell as well.
        [line] = turned_away(caplog)
    assert "127.0.0.1, which had asked for nothing while there were 3 peers" in line


def test_a_hello_that_trickles_in_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfer_server, "HANDSHAKE", 1.0)
    alpha = site.cloud.hosts["alpha"].transfer_address
    beta = site.cloud.hosts["beta"].identity
    with caplog.at_level(logging.WARNING), endpoints.connect(alpha, "alpha", beta) as slow:
        slow.settimeout(0.2)
        slow.sendall(b"\0\0\x40\0\0\0\0\0")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
            while time.monotonic() - began < 20:
                slow.sendall(b" ")
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1) == b"":
                        break
        assert time.monotonic() - began < 10
    until(lambda: turned_away(caplog), "the line in the log")
    assert "127.0.0.1 (beta), which had asked for nothing within 1 s" in turned_away(caplog)[0]


def asked(peer: frames.FrameSocket, question: frames.Frame) -> object:
    """What the peer answers to the question."""
    peer.send(question)
    return peer.receive()


def test_a_question_takes_no_more_memory_than_one_needs(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Refused by what it says of its own length; the answers may be longer."""
    alpha, beta = (site.cloud.hosts[name] for name in ("alpha", "beta"))
    long = "x" * frames.LONGEST_QUESTION
    with caplog.at_level(logging.WARNING), contextlib.closing(site.remote()) as remote:
        remote.offered()
        welcome = remote._connection
        assert welcome is not None
        stranger = frames.FrameSocket(endpoints.connect(alpha.transfer_address, "alpha", beta.identity))
        hello = frames.Hello(peer="beta", server=long, move=MOVE, epoch=1)
        for peer, question in ((stranger, hello), (welcome, frames.MapRequest(disk=long))):
            # The server closes as soon as it knows the length, which may be before the question is sent whole.
            with contextlib.closing(peer), pytest.raises((ConnectionError, ssl.SSLError)):
                asked(peer, question)
    until(lambda: turned_away(caplog), "the line in the log")
    assert "bytes is too long" in turned_away(caplog)[0]
    assert site.copy()["bytes"] > 0


def test_what_fails_behind_a_question_is_told_and_ends_that_peer_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_hello: frames.Hello) -> None:
        raise ValueError("of some \x1b[31mkind")

    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        patched.setattr(site.cloud.servers["alpha"], "_admit", broken)
        for _ in range(3):
            with pytest.raises(StepError, match="broke off"):
                site.remote(patience=0.0).offered()
    [line] = turned_away(caplog)
    assert "which could not be answered: ValueError" in line
    assert "\x1b" not in line
    assert site.copy()["bytes"] > 0


def test_a_worker_that_stops_does_not_wait_for_a_mute_peer(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", port(site))):
        server = site.cloud.servers["alpha"]
        until(lambda: any(isinstance(each.stream, ssl.SSLSocket) for each in list(server._open)), "the handshake")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < endpoints.HANDSHAKE / 2


def test_a_worker_that_could_let_nobody_in_does_so_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many open files, for a moment."""
    accept, left = socket.socket.accept, [1]

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(transfer_server, "ACCEPT_AGAIN", 0.1)
    site.cloud.servers["alpha"].stop()
    with caplog.at_level(logging.WARNING):
        site.cloud.serve("alpha")
        until(lambda: turned_away(caplog), "the line in the log")
    assert site.copy()["bytes"] > 0


def test_a_certificate_that_cannot_be_read_any_more_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """It is read for each connection, so that a renewed one is used at once."""
    alpha = site.cloud.hosts["alpha"].identity
    assert alpha is not None
    kept = alpha.certificate.read_bytes()
    alpha.certificate.write_text("half of a cert")
    with caplog.at_level(logging.WARNING), pytest.raises(StepError):
        site.remote(patience=0.0).offered()
    assert "Turned away at the disk transfer of alpha: everybody" in turned_away(caplog)[0]
    alpha.certificate.write_bytes(kept)
    assert site.copy()["bytes"] > 0


def test_a_cut_connection_costs_no_chunk_that_was_proved(site: Site) -> None:
    """R0-05's copy goes on over a new connection."""
    server = site.cloud.servers["alpha"]

    def cut() -> None:
        for connection in list(server._open):
            connection.end()

    value = site.copy(probe=at("chunk", cut, count=3))
    assert site.same_bytes()
    assert len(site.served) - len(set(site.served)) <= 2 * 3, "what was on its way to each disk's readers"
    assert value["bytes"] == sum(disk["allocated"] for disk in value["disks"])


def test_what_the_medium_spoils_is_found_behind_tls_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a second disk, copied side by side, that one may be verified before the flipped byte was written.
    with set_aside(tmp_path, monkeypatch, tls=True, root_mib=20, ephemeral=False) as site:
        offset = site.remote().disk_map("disk").extents[0][0]
        with pytest.raises(StepError) as told:
            site.copy(probe=at("verify", lambda: flip(site.part_disk(), offset)))
    assert told.value.error_code == "checksum"


def test_a_bucket_gives_out_no_more_than_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    bucket = Bucket(10 * MIB)
    assert bucket.take(5 * MIB) == 0
    assert bucket.take(5 * MIB) == pytest.approx(0.5)
    now[0] += 0.5
    assert bucket.take(20 * MIB) == 0
    assert bucket.take(1) == pytest.approx(2.0)
    assert [Bucket(0).take(1 << 40) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("side", ["source", "destination", "each"])
def test_a_copy_takes_as_long_as_its_limit_says(site: Site, side: str) -> None:
    """At the source, at the destination, and for one server; what is kept of an earlier run is not counted."""
    rate = 4 * MIB
    if side == "source":
        site.cloud.servers["alpha"].stop()
        site.cloud.serve("alpha", limit=Bucket(rate))
    else:
        object.__setattr__(
            site.cloud.hosts["beta"], "limits", Limits(**{"host" if side == "destination" else "each": rate})
        )
    began = time.monotonic()
    value = site.copy()
    *_, last = sorted(length for _, _, length in site.served)
    assert time.monotonic() - began >= (value["bytes"] - last) / rate
    assert site.same_bytes()


@pytest.mark.parametrize("text", ["4790", "host", ":1", "host:0", "host:65536", "host:a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is no NAME:PORT"):
        endpoints.split(text)


def test_an_address_may_be_of_ipv6() -> None:
    assert endpoints.split("[::1]:4790") == ("::1", 4790)


def test_a_port_that_is_taken_is_named(site: Site) -> None:
    beta = site.cloud.hosts["beta"].identity
    assert beta is not None
    with pytest.raises(Refused, match=f"127.0.0.1 port {port(site)} cannot be listened at"):
        endpoints.TlsEndpoint("beta", f"127.0.0.1:{port(site)}", beta).listen()
