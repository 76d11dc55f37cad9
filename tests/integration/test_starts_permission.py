"""A guest is started by a permission that is young: who slept between the proof and the start starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, Workers, stage

from droveway.engines.conductor import fencing
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import StepError
from droveway.flows.steps.hosts import starting
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import Instance, Migration
from droveway.workers import permission

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


class Clock:
    """The workers' clock: it goes on by as much as somebody slept."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._slept = 0.0
        patched.setattr(permission, "_now", lambda: time.monotonic() + self._slept)

    def sleep(self) -> None:
        """Longer than half a session."""
        self._slept += 5.1


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def evacuate(lab: Stage) -> None:
    """What Nova writes once it has rebuilt the server on host3."""
    server = lab.id_of("web")
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(
            Migration(
                uuid="4f6f1f2e-0000-4000-8000-000000000001",
                instance_uuid=server,
                migration_type="evacuation",
                status="done",
                source_compute="host1",
                dest_compute="host3",
                deleted=0,
            )
        )
        new = {"host": "host3", "node": "host3", "task_state": None, "vm_state": "active"}
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(**new))


class Once:
    """Does something at the first start of a guest in this step and direction, right before it."""

    def __init__(self, step: str, direction: str, does: Callable[[], None]) -> None:
        self._at, self._does = (step, direction), does
        self.times = 0

    def __call__(self, step: str, direction: str, _phase: str, effect: str) -> None:
        if (step, direction) == self._at and effect == "start":
            self.times += 1
            if self.times == 1:
                self._does()


def fails_at(step: str) -> Callable[[str, str, str, str], None]:
    def probe(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, "execute", "before"):
            raise StepError("it fails", code="test")

    return probe


def verifying(lab: Stage) -> str:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    assert move_requests.read_move(lab.lab, move).state == "verifying"
    return move


def begin(lab: Stage, way: str) -> tuple[str, str, str, Any]:
    """The move, the host and the direction of a start in this flow, and the probe that lets it come to that."""
    if way in ("forward", "undo"):
        move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    else:
        move = verifying(lab)
        move_requests.file_request(lab.lab, move, move_requests.revert)
    host = "host2" if way in ("forward", "revert-undo") else "host1"
    probe = {"undo": fails_at("define_guest"), "revert-undo": fails_at("prepare_source_guest")}.get(way)
    return move, host, "revert" if probe else "execute", probe


WAYS = ["forward", "undo", "revert", "revert-undo"]


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_slept_starts_nothing_of_what_was_given_to_others(lab: Stage, clock: Clock, way: str) -> None:
    """It wakes with its command, its claim and its session all standing, and Nova has evacuated the server."""
    move, host, direction, probe = begin(lab, way)
    before = lab.starts("web")

    def sleep() -> None:
        evacuate(lab)
        clock.sleep()

    step = "start_guest" if direction == "execute" else "stop_guest"
    slept = Once(step, direction, sleep)
    with lab.running(probe, workers={host: slept}):
        move_requests.carry(lab.lab, move)
    assert slept.times == 1
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert lab.starts("web") == before


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_slept_for_nothing_is_asked_again(lab: Stage, clock: Clock, way: str) -> None:
    """The refusal is in the history, and the guest is started by the next permission."""
    move, host, direction, probe = begin(lab, way)
    before = lab.starts("web")
    step = "start_guest" if direction == "execute" else "stop_guest"
    slept = Once(step, direction, clock.sleep)
    with lab.running(probe, workers={host: slept}):
        move_requests.carry(lab.lab, move)
    assert slept.times == 2
    assert lab.starts("web") == [*before, host]
    errors = [row.error for row in lab.history(move) if (row.step, row.direction) == (step, direction) and row.error]
    assert [error["code"] for error in errors] == ["permission-void"]
    assert "the permission to start the guest" in errors[0]["message"]
    assert lab.standing("web").runs == [host]


def test_a_worker_that_always_sleeps_is_a_destination_that_failed(lab: Stage, clock: Clock) -> None:
    """It is proved that the guest never started there: the next alternate is tried."""
    before = lab.starts("web")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host=None)).id
    first: list[str] = []

    def sleep(host: str) -> Callable[[str, str, str, str], None]:
        def probe(step: str, direction: str, _phase: str, effect: str) -> None:
            if (step, direction, effect) == ("start_guest", "execute", "start"):
                first.append(host)
                if host == first[0]:
                    clock.sleep()

        return probe

    with lab.running(workers={host: sleep(host) for host in ("host2", "host3")}):
        move_requests.carry(lab.lab, move)
    other = ({"host2", "host3"} - {first[0]}).pop()
    assert first == [first[0]] * 40 + [other]
    assert lab.starts("web") == [*before, "host1", other]
    assert lab.standing("web").runs == [other]


@pytest.mark.parametrize("taken_over", [False, True], ids=["keeps-its-claim", "taken-over"])
@pytest.mark.parametrize("way", WAYS)
def test_a_conductor_that_slept_over_its_proof_starts_nothing(
    lab: Stage, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str, taken_over: bool
) -> None:
    """It sleeps after it has read the rows and asked the other host, before it posts the command."""
    move, host, _, probe = begin(lab, way)
    before = lab.starts("web")
    slept: list[str] = []
    proves = starting.prove_off
    workers: Workers

    def prove_and_sleep(ctx: Any, at: str, other: str) -> None:
        proves(ctx, at, other)
        if not slept:
            slept.append(at)
            evacuate(lab)
            clock.sleep()
            if taken_over:
                epoch = fencing.claim(lab.lab.journal, move, "another")
                fencing.mirror(workers.session(), move, epoch)
                fencing.release(lab.lab.journal, move, epoch)

    monkeypatch.setattr(starting, "prove_off", prove_and_sleep)
    with lab.running(probe) as workers:
        move_requests.carry(lab.lab, move)
    assert slept == [host]
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert lab.starts("web") == before


def test_a_destination_asks_the_source_before_it_starts_the_guest(lab: Stage) -> None:
    """Somebody started the guest there by hand after the flow had shut it down."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    hypervisor = lab.lab.hypervisor("host1")
    done: list[Move] = []

    def meet(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("start_guest", "execute", "before") and not done:
            done.append(move_requests.read_move(lab.lab, move))
            lab.directory("host1", "web", "_resize").rename(lab.directory("host1", "web"))
            hypervisor.start(lab.id_of("web"), lambda: None)

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("needs-operator", "runs-elsewhere")
    assert lab.standing("web").runs == ["host1"]
    hypervisor.stop(lab.id_of("web"), grace=0.0, fence=lambda: None)
    lab.directory("host1", "web").rename(lab.directory("host1", "web", "_resize"))
    lab.cli("move", "retry", move)
    assert lab.standing("web").runs == ["host2"]


def test_a_source_that_is_away_is_waited_for_unless_somebody_declared_it_down(lab: Stage) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id

    def die(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("start_guest", "execute", "before") and "host1" not in gone:
            gone.append("host1")
            workers.stop("host1")

    gone: list[str] = []
    with lab.running(die) as workers:
        move_requests.carry(lab.lab, move)
        rests = move_requests.read_move(lab.lab, move)
        assert (rests.state, rests.error_code) == ("needs-operator", "host-unreachable")
        assert lab.standing("web").runs == []
        with lab.lab.cell_databases["cell1"].write() as session:
            session.execute(sa.text("UPDATE services SET forced_down = 1 WHERE host = 'host1'"))
        move_requests.file_request(lab.lab, move, requests.retry)
        move_requests.carry(lab.lab, move)
    assert move_requests.read_move(lab.lab, move).state == "verifying"
    assert lab.standing("web").runs == ["host2"]
