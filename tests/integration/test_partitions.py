"""Daemons that are cut off from ZooKeeper, and from nothing else, in the middle of a move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons.daemons import LONG, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, file_flow, history, in_child, read_move, small_cloud, until
from support.servers.proxy import Proxy, running_proxy
from support.servers.zookeeper_server import Server, running_server

from droveway.clients.zookeeper import worker_path
from droveway.lab import build
from droveway.persistence.journal.states import State


@pytest.fixture(scope="module", name="zookeeper")
def fixture_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[snapshot.Snapshot]:
    folder = tmp_path_factory.mktemp("partitions")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2", image_mb=48)).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(rest: snapshot.Snapshot, zookeeper: Server, tmp_path: Path) -> Iterator[Installation]:
    lab = rest.restore()
    with installation(lab, tmp_path, zookeeper.hosts, None) as made:
        yield made
    lab.close()


@pytest.fixture(name="line")
def fixture_line(zookeeper: Server) -> Iterator[Proxy]:
    """What one of the daemons reaches ZooKeeper by."""
    host, port = zookeeper.hosts.split(":")
    with running_proxy((host, int(port))) as proxy:
        yield proxy


def over(line: Proxy) -> dict[str, str]:
    """The environment of a daemon that has no other line."""
    return {"OS_ZOOKEEPER__HOSTS": f"127.0.0.1:{line.port}"}


def rows(site: Installation, move: str) -> list[tuple[object, ...]]:
    """All that is known of the move's steps."""
    return [
        (row.seq, row.flow, row.step, row.direction, row.epoch, row.started_at, row.ended_at, repr(row.error))
        for row in history(site.lab, move)
    ]


@pytest.mark.parametrize("how", ["stall", "cut"])
def test_a_conductor_that_is_cut_off_has_no_effect_while_another_finishes(
    site: Installation, line: Proxy, how: str
) -> None:
    """It reaches the journal all the time; back again it takes up other work."""
    site.workers()
    first = site.conductor("first", **over(line))
    move = file_flow(site.lab, "resize")
    site.await_step(move, "copy_disks")
    getattr(line, how)()
    second = site.conductor("second")
    assert site.await_rest(move) == State.VERIFYING, first.text() + second.text()
    ended = rows(site, move)
    epochs = [row[4] for row in ended]
    assert epochs == sorted(epochs), "none of the first's after one of the second's"
    assert len(set(epochs)) == 2
    assert first.process.poll() is None
    line.heal()
    second.stop()
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE, first.text()
    assert [row for row in rows(site, move) if row[1] == "resize"] == ended
    assert_balanced(site.lab)
    assert "Traceback" not in first.log.read_text(), first.text()


def test_a_worker_that_is_cut_off_while_disks_are_copied_goes_on_when_it_is_back(
    site: Installation, line: Proxy
) -> None:
    """Its session ends, so that it makes nothing final until then; no step runs twice."""
    site.worker("host1")
    destination = site.worker("host2", **over(line))
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    site.await_step(move, "copy_disks")
    line.stall()
    until(lambda: site.session.get(worker_path("host2")) is None, "the end of its session", LONG)
    assert read_move(site.lab, move).state == State.RUNNING
    line.heal()
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    steps = [(row.step, row.direction) for row in history(site.lab, move)]
    assert len(steps) == len(set(steps))
    assert_balanced(site.lab)
    assert "Traceback" not in destination.log.read_text(), destination.text()
