"""Conductors over one ZooKeeper, each paused at another step and given up, while the last one finishes the move."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from support.labs import snapshot
from support.labs.small_lab import (
    assert_balanced,
    differences,
    file_flow,
    in_child,
    is_released,
    lose,
    picture,
    read_move,
    small_cloud,
    until,
)
from support.two_faults import storages

from droveway.clients.zookeeper import BOARD, ROOT, Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines import start
from droveway.engines.conductor.conductor import Conductor
from droveway.engines.conductor.run import Probe
from droveway.errors import DestinationFault
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab import build, runner
from droveway.lab.cloud import Cloud
from droveway.lab.session import Lab
from droveway.persistence.journal import kinds
from droveway.persistence.journal.tables import Claim
from droveway.workers.daemon import Worker

_REGISTERED = f"{ROOT}/.entities/"

Phase = Literal["before", "during", "after", "stored"]


@dataclasses.dataclass(frozen=True)
class Relay:
    """A flow in which at every one of ``steps`` a conductor is paused and the next one takes over."""

    kind: str
    direction: str
    phase: Phase
    steps: tuple[str, ...]
    then: str = ""
    """The flow that ends as well before any of them wakes up."""
    keep_image: bool = False
    """Whether the move keeps an image of each disk until its end."""

    def __str__(self) -> str:
        return "-".join(part for part in (self.kind, self.direction, self.phase, self.then) if part)


def relay(kind: str, direction: str, phase: Phase, then: str = "") -> Relay:
    """The relay over every atom of the graph; ``during`` holds only where a worker is asked."""
    graph = registry.latest(kind)
    names = graph.names()
    if direction == "revert":
        names = names[: names.index(graph.no_return.step_name())][::-1]
    if phase == "during":
        asking = {
            step.step_name()
            for step in graph.walk()
            if step.where is not Where.CONDUCTOR and (direction == "execute" or not step.no_undo)
        }
        names = [name for name in names if name in asking]
    return Relay(kind, direction, phase, tuple(names), then)


class Bench:
    """One small lab, put back before each relay."""

    def __init__(self, folder: Path, wanted: Cloud | None = None) -> None:
        self.root = folder / "lab"
        in_child(lambda: build.create(self.root, wanted or small_cloud("host1", "host2")).close())
        self.rest = snapshot.take(self.root, folder / "kept")

    def close(self) -> None:
        """Remove the lab and stop its guests."""
        build.destroy(self.root)

    def run(self, given: Relay) -> None:
        """Nothing takes effect for any conductor but the last."""
        self.rest.restore()
        in_child(lambda: Scene(self.root, given).play())


@contextlib.contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """A bench in this folder."""
    made = Bench(folder)
    try:
        yield made
    finally:
        made.close()


class _Pause:
    """A conductor's probe: holds the thread that runs the step, once."""

    def __init__(self, step: str, given: Relay, otherwise: Probe) -> None:
        self.step = step
        self._at = (step, given.direction, given.phase)
        self._otherwise = otherwise
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == self._at and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait()
        self._otherwise(move, step, direction, phase)


class Scene:
    """One relay, run in a process of its own."""

    def __init__(self, root: Path, given: Relay) -> None:
        self._lab = Lab.open(root)
        self._store = embedded_store()
        self._relay = given
        self._no_return = registry.latest(given.kind).no_return.step_name()
        self._workers: dict[str, Worker] = {}

    def _begin(self) -> str:
        """Ask for the flow, with workers that are up and nobody who runs it; its move."""
        self._start_workers()
        start.keeper(self._lab, self._session())
        record = kinds.of(self._relay.kind)
        if record.ends_wait:
            self._carry("resize")
        for host in storages.dead_before(self._relay.kind):
            lose(self._lab, self._workers[host])
        if record.begins_offloaded:
            self._carry("shelve")
        return self._file()

    def play(self) -> None:
        """Nothing takes effect for any conductor but the last."""
        move = self._begin()
        stale = [self._paused_at(step) for step in self._relay.steps]
        epoch = self._epoch(move)
        last = runner.start_conductor(self._lab, self._session(), probe=self._failing)
        self._rest(move, last)
        ending = kinds.of(self._relay.kind).ending(done=self._relay.direction != "revert")
        assert read_move(self._lab, move).state == ending.state
        assert self._epoch(move) > epoch
        if self._relay.then:
            file_flow(self._lab, self._relay.then)
            self._rest(move, last)
        before = self._picture()
        for conductor, pause in stale:
            assert conductor.busy() == 1
            pause.go_on.set()
            self._await_idle(conductor, pause.step)
            assert differences(before, self._picture()) == [], f"the conductor that was paused at {pause.step}"
        assert_balanced(self._lab)

    def _await_idle(self, conductor: Conductor, step: str) -> None:
        until(lambda: conductor.busy() == 0, f"the end of the stale run at {step}")

    def _start_workers(self) -> None:
        session = self._session()
        for host in self._lab.identity.hosts:
            self._workers[host] = runner.start_worker(self._lab, host, self._session())
            until(functools.partial(session.get, worker_path(host)), f"the worker of {host}")

    def _carry(self, kind: str) -> None:
        """Carry what comes before the flow of the relay to its end."""
        move = self._file(kind)
        conductor = runner.start_conductor(self._lab, self._session())
        self._rest(move, conductor)
        assert read_move(self._lab, move).state == kinds.of(kind).ending(done=True).state
        conductor.stop()

    def _file(self, kind: str = "") -> str:
        """Ask for the flow of the relay, or for the one that comes before it."""
        to_cell = storages.cell_of_destination(self._relay.kind)
        return file_flow(self._lab, kind or self._relay.kind, keep_image=self._relay.keep_image, to_cell=to_cell)

    def _paused_at(self, step: str) -> tuple[Conductor, _Pause]:
        """A conductor that runs up to the step; ZooKeeper gave its session up, and it came back with a new one."""
        pause = _Pause(step, self._relay, self._failing)
        session = self._session()
        conductor = runner.start_conductor(self._lab, session, probe=pause)
        until(pause.reached.is_set, f"the pause {self._relay.phase} {step}")
        # As a whole it is paused, so it claims nothing more either; once awake its new session lets it do anything.
        conductor.board.claimable = lambda _posting: False
        lost = session.session
        session.client.restart()
        assert session.session not in (None, lost)
        return conductor, pause

    def _session(self) -> Coordination:
        return connect_embedded(self._store)

    def _rest(self, move: str, last: Conductor) -> None:
        until(lambda: is_released(self._lab, move), f"the end of {read_move(self._lab, move).state}")
        until(lambda: last.busy() == 0 and self._store.get_children(BOARD) == {}, "an empty board")

    def _epoch(self, move: str) -> int:
        with self._lab.journal.read() as session:
            return session.get_one(Claim, move).epoch

    def _failing(self, _move: str, step: str, direction: str, phase: str) -> None:
        """Where the undo is wanted, the point of no return is proved not to have been passed."""
        if self._relay.direction == "revert" and (step, direction, phase) == (self._no_return, "execute", "before"):
            raise DestinationFault("the guest was never started", code="fault")

    def _picture(self) -> dict[str, Any]:
        """Read all there is but the names by which conductors register: each does so when its thread comes to it.

        They end with its session, and nobody reads them.
        """
        found = self._store.get_children(ROOT, False).items()
        nodes = {path: (node["data"], node["version"]) for path, node in found if not path.startswith(_REGISTERED)}
        return {**picture(self._lab.layout), **nodes}
