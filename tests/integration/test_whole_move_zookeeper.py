"""Whole moves over a real ZooKeeper: conductors and workers are processes, killed with SIGKILL and resumed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.labs import snapshot
from support.labs.lab_processes import Effects, Processes, processes, runs_overlap
from support.labs.small_lab import SERVER, assert_balanced, file_flow, history, in_child, read_move, small_cloud, until
from support.labs.snapshot import Snapshot
from support.servers.zookeeper_server import Server, running_server

from droveway.clients.zookeeper import TOMBSTONE
from droveway.lab import build, operations
from droveway.persistence.journal.states import State
from droveway.persistence.nova import catalog

DESTINATIONS = ("host2", "host3")


@pytest.fixture(scope="module", name="server")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    folder = tmp_path_factory.mktemp("moves")
    root = folder / "lab"
    in_child(lambda: build.create(root, small_cloud("host1", *DESTINATIONS, image_mb=48)).close())
    yield snapshot.take(root, folder / "kept")
    build.destroy(root)


@pytest.fixture(name="cast")
def fixture_cast(rest: Snapshot, server: Server) -> Iterator[Processes]:
    with processes(rest, server.hosts) as cast:
        yield cast


@pytest.fixture(scope="module", name="calm")
def fixture_calm(rest: Snapshot, server: Server) -> Effects:
    """What the workers do in a resize in which nobody dies."""
    with processes(rest, server.hosts) as cast:
        cast.start_workers()
        cast.start("conductor")
        move = file_flow(cast.lab, "resize")
        assert cast.await_rest(move) == State.VERIFYING, cast.said("conductor")
        return cast.effects()


def assert_ended(cast: Processes, move: str, state: State, host: str) -> None:
    """The move ended so, nothing is left in ZooKeeper, the books balance, and the server is there and can be used."""
    assert cast.await_rest(move) == state, read_move(cast.lab, move).error
    assert cast.left_over() == []
    assert cast.epoch(move) == TOMBSTONE
    assert_balanced(cast.lab)
    assert not runs_overlap(cast.lab.layout.guests_log)
    found = catalog.find_server(cast.lab.api, cast.lab.cell_databases, SERVER)
    assert (found.host, found.vm_state, found.task_state) == (host, "active", None)
    assert operations.stop_server(cast.lab, SERVER)
    assert operations.start_server(cast.lab, SERVER)
    assert_balanced(cast.lab)


def assert_no_step_ran_twice(cast: Processes, move: str) -> None:
    """Every step has one row a direction: whoever resumed went on with it."""
    runs = [(row.flow, row.step, row.direction) for row in history(cast.lab, move)]
    assert sorted(runs) == sorted(set(runs))


def test_conductors_die_and_workers_do_no_more_than_when_none_does(cast: Processes, calm: Effects) -> None:
    cast.start_workers()
    move = file_flow(cast.lab, "resize")
    for step, phase, number in (
        ("stop_guest", "during", 1),
        ("copy_disks", "during", 2),
        ("switch_records", "after", 1),
    ):
        cast.start(f"killed in {step}", kill=[step, "execute", phase], kill_at=number)
        cast.await_kill(f"killed in {step}")
    cast.start("last")
    assert cast.await_rest(move) == State.VERIFYING, cast.said("last")
    assert cast.left_over() == []
    assert cast.epoch(move) not in (None, TOMBSTONE)
    assert cast.effects() == calm
    assert_no_step_ran_twice(cast, move)
    assert_balanced(cast.lab)


def test_a_move_and_its_confirm_survive_the_deaths_of_conductors_and_workers(cast: Processes, calm: Effects) -> None:
    cast.start_workers(kill=["copy_disks", "execute", "chunk"], kill_at=2)
    # The first command of the step is the source's offer, the second the copy.
    cast.start("first", kill=["copy_disks", "execute", "during"], kill_at=2)
    move = file_flow(cast.lab, "resize")
    cast.await_kill("first")
    destination = cast.await_kill(*DESTINATIONS)
    cast.start("second")
    cast.start(destination, host=destination)
    assert cast.await_rest(move) == State.VERIFYING, cast.said("second")
    assert read_move(cast.lab, move).dest_host == destination
    assert_no_step_ran_twice(cast, move)
    assert cast.effects().keys() == calm.keys()
    assert_balanced(cast.lab)

    cast.stop("host1")
    cast.start("host1", host="host1", kill=["discard_source", "execute", "delete"])
    cast.await_worker("host1")
    file_flow(cast.lab, "confirm")
    cast.await_kill("host1")
    cast.start("host1", host="host1")
    assert_ended(cast, move, State.DONE, destination)


def test_an_undo_survives_the_deaths_of_conductors_and_workers(cast: Processes) -> None:
    cast.start_workers(kill=["copy_disks", "revert", "delete"])
    cast.start("first", kill=["switch_records", "revert", "after"], fail="start_guest")
    move = file_flow(cast.lab, "resize")
    cast.await_kill("first")
    cast.start("second", kill=["set_aside", "revert", "during"], fail="start_guest")
    destination = cast.await_kill(*DESTINATIONS)
    cast.start(destination, host=destination)
    cast.await_kill("second")
    cast.start("third", fail="start_guest")
    other = cast.await_kill(*DESTINATIONS)
    assert other != destination
    cast.start(other, host=other)
    assert_ended(cast, move, State.FAILED, "host1")


def test_a_revert_survives_the_deaths_of_conductors_and_workers(cast: Processes) -> None:
    cast.start_workers()
    cast.start("first", kill=["restore_disks", "execute", "during"])
    move = file_flow(cast.lab, "resize")
    assert cast.await_rest(move) == State.VERIFYING, cast.said("first")
    cast.stop("host1")
    cast.start("host1", host="host1", kill=["start_guest", "execute", "started"])
    cast.await_worker("host1")
    file_flow(cast.lab, "revert")
    cast.await_kill("first")
    cast.start("second")
    cast.await_kill("host1")
    cast.start("host1", host="host1")
    assert_ended(cast, move, State.REVERTED, "host1")
    assert_no_step_ran_twice(cast, move)


def test_a_move_goes_on_when_zookeeper_is_wiped_in_the_middle_of_it(cast: Processes) -> None:
    cast.start_workers(kill=["copy_disks", "execute", "chunk"], kill_at=2)
    cast.start("conductor")
    move = file_flow(cast.lab, "resize")
    destination = cast.await_kill(*DESTINATIONS)
    cast.wipe()
    cast.start(destination, host=destination)
    assert cast.await_rest(move) == State.VERIFYING, cast.said("conductor")
    assert read_move(cast.lab, move).dest_host == destination
    assert_no_step_ran_twice(cast, move)
    file_flow(cast.lab, "confirm")
    assert_ended(cast, move, State.DONE, destination)


def test_daemons_end_though_zookeeper_is_away_and_the_next_ones_go_on(cast: Processes, server: Server) -> None:
    cast.start_workers(kill=["copy_disks", "execute", "chunk"], kill_at=2)
    cast.start("conductor")
    move = file_flow(cast.lab, "resize")
    destination = cast.await_kill(*DESTINATIONS)
    server.kill()
    cast.stop("host1")
    cast.stop("conductor")
    server.start()
    until(cast.session.live, "ZooKeeper")
    cast.start("host1", host="host1")
    cast.start(destination, host=destination)
    cast.start("conductor")
    assert cast.await_rest(move) == State.VERIFYING, cast.said("conductor")
    assert_no_step_ran_twice(cast, move)
    file_flow(cast.lab, "revert")
    assert_ended(cast, move, State.REVERTED, "host1")
