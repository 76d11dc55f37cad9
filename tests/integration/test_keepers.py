"""Two conductors as daemons: the keeper of one leads, until it dies or sleeps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs.small_lab import assert_balanced, file_flow, in_child, read_move, small_cloud, until
from support.servers import zookeeper_server

from droveway.clients.zookeeper import BOARD
from droveway.engines.keeper.election import LEADER
from droveway.lab import build
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Installation]:
    in_child(lambda: build.create(tmp_path / "lab", small_cloud("host1", "host2")).close())
    lab = Lab.open(tmp_path / "lab")
    with (
        zookeeper_server.running_server(tmp_path / "zookeeper") as server,
        installation(lab, tmp_path, server.hosts, None) as made,
    ):
        yield made
    lab.close()
    build.destroy(tmp_path / "lab")


def leads(daemon: Daemon) -> bool:
    return "The keeper of this process leads" in daemon.log.read_text()


def two(site: Installation) -> tuple[Daemon, Daemon]:
    """Two conductors, of which the first leads."""
    first = site.conductor("first")
    until(lambda: leads(first), "a leader", LONG)
    return first, site.conductor("second")


def test_another_keeper_offers_what_is_asked_once_the_leader_is_dead(site: Installation) -> None:
    first, second = two(site)
    assert not leads(second)
    first.kill()
    move = file_flow(site.lab, "resize")
    until(lambda: leads(second), "another leader", LONG)
    until(lambda: read_move(site.lab, move).flow_uuid in site.session.children(BOARD), "its flow on the board", LONG)


def test_a_leader_that_slept_does_no_harm_and_follows(site: Installation) -> None:
    """Its session is gone, and it wakes up in the middle of what another keeper has decided meanwhile."""
    site.workers()
    first, second = two(site)
    owner = site.session.owner(LEADER)
    first.process.send_signal(signal.SIGSTOP)
    move = file_flow(site.lab, "resize")
    until(lambda: leads(second), "another leader", LONG)
    site.await_step(move, "copy_disks")
    first.process.send_signal(signal.SIGCONT)
    until(lambda: "Another process leads now" in first.log.read_text(), "that it notices", LONG)
    assert site.await_rest(move) == State.VERIFYING, second.text()
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE, second.text()
    assert site.session.owner(LEADER) not in (None, owner)
    assert first.log.read_text().count("The keeper of this process leads") == 1
    assert_balanced(site.lab)
    second.stop()
    until(lambda: first.log.read_text().count("The keeper of this process leads") == 2, "that it leads again", LONG)
