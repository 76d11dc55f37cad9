"""Daemons whose Placement, Neutron or Cinder falls silent in the middle of a move: no flow hangs in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, file_flow, history, in_child, read_move, small_cloud, until
from support.servers.proxy import Proxy, running_proxy
from support.servers.zookeeper_server import Server, running_server

from droveway.lab import build
from droveway.persistence.journal.states import State

STEP_DEADLINE = 3
"""Seconds; the time-out of a request is a minute."""

AT = {
    "claim": ("placement", b"POST /placement/allocations"),
    "reserve_ports": ("network", b"POST /network/"),
    "move_ports": ("network", b"/activate"),
    "reserve_volumes": ("volume", b"POST /volume/"),
    "move_volumes": ("volume", b"DELETE /volume/"),
}
"""The service that falls silent in a step of a resize, and at which of the step's requests."""


@pytest.fixture(scope="module", name="zookeeper")
def fixture_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[snapshot.Snapshot]:
    folder = tmp_path_factory.mktemp("silent")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


class Site:
    """An installation whose conductor reaches its services through a proxy."""

    def __init__(self, made: Installation, line: Proxy) -> None:
        self.made = made
        self.lab = made.lab
        self.line = line

    def conductor(self, **environment: str) -> Daemon:
        root = f"http://127.0.0.1:{self.line.port}"
        return self.made.conductor(
            OS_CONDUCTOR__STEP_DEADLINE=str(STEP_DEADLINE),
            OS_PLACEMENT__ENDPOINT=f"{root}/placement",
            OS_NEUTRON__ENDPOINT_OVERRIDE=f"{root}/network",
            OS_CINDER__ENDPOINT_OVERRIDE=f"{root}/volume",
            **environment,
        )

    def await_tries(self) -> None:
        """Wait until a try of a step has passed its deadline and another is under way, twice."""
        until(lambda: self.line.unanswered >= 3, "requests without an answer", LONG)

    def answer_again(self, *, heard: bool) -> None:
        """Let the services answer; what they have not heard they never will."""
        if not heard:
            self.line.cut()
        self.line.heal()


@pytest.fixture(name="site")
def fixture_site(rest: snapshot.Snapshot, zookeeper: Server, tmp_path: Path) -> Iterator[Site]:
    lab = rest.restore()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(installation(lab, tmp_path, zookeeper.hosts, None))
        address = made.cloud.server_address
        line = stack.enter_context(running_proxy((str(address[0]), int(address[1]))))
        made.workers()
        yield Site(made, line)
        line.heal()
    lab.close()


@pytest.mark.parametrize(
    ("step", "heard"),
    [*((step, True) for step in AT), *((step, False) for step in ("claim", "move_ports", "move_volumes"))],
    ids=lambda value: value if isinstance(value, str) else "answers-lost" if value else "requests-lost",
)
def test_a_resize_is_undone_when_a_service_falls_silent_in_it(site: Site, step: str, heard: bool) -> None:
    """The step fails at its deadline, and says so; each undo is tried until the service answers again."""
    service, at = AT[step]
    conductor = site.conductor()
    site.line.fall_silent(at, heard=heard)
    move = file_flow(site.lab, "resize")
    site.await_tries()
    assert read_move(site.lab, move).state == State.UNDOING
    site.answer_again(heard=heard)
    assert site.made.await_rest(move) == State.FAILED, conductor.text()
    failed = [(row.step, row.direction, row.error) for row in history(site.lab, move) if row.error]
    name = {"placement": "Placement"}.get(service, service)
    assert [(row[0], row[1], row[2]["code"]) for row in failed] == [(step, "execute", f"{service}-overdue")]
    assert (
        f"step {step} waited for the {name} service until its deadline of {STEP_DEADLINE} s"
        in (failed[0][2]["message"])
    )
    assert_balanced(site.lab)
    assert "Traceback" not in conductor.log.read_text(), conductor.text()


def test_beyond_the_point_of_no_return_a_move_goes_on_once_the_service_answers_again(site: Site) -> None:
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    assert site.made.await_rest(move) == State.VERIFYING, conductor.text()
    site.line.fall_silent(b"/placement/allocations", heard=False)
    file_flow(site.lab, "confirm")
    site.await_tries()
    assert read_move(site.lab, move).state == State.CONFIRMING
    site.answer_again(heard=False)
    assert site.made.await_rest(move) == State.DONE, conductor.text()
    assert [row.step for row in history(site.lab, move) if row.error] == []
    assert_balanced(site.lab)


def test_it_rests_for_an_operator_once_it_was_tried_for_long_enough(site: Site) -> None:
    conductor = site.conductor(OS_CONDUCTOR__RETRY_FOR="0")
    move = file_flow(site.lab, "resize")
    assert site.made.await_rest(move) == State.VERIFYING, conductor.text()
    site.line.fall_silent(b"/placement/allocations", heard=True)
    file_flow(site.lab, "confirm")
    until(lambda: read_move(site.lab, move).state == State.NEEDS_OPERATOR, "that it rests", LONG)
    assert read_move(site.lab, move).error_code == "placement-overdue"
    site.answer_again(heard=True)
    site.made.done("move", "retry", move)
    assert site.made.await_rest(move) == State.DONE, conductor.text()
    assert_balanced(site.lab)
