"""An ensemble that has lost most of its members, the last of which serves sessions that only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from support.daemons.daemons import LONG, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, file_flow, history, in_child, is_released, read_move, until
from support.servers.zookeeper_server import Ensemble, running_ensemble

from droveway.clients.zookeeper import worker_path
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import build, cloud
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.states import State

LOOPS = (
    "The keeper waits for ZooKeeper or a database",
    "The journal's rows of daemons wait for ZooKeeper or a database",
    "The collector of debts waits for ZooKeeper or a database",
)
"""What the conductor's loops say once a minute while they need ZooKeeper, and it is away."""

CLOUD = """
cells: {cell1: {hosts: {host1: &host {vcpus: 8, memory_mb: 2048, disk_gb: 10}, host2: *host}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 48}}
servers:
  web: &server {flavor: small, host: host1, image: base}
  db: *server
"""


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[snapshot.Snapshot]:
    folder = tmp_path_factory.mktemp("read-only")
    in_child(lambda: build.create(folder / "lab", cloud.parse_cloud(CLOUD, "read-only")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="ensemble")
def fixture_ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    with running_ensemble(tmp_path / "zookeeper", serves_readers=True) as ensemble:
        yield ensemble


@pytest.fixture(name="site")
def fixture_site(rest: snapshot.Snapshot, ensemble: Ensemble, tmp_path: Path) -> Iterator[Installation]:
    lab = rest.restore()
    with installation(lab, tmp_path, ensemble.hosts, None) as made:
        yield made
    lab.close()


def begun(site: Installation, *moves: str) -> list[tuple[str, str]]:
    """Every step that was begun of these moves."""
    return [(row.step, row.direction) for move in moves for row in history(site.lab, move)]


def assert_serves_readers(hosts: str) -> None:
    """Who asks for a session that only reads gets one."""
    client = KazooClient(hosts, read_only=True)
    client.start(LONG)
    try:
        assert client.client_state == KeeperState.CONNECTED_RO
        assert client.exists("/droveway") is not None
    finally:
        client.stop()
        client.close()


def test_no_daemon_takes_a_session_that_only_reads_for_a_healthy_one(site: Installation, ensemble: Ensemble) -> None:
    """Each loop of the conductor says that it waits; nothing starts until most of the members are back."""
    site.workers()
    conductor = site.conductor()
    first = file_flow(site.lab, "resize")
    site.await_step(first, "copy_disks")
    last, *others = ensemble.servers
    for server in others:
        server.kill()
    until(last.only_reads, "a server that only reads", LONG)
    assert_serves_readers(last.hosts)
    second = submit(site.lab, MoveSpec(server="db", flavor="large")).id
    for loop in LOOPS:
        until(lambda said=loop: said in conductor.log.read_text(), loop, LONG)
    waits = begun(site, first, second)
    code, _, complained = site.droveway("conductor", "run")
    assert code != 0
    assert "no ZooKeeper answers" in complained
    assert begun(site, first, second) == waits
    assert read_move(site.lab, second).state == State.QUEUED
    said = conductor.log.read_text()
    assert {loop: said.count(f"{loop}: ") for loop in LOOPS} == dict.fromkeys(LOOPS, 1), said
    assert "Traceback" not in said

    # A move that begins before its only destination is back would find no host.
    with site.lab.journal.write() as session:
        requests.pause(session, moves.get(session, second, lock=True))
    ensemble.start(*others)
    until(lambda: is_released(site.lab, first), "the end of the first move", 2 * LONG)
    up = [worker_path(host) for host in ("host1", "host2")]
    until(lambda: all(site.session.get(path) is not None for path in up), "that the workers are back", LONG)
    with site.lab.journal.write() as session:
        requests.resume(session, moves.get(session, second, lock=True))
    for move in (first, second):
        until(lambda moved=move: is_released(site.lab, moved), "the end of the move", 2 * LONG)
        assert read_move(site.lab, move).state == State.VERIFYING, conductor.text()
    for loop in LOOPS:
        until(lambda over=loop: f"{over} no longer" in conductor.log.read_text(), "that it goes on", LONG)
    assert_balanced(site.lab)
