"""Secrets planted in every credential are found nowhere else, though every daemon logs all that it can."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemons.daemons import CONDUCTOR, Installation, installation
from support.labs.small_lab import assert_balanced, file_flow, in_child, small_cloud, until
from support.servers import postgres_server, zookeeper_server
from support.servers.certificates import Authority

from droveway.clients.embedded import volume
from droveway.lab import build
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State

TOKENS: Final = {group: f"admin:canary-{group}-token" for group in ("placement", "neutron", "cinder")}
VOLUME: Final = "canary-chap-password"


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """An installation whose every credential is a canary, and whose daemons log at level debug."""
    view = volume._view

    def with_secret(*facts: Any) -> dict[str, Any]:
        found = view(*facts)
        if found["connection_info"]:
            found["connection_info"] |= {"auth_method": "CHAP", "auth_username": "droveway", "auth_password": VOLUME}
        return found

    monkeypatch.setattr(volume, "_view", with_secret)
    in_child(lambda: build.create(tmp_path / "lab", small_cloud("host1", "host2")).close())
    lab = Lab.open(tmp_path / "lab")
    authority = Authority(tmp_path / "pki")
    with (
        zookeeper_server.running_server(tmp_path / "zookeeper", authority.issue("zookeeper")) as zookeeper,
        postgres_server.running_server() as databases,
        installation(lab, tmp_path, zookeeper.hosts, databases, authority) as made,
    ):
        # Their command lines are looked at too.
        made.apart = True
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(made.configuration)
        settings["DEFAULT"] = {"debug": "true", "default_log_levels": "kazoo=DEBUG,sqlalchemy=INFO,urllib3=DEBUG"}
        settings["placement"]["token"] = TOKENS["placement"]
        for group in ("neutron", "cinder"):
            where = settings[group]["endpoint_override"]
            settings[group].update({"auth_type": "admin_token", "endpoint": where, "token": TOKENS[group]})
        with made.configuration.open("w") as file:
            settings.write(file)
        yield made
    lab.close()
    build.destroy(tmp_path / "lab")


def secrets(site: Installation) -> list[str]:
    """All that is planted; of each private key a line."""
    assert site.authority is not None
    keys = [Path(site.certified(name)["OS_TLS__KEY"]) for name in (CONDUCTOR, "host1")]
    return [postgres_server.PASSWORD, VOLUME, *TOKENS.values(), *(key.read_text().splitlines()[1] for key in keys)]


def told(site: Installation, said: list[str]) -> dict[str, list[str]]:
    """Where each secret is found: logs, nodes, rows, what workers keep, the arguments of processes, what was said."""
    kept = [path for path in site.lab.layout.hosts.rglob("*") if path.is_file() and "instances" not in path.parts]
    running = [Path(f"/proc/{daemon.process.pid}/cmdline") for daemon in site.daemons if daemon.process.poll() is None]
    assert any(path.name == "worker.sqlite" for path in kept)
    assert all(b"droveway.cli.main" in path.read_bytes() for path in running)
    assert running
    found = {}
    for secret in secrets(site):
        places = site.places_of(secret)
        places += [str(path) for path in (*kept, *running) if secret.encode() in path.read_bytes()]
        places += [text for text in said if secret in text]
        if places:
            found[secret] = places
    return found


def test_no_secret_is_found_where_it_does_not_belong(site: Installation) -> None:
    """Through a move, its confirm, a database that dies in the middle, and commands that meet it dead."""
    assert site.server is not None
    for host in ("host1", "host2"):
        site.worker(host)
    conductor = site.conductor()
    for host in ("host1", "host2"):
        site.await_worker(host)
    move = file_flow(site.lab, "resize")
    site.await_step(move, "connect_destination")
    site.server.kill()
    said = [text for words in (("move", "list"), ("move", "show", move)) for text in site.droveway(*words)[1:]]
    until(lambda: "The keeper waits for ZooKeeper" in conductor.log.read_text(), "that the conductor notices")
    site.server.start()
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    for words in (("move", "show", move), ("move", "history", move), ("server", "show", "web"), ("move", "list")):
        said += site.droveway(*words)[1:]
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE
    assert " DEBUG " in conductor.log.read_text()
    assert told(site, said) == {}
    assert_balanced(site.lab)
