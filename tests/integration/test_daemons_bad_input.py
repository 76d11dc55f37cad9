"""A wrong configuration of a daemon: one sentence before anything starts, exit 2, and no secret in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.small_lab import in_child, small_cloud

from droveway.conf import services
from droveway.lab import build
from droveway.lab.layout import Layout
from droveway.lab.serve_settings import in_place, write
from droveway.persistence.database import Database, sqlite_url

SECRET = "canary-url-81c7"

Settings = dict[str, dict[str, str]]


@pytest.fixture(scope="module", name="files")
def fixture_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    root = tmp_path_factory.mktemp("wrong") / "lab"
    in_child(lambda: in_place(build.create(root, small_cloud("host1"))))
    yield Layout(root)
    build.destroy(root)


@pytest.fixture(name="settings")
def fixture_settings(files: Layout, tmp_path: Path) -> Settings:
    """Right in all but that no ZooKeeper is there."""
    return {
        "zookeeper": {"hosts": f"127.0.0.1:{closed_port()}", "session_timeout": "1"},
        "journal": {"connection": sqlite_url(files.journal)},
        "api_database": {"connection": sqlite_url(files.api)},
        **{group: {"auth_type": "none", "endpoint_override": "http://127.0.0.1:9/"} for group in services.GROUPS},
        "worker": {
            "hypervisor": "sandbox",
            "run_path": str(tmp_path / "run"),
            "state_path": str(tmp_path / "state"),
            "instances_root": str(files.host("host1")),
        },
    }


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sentence(tmp_path: Path, settings: Settings, *words: str) -> str:
    """What the daemon said when it refused to start, secrets looked for."""
    path = tmp_path / "droveway.conf"
    write(settings, path)
    return refused(path, *words)


def refused(path: Path, *words: str) -> str:
    """What is said of the configuration in this file."""
    done = subprocess.run(
        [sys.executable, "-m", "droveway.cli.main", *words, "--config-file", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
    )
    assert SECRET not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("droveway: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


CONDUCTOR = ("conductor", "run")
WORKER = ("worker", "run", "--host", "host1")


@pytest.mark.parametrize("words", [CONDUCTOR, WORKER], ids=["conductor", "worker"])
def test_a_missing_file_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert f"the configuration {tmp_path / 'none.conf'} is missing" in refused(tmp_path / "none.conf", *words)


@pytest.mark.parametrize("words", [CONDUCTOR, WORKER], ids=["conductor", "worker"])
@pytest.mark.parametrize(("mode", "can"), [(0o644, "read"), (0o602, "change")])
def test_passwords_that_others_may_have_are_refused(
    tmp_path: Path, settings: Settings, words: tuple[str, ...], mode: int, can: str
) -> None:
    """S13: whatever kind of option holds them; a file without any may be read by everybody."""
    path = tmp_path / "droveway.conf"
    for group, option, value in (
        ("journal", "connection", f"postgresql+psycopg://droveway:{SECRET}@127.0.0.1:1/droveway"),
        ("cinder", "password", SECRET),
    ):
        write(settings | {group: settings[group] | {"auth_type": "v3password"} | {option: value}}, path)
        if group == "journal":
            write(settings | {group: {option: value}}, path)
        path.chmod(mode)
        said = refused(path, *words)
        assert f"holds passwords ([{group}] {option}) and everybody on this machine may {can} it" in said
        assert "chmod 640" in said
    write(settings, path)
    path.chmod(mode)
    assert "holds passwords" not in refused(path, *words)


@pytest.mark.parametrize(
    ("group", "option", "value", "said"),
    [
        ("zookeeper", "host", "a:1", "[zookeeper] has no option host: did you mean hosts?"),
        ("zokeeper", "hosts", "a:1", "[zokeeper] has no option hosts"),
        ("zookeeper", "session_timeout", "0.1", "session_timeout"),
        ("worker", "hypervisor", "xen", "xen"),
        ("neutron", "auth_type", "magic", "[neutron] auth_type names magic"),
        ("neutron", "auth_typ", "none", "[neutron] has no option auth_typ: did you mean auth_type?"),
        ("placement", "password", SECRET, "[placement] has no option password"),
        ("journal", "connection", "", "[journal] connection is missing"),
        ("journal", "connection", f"no url {SECRET}", "the URL of a database cannot be read"),
        ("journal", "connection", f"oracle+none://a:{SECRET}@b/c", "names no driver that is known"),
        ("journal", "connection", f"postgresql+psycopg://a:{SECRET}@127.0.0.1:1/j", "of [journal] does not answer"),
        ("api_database", "connection", "sqlite:////nowhere/at/all", "of [api_database] does not answer"),
        ("journal", "connection", "sqlite://", "would be gone with its process: name a file"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, settings: Settings, group: str, option: str, value: str, said: str
) -> None:
    settings.setdefault(group, {})[option] = value
    assert said in sentence(tmp_path, settings, *CONDUCTOR)


def test_a_journal_of_another_schema_is_named(tmp_path: Path, settings: Settings) -> None:
    settings["journal"]["connection"] = sqlite_url(tmp_path / "empty.sqlite")
    assert "the journal has schema none and this Droveway needs" in sentence(tmp_path, settings, *CONDUCTOR)
    said = subprocess.run(
        [sys.executable, "-m", "droveway.cli.main", "db", "sync", "--config-file", str(tmp_path / "droveway.conf")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "it was empty" in said
    assert "no ZooKeeper answers" in sentence(tmp_path, settings, *CONDUCTOR)
    with Database(settings["journal"]["connection"]).begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    said = sentence(tmp_path, settings, *CONDUCTOR)
    assert "the journal has schema 9999 and this Droveway knows up to" in said
    assert "use the later Droveway that made it" in said


@pytest.mark.parametrize("words", [CONDUCTOR, WORKER], ids=["conductor", "worker"])
def test_a_zookeeper_that_does_not_answer_is_named(tmp_path: Path, settings: Settings, words: tuple[str, ...]) -> None:
    assert f"no ZooKeeper answers at {settings['zookeeper']['hosts']}" in sentence(tmp_path, settings, *words)


def test_a_service_without_a_way_in_is_named(tmp_path: Path, settings: Settings) -> None:
    del settings["cinder"]["auth_type"]
    for words in (CONDUCTOR, WORKER):
        assert "[cinder] auth_type is missing" in sentence(tmp_path, settings, *words)
