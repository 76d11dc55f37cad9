"""The certificate of a daemon: what is refused before anything starts, and what its TLS lets through."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from pathlib import Path

import pytest
from support.servers.certificates import DAY, Authority, Files

from droveway import certificates
from droveway.conf import settings
from droveway.errors import Refused

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(name="authority")
def _authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def read(files: Files) -> certificates.Identity:
    return certificates.read(files.certificate, files.key, files.authority)


def test_an_identity_says_who_it_is_and_until_when(authority: Authority) -> None:
    identity = read(authority.issue("host1"))
    assert identity.names == {"host1", "localhost"}
    assert identity.subject == "CN=host1"
    assert abs(identity.expires - NOW - 5 * DAY) < DAY
    certificates.require_name(identity, "host1")
    with pytest.raises(Refused, match="is not for host2, its DNS names are: host1, localhost; have one issued"):
        certificates.require_name(identity, "host2")


def test_the_group_is_given_whole_or_not_at_all(tmp_path: Path, authority: Authority) -> None:
    path = tmp_path / "droveway.conf"
    assert certificates.load(settings.load(path)) is None
    options = authority.issue("host1").options()
    path.write_text("[tls]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
    assert certificates.load(settings.load(path)) is not None
    path.write_text(f"[tls]\nkey = {options['key']}\n")
    with pytest.raises(Refused, match=r"\[tls\] certificate is missing: give certificate, key, authority"):
        certificates.load(settings.load(path))


@pytest.mark.parametrize("which", certificates.FILES)
def test_files_that_are_missing_or_something_else_are_named(authority: Authority, which: str) -> None:
    files = authority.issue("host1")
    path: Path = getattr(files, which)
    path.write_text("nothing of the kind\n")
    with pytest.raises(Refused, match=rf"\[tls\] {which} {path} cannot be used: give a PEM file"):
        read(files)
    path.unlink()
    with pytest.raises(Refused, match=rf"\[tls\] {which} {path} cannot be read \(No such file or directory\)"):
        read(files)


def test_a_key_of_another_or_for_everybody_is_refused(authority: Authority) -> None:
    files, other = authority.issue("host1"), authority.issue("host2")
    with pytest.raises(Refused, match="is not that of the certificate"):
        read(Files(files.certificate, other.key, files.authority))
    files.key.chmod(0o604)
    with pytest.raises(Refused, match="chmod o-rwx"):
        read(files)


def test_a_certificate_that_does_not_hold_now_is_refused(authority: Authority) -> None:
    with pytest.raises(Refused, match=r"has expired at .* UTC: renew it"):
        read(authority.issue("host1", ends=NOW - dt.timedelta(hours=1)))
    with pytest.raises(Refused, match="set the clock, or wait"):
        read(authority.issue("host1", begins=NOW + dt.timedelta(hours=1)))


def meet(server: Files, client: Files, called: str) -> frozenset[str]:
    """Connect the client to the server under the name that it is called by; whom the server met."""
    near, far = socket.socketpair()
    met: list[frozenset[str]] = []

    def serve() -> None:
        try:
            with read(server).server_context().wrap_socket(far, server_side=True) as stream:
                met.append(certificates.peer_names(stream))
                stream.sendall(b"!")
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with read(client).client_context().wrap_socket(near, server_hostname=called) as stream:
            if stream.recv(1) != b"!":
                raise ssl.SSLError("the server has hung up")
    finally:
        near.close()
        thread.join()
    return met[0]


def test_both_sides_prove_who_they_are(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.issue("host1"), authority.issue("host2")
    assert meet(one, two, "host1") == {"host2", "localhost"}
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        meet(one, two, "host3")
    stranger = Authority(tmp_path / "other").issue("host2")
    with pytest.raises(ssl.SSLError):
        meet(one, Files(stranger.certificate, stranger.key, one.authority), "host1")
    with pytest.raises(ssl.SSLError):
        meet(one, Files(two.certificate, two.key, stranger.authority), "host1")
