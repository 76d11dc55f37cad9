"""`droveway cert`: daemons take what it makes, keys stay secret, and nothing is overwritten."""

from __future__ import annotations

import datetime as dt
import errno
import os
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from droveway import authority, certificates
from droveway.cli import main
from droveway.clients import access
from droveway.conf import settings
from droveway.errors import Refused

DAY = dt.timedelta(days=1)


def made(*words: str | Path) -> None:
    assert main.main([*map(str, words)]) == 0


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    made("cert", "authority", tmp_path / "authority")
    return tmp_path / "authority"


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Return the one sentence that refuses a command."""
    capsys.readouterr()
    assert main.main([*map(str, words)]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith("droveway: ")
    assert told.count("\n") == 1
    return told


def identity(folder: Path) -> certificates.Identity:
    return certificates.read(folder / "own.crt", folder / "own.key", folder / "authority.pem")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def protected(tmp_path: Path, own: Path, host: str | None) -> access.Protection | None:
    """Return how a daemon with this directory of `droveway cert make` and no other option is protected."""
    path = tmp_path / "droveway.conf"
    files = {"certificate": "own.crt", "key": "own.key", "authority": "authority.pem"}
    lines = "".join(f"{option} = {own / name}\n" for option, name in files.items())
    path.write_text(f"[zookeeper]\nhosts = zk1.example:2281\n[tls]\n{lines}")
    return access.protection(settings.load(path), host)


def test_a_conductor_and_a_worker_are_known_to_zookeeper_by_what_was_made_for_them(
    folder: Path, tmp_path: Path
) -> None:
    made("cert", "make", folder, "--conductor", "control1")
    made("cert", "make", folder, "--host", "node_1.example")
    conductor, worker = folder / "conductor-control1", folder / "host-node_1.example"
    assert protected(tmp_path, conductor, None) is not None
    assert protected(tmp_path, worker, "node_1.example") is not None
    with pytest.raises(Refused, match=r"is of CN=node_1\.example, and"):
        protected(tmp_path, worker, None)
    with pytest.raises(Refused, match="is of CN=droveway-conductor, and"):
        protected(tmp_path, conductor, "control1")


def test_workers_prove_to_each_other_who_they_are(folder: Path) -> None:
    for host in ("host1", "host2"):
        made("cert", "make", folder, "--host", host)
    near, far = socket.socketpair()
    met: list[frozenset[str]] = []

    def serve() -> None:
        with identity(folder / "host-host1").server_context().wrap_socket(far, server_side=True) as stream:
            met.append(certificates.peer_names(stream))
            stream.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    context = identity(folder / "host-host2").client_context()
    # What a stricter library than this one asks of a certificate.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with context.wrap_socket(near, server_hostname="host1") as stream:
        assert stream.recv(1) == b"!"
    thread.join()
    assert met == [{"host2"}]


def test_a_zookeeper_server_has_its_key_and_certificate_in_one_file(folder: Path) -> None:
    made("cert", "make", folder, "--zookeeper", "zk1.example", "--also", "192.0.2.1", "--also", "zk.example")
    own = folder / "zookeeper-zk1.example"
    assert set(contents(own)) == {"own.pem", "authority.pem"}
    pair = certificates.read(own / "own.pem", own / "own.pem", own / "authority.pem")
    assert pair.names == {"zk1.example", "zk.example"}
    found = x509.load_pem_x509_certificate((own / "own.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["192.0.2.1"]


def test_a_key_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made("cert", "authority", tmp_path / "authority")
        for option, name in (("--conductor", "control1"), ("--host", "host1"), ("--zookeeper", "zk1")):
            made("cert", "make", tmp_path / "authority", option, name)
    finally:
        os.umask(before)
    secret = [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert len(secret) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_what_is_there_is_never_overwritten(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made("cert", "make", folder, "--host", "host1")
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    mend = "is there already, and a key is never overwritten: rename it, or name another one"
    assert mend in refused(capsys, "cert", "make", folder, "--host", "host1")
    assert mend in refused(capsys, "cert", "authority", folder)
    assert mend in refused(capsys, "cert", "authority", tmp_path / "file")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "words", [("authority", "new"), ("authority", "empty"), ("make", "authority", "--host", "host1")]
)
def test_a_full_disk_leaves_nothing_behind(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    verb, name, *rest = words
    said = refused(capsys, "cert", verb, tmp_path / name, *rest)
    assert "cannot be made (No space left on device): name a place that you may write to and that has room" in said
    assert sorted(tmp_path.rglob("*")) == before
    assert folder in before


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-a", "a b", "ä", "*.example", "x" * 65, "a\n"])
def test_what_is_no_machine_s_name_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    for words in ((f"--host={name}",), ("--zookeeper=zk1", f"--also={name}")):
        assert "cannot be the name of a machine in a certificate: give up to 64 letters" in refused(
            capsys, "cert", "make", folder, *words
        )
    assert sorted(folder.rglob("*")) == before


def test_a_certificate_holds_for_the_days_that_are_asked_for(folder: Path, tmp_path: Path) -> None:
    made("cert", "make", folder, "--host", "host1")
    made("cert", "make", folder, "--host", "host2", "--days", "3")
    now = dt.datetime.now(dt.UTC)
    for host, days in (("host1", 730), ("host2", 3)):
        assert abs(identity(folder / f"host-{host}").expires - now - days * DAY) < DAY / 24
    made("cert", "authority", tmp_path / "short", "--days", "2")
    own = x509.load_pem_x509_certificate((tmp_path / "short/authority.pem").read_bytes())
    assert abs(own.not_valid_after_utc - now - 2 * DAY) < DAY / 24


def test_a_certificate_that_would_outlive_its_authority_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made("cert", "authority", tmp_path / "short", "--days", "2")
    said = refused(capsys, "cert", "make", tmp_path / "short", "--host", "host1", "--days", "3")
    assert "before a certificate of 3 days: give fewer --days, or make a new authority" in said


@pytest.mark.parametrize("days", ["0", "-1", "1.5", "ten", "36501"])
def test_what_is_no_number_of_days_is_refused(days: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["cert", "authority", str(tmp_path / "new"), f"--days={days}"])
    assert f"{days} is no number of days: give 1 to 36500" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_whose_certificate_it_is_has_to_be_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--host", "host1", "--zookeeper", "zk1")):
        with pytest.raises(SystemExit, match="2"):
            main.main(["cert", "make", str(folder), *words])
        assert "--conductor" in capsys.readouterr().err


def test_an_authority_that_cannot_be_used_is_refused_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        return refused(capsys, "cert", "make", folder, "--host", "host1")

    key, certificate = folder / authority.KEY, folder / authority.CERTIFICATE
    assert "name the directory that  droveway cert authority  has made" in refused(
        capsys, "cert", "make", tmp_path / "elsewhere", "--host", "host1"
    )
    made("cert", "authority", tmp_path / "other")
    shutil.copy(tmp_path / "other" / authority.KEY, key)
    assert f"{key} is not the key of {certificate}: restore both" in said()
    key.write_text("nothing of the kind\n")
    assert f"{key} is not PEM, or it has a passphrase: restore a PEM file" in said()
    shutil.copy(tmp_path / "other" / authority.KEY, key)
    certificate.unlink()
    assert f"{certificate} cannot be read (No such file or directory)" in said()


def test_no_key_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made("cert", "authority", tmp_path / "authority")
    made("cert", "make", tmp_path / "authority", "--host", "host1")
    said: Any = capsys.readouterr()
    assert "PRIVATE" not in said.out + said.err
    assert "keep" in said.out
    assert str(tmp_path / "authority" / authority.KEY) in said.out


def test_a_certificate_is_of_no_lab_and_of_no_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name a lab: nobody means the certificate by that."""
    made("cert", "authority", tmp_path / "first")
    words = (("cert", "authority", tmp_path / "new"), ("cert", "make", tmp_path / "first", "--host", "host1"))
    for each in words:
        for before, after in ((("--lab", "lab"), ()), ((), ("--lab", "lab")), ((), ("--config-file", "x.conf"))):
            said = refused(capsys, *before, *each, *after)
            assert "is for no lab and no installation: leave " in said
            assert f"leave {(before or after)[0]} out" in said
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    monkeypatch.setenv("DROVEWAY_LAB", "lab")
    for each in words:
        made(*each)
