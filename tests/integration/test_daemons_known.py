"""What operators see of an installation's daemons, and what they ask of them: on real ones, by the real commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support import mariadb_server, postgres_server, zookeeper_server
from support.daemons import Installation, installation
from support.small_lab import in_child, small_cloud, until

from droveway.lab import build, snapshot
from droveway.lab.snapshot import Snapshot

SERVERS: Final = {"postgresql": postgres_server, "mariadb": mariadb_server}


@pytest.fixture(scope="module", name="zookeeper")
def fixture_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper_server.Server]:
    with zookeeper_server.running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    folder = tmp_path_factory.mktemp("daemons")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2", "host3")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site", params=["sqlite", *SERVERS])
def fixture_site(
    request: pytest.FixtureRequest, rest: Snapshot, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[Installation]:
    lab = rest.restore()
    if request.param == "sqlite":
        with installation(lab, tmp_path, zookeeper.hosts, None) as made:
            yield made
    else:
        with (
            SERVERS[request.param].running_server() as server,
            installation(lab, tmp_path, zookeeper.hosts, server) as made,
        ):
            yield made
    lab.close()


def told(site: Installation, *words: str) -> Any:
    """What a command prints as JSON."""
    code, said, complained = site.droveway(*words, "-f", "json")
    assert code == 0, complained
    return json.loads(said)


def states(site: Installation) -> dict[str, str]:
    """Each worker's."""
    return {row["host"]: row["state"] for row in told(site, "worker", "list")}


def test_daemons_are_listed_while_they_are_up_and_after(site: Installation) -> None:
    """A worker that is gone is down, with since when; one that is back is up; a conductor that ended says so."""
    workers = {host: site.worker(host) for host in ("host1", "host2")}
    assert told(site, "worker", "list") == []
    conductor = site.conductor()
    until(lambda: states(site) == {"host1": "up", "host2": "up"}, "both workers")
    shown = told(site, "worker", "show", "host1")
    assert shown["pid"] == workers["host1"].process.pid
    assert "copy_disks@1" in shown["actions"]
    (listed,) = told(site, "conductor", "list")
    assert (listed["state"], listed["pid"]) == ("up", conductor.process.pid)
    assert {"resize@1", "confirm@1"} <= set(told(site, "conductor", "show", listed["name"])["flows"])

    workers["host2"].kill()
    until(lambda: states(site) == {"host1": "up", "host2": "down"}, "the end of a worker")
    down = told(site, "worker", "show", "host2")
    assert down["since"] > shown["since"]
    again = site.worker("host2")
    until(lambda: states(site)["host2"] == "up", "the worker's return")
    assert told(site, "worker", "show", "host2")["pid"] == again.process.pid

    conductor.stop()
    (listed,) = told(site, "conductor", "list")
    assert listed["state"] == "down"
    code, _, complained = site.droveway("worker", "list")
    assert (code, complained) == (0, "warning: no conductor is up, so this is what the last one saw\n")


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_daemon_that_nobody_knows_is_refused(site: Installation) -> None:
    for noun in ("worker", "conductor"):
        code, _, said = site.droveway(noun, "show", "nobody")
        assert (code, f"{noun} nobody is unknown: droveway {noun} list" in said) == (2, True), said


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_hosts_plans_and_books_of_an_installation(site: Installation) -> None:
    """Every command that labs have works on an installation too; the books are compared without the hosts."""
    worker = site.worker("host1")
    site.worker("host2")
    site.conductor()
    until(lambda: states(site) == {"host1": "up", "host2": "up"}, "both workers")
    assert {row["name"]: row["state"] for row in told(site, "host", "list")} == {
        "host1": "up",
        "host2": "up",
        "host3": "down",
    }
    plan = told(site, "move", "plan", "web", "--flavor", "large")
    assert (plan["destination"], plan["alternates"], plan["storage"], plan["bytes"]) == ("host2", [], "unknown", None)
    assert {"host3 is left out: it is down"} <= {check["detail"] for check in plan["checks"]}
    assert site.droveway("move", "plan", "web")[0] == 0

    assert site.droveway("host", "disable", "host2", "--reason", "its disk is slow")[0] == 0
    shown = told(site, "host", "show", "host2")
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "its disk is slow")
    code, _, said = site.droveway("move", "create", "web", "--flavor", "large", "--from-plan", plan["id"])
    assert (code, "no host" in said) == (2, True), said
    assert site.droveway("host", "enable", "host2")[0] == 0
    assert told(site, "host", "show", "host2")["status"] == "enabled"

    worker.kill()
    until(lambda: states(site)["host1"] == "down", "the end of a worker")
    code, _, said = site.droveway("move", "create", "web", "--flavor", "large")
    assert (code, "host1" in said) == (2, True), said
    assert told(site, "debt", "list") == []
    code, said, complained = site.droveway("audit")
    assert (code, said) == (0, ""), complained
    assert "the books balance\nnot compared: what lies on the hosts" in complained
