"""A worker that sleeps before one of its effects, or a conductor at one of its steps or before one of its writes.

Many sleep in one run: each is given up and replaced by the next, which falls asleep at another place, until the last
one carries the move to its end.  Once all is over they wake, one after another, and none may change what the others
left.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from proofs import scratch
from support.daemons import stale_relay
from support.daemons.stale_relay import Relay, relay
from support.labs.small_lab import differences, file_flow, in_child, is_released, lose, picture, read_move, until
from support.two_faults import conductor_sleeps, shelved, storages
from support.two_faults.shelved import Watch
from support.two_faults.world import Verdict

from droveway.clients.zookeeper import BOARD, ROOT, Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines import start
from droveway.errors import DestinationFault
from droveway.flows import registry
from droveway.lab import runner
from droveway.lab.layout import Layout
from droveway.lab.session import Lab
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.workers.daemon import Worker

KIND: Final = "sleeps"

THENS: Final = ("once", "again")
"""Whether they wake when that has ended, or when another move of the server has followed."""
PHASES: Final = ("before", "during", "after", "stored")


def points() -> list[str]:
    """Every effect of a worker and every write of a conductor that a dry run of each operation meets.

    Besides every phase of each step of a conductor.
    """
    return [*_points_of_workers(), *points_of_conductors(), *_points_of_writers()]


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Run the points of one operation together: its sleepers follow each other."""
    wanted = [text.split(":") for text in points]
    for storage in storages.STORAGES:
        for who in ("worker", "conductor"):
            mine = [words for words in wanted if words[:2] == [who, storage]]
            if mine:
                yield from _run_together(folder / f"{who}-{storage}", storage, mine)
        writers = [words for words in wanted if words[:2] == [conductor_sleeps.WHO, storage]]
        if writers:
            with conductor_sleeps.bench(folder / f"writer-{storage}", storage) as made:
                yield from conductor_sleeps.run(made, KIND, writers)


class Bench(stale_relay.Bench):
    """A lab with a neighbour, put back before each run."""

    def __init__(self, folder: Path, storage: str) -> None:
        super().__init__(folder, storages.cloud_of(storage))
        self._keep_image = storages.keeps_images(storage)
        # However busy the machine is, the next worker of a host is there before it is taken for gone.
        with Layout(self.rest.kept).configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 600\n")

    def awake(self, kind: str, direction: str, then: str, places: Collection[str]) -> dict[str, str]:
        """What the workers did that slept at these places, by place; "" for nothing."""
        return self._told(kind, direction, then, places)[0]

    def effects(self, kind: str, direction: str) -> list[str]:
        """The places by which its workers come."""
        return self._told(kind, direction, "once", ())[1]

    def _told(self, kind: str, direction: str, then: str, places: Collection[str]) -> tuple[dict[str, str], list[str]]:
        self.rest.restore()
        answer = self.root.with_name("answer.json")

        def play() -> None:
            scene = Scene(self.root, kind, direction, places, keep_image=self._keep_image)
            told = scene.play(then)
            answer.write_text(json.dumps([told, scene.passed]))

        in_child(play, conductor_sleeps.CHILD_SECONDS)
        told, passed = json.loads(answer.read_text())
        return told, passed


class Sleeper:
    """A worker that sleeps at its place."""

    def __init__(self, worker: Worker, thread: threading.Thread) -> None:
        self.worker = worker
        self.thread = thread
        self.go_on = threading.Event()


class Scene:
    """One operation in a process of its own."""

    def __init__(
        self, root: Path, kind: str, direction: str, places: Collection[str], *, keep_image: bool = False
    ) -> None:
        self.passed: list[str] = []
        self._lab = Lab.open(root)
        self._store = embedded_store()
        self._kind = kind
        self._direction = direction
        self._keep_image = keep_image
        self._left = set(places)
        self._wanted = list(places)
        self._asleep: dict[str, Sleeper] = {}
        self._workers: dict[str, Worker] = {}
        self._lock = threading.Lock()
        self._is_watched = False
        self._no_return = registry.latest(kind).no_return.step_name()

    def play(self, then: str) -> dict[str, str]:
        """What each sleeper changed once awake."""
        watch = Watch(self._lab.layout.root)
        keeping = self._session()
        for host in self._lab.identity.hosts:
            self._start_worker(host)
            until(functools.partial(keeping.get, worker_path(host)), f"the worker of {host}")
        start.keeper(self._lab, keeping)
        self._conductor = runner.start_conductor(self._lab, self._session(), probe=self._failing)
        if kinds.of(self._kind).ends_wait:
            self._carry("resize", keep_image=self._keep_image, to_cell=storages.cell_of_destination(self._kind))
        for host in storages.dead_before(self._kind):
            lose(self._lab, self._workers[host])
        if kinds.of(self._kind).begins_offloaded:
            self._carry("shelve")
        self._is_watched = True
        move = self._carry(self._kind, keep_image=self._keep_image)
        self._is_watched = False
        ending = kinds.of(self._kind).ending(done=self._direction != "revert")
        assert read_move(self._lab, move).state == ending.state
        if then == "again":
            if read_move(self._lab, move).state == State.VERIFYING:
                self._carry(storages.alike(self._kind, "confirm"))
            move = self._carry(shelved.next_move(self._lab.layout.root, read_move(self._lab, move).server))
        return self._wake(watch, move)

    def _wake(self, watch: Watch, move: str) -> dict[str, str]:
        server, state = read_move(self._lab, move).server, read_move(self._lab, move).state
        verifying = state == State.VERIFYING
        told = {place: "it never came there" for place in self._wanted if place not in self._asleep}
        before = self._picture()
        for place, sleeper in self._asleep.items():
            sleeper.go_on.set()
            sleeper.thread.join()
            now = self._picture()
            told[place] = "; ".join(differences(before, now))
            before = now
        dead = storages.dead_before(self._kind)
        if wrong := watch.trouble(server, ended=not verifying, verifying=verifying, dead=dead):
            told = {place: trouble or f"at the end: {wrong}" for place, trouble in told.items()}
        return told

    def _start_worker(self, host: str) -> None:
        box: list[Worker] = []
        started = threading.Event()

        def probe(step: str, direction: str, _phase: str, effect: str) -> None:
            started.wait()
            self._pass_by(host, f"{host}.{step}.{direction}.{effect.replace(':', '=')}", box)

        box.append(runner.start_worker(self._lab, host, self._session(), probe=probe))
        self._workers[host] = box[0]
        started.set()

    def _pass_by(self, host: str, place: str, box: list[Worker]) -> None:
        with self._lock:
            if not self._is_watched:
                return
            if place not in self.passed:
                self.passed.append(place)
            if place not in self._left:
                return
            self._left.discard(place)
            sleeper = Sleeper(box[0], threading.current_thread())
            self._asleep[place] = sleeper
        threading.Thread(target=self._replace, args=(host, sleeper.worker), daemon=True).start()
        sleeper.go_on.wait()

    def _replace(self, host: str, worker: Worker) -> None:
        """ZooKeeper gives its session up and another one takes its place; awake it has a session again.

        As a whole it sleeps, so its loop turns no more, and nobody is served by it.
        """
        worker._stopping = True
        worker._wakeup.set()
        assert worker._thread is not None
        worker._thread.join()
        worker._transfer.stop()
        lost = worker.coordination.session
        worker.coordination.client.restart()
        assert worker.coordination.session not in (None, lost)
        assert worker._lock is not None
        os.close(worker._lock)
        self._start_worker(host)

    def _carry(self, kind: str, *, keep_image: bool = False, to_cell: str | None = None) -> str:
        move = file_flow(self._lab, kind, keep_image=keep_image, to_cell=to_cell)
        until(lambda: is_released(self._lab, move), f"the end of {kind}", _PATIENCE)
        until(lambda: self._conductor.busy() == 0 and self._store.get_children(BOARD) == {}, "an empty board")
        return move

    def _session(self) -> Coordination:
        return connect_embedded(self._store)

    def _failing(self, _move: str, step: str, direction: str, phase: str) -> None:
        undone = self._is_watched and self._direction == "revert"
        if undone and (step, direction, phase) == (self._no_return, "execute", "before"):
            raise DestinationFault("the guest was never started", code="fault")

    def _picture(self) -> dict[str, object]:
        nodes = {path: (node["data"], node["version"]) for path, node in self._store.get_children(ROOT, False).items()}
        return {**picture(self._lab.layout), **nodes}


_PATIENCE: Final = 240.0


@contextlib.contextmanager
def bench(folder: Path, storage: str) -> Iterator[Bench]:
    """A bench in this folder, which is made and removed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Bench(folder, storage)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def _run_together(folder: Path, storage: str, wanted: list[list[str]]) -> Iterator[Verdict]:
    with bench(folder, storage) as made:
        for _, found in itertools.groupby(wanted, lambda words: words[2:5]):
            mine = list(found)
            began = time.monotonic()
            told = _told(made, mine)
            lasted = (time.monotonic() - began) / len(mine)
            for words in mine:
                yield Verdict(KIND, ":".join(words), told[words[5]], lasted)


def _told(made: Bench, mine: list[list[str]]) -> Mapping[str, str]:
    """By place, what is wrong there; a run that came to no end is wrong at all of them."""
    who, storage, kind, direction, last, _ = mine[0]
    places = [words[5] for words in mine]
    try:
        if who == "worker":
            return made.awake(kind, direction, last, places)
        made.run(Relay(kind, direction, last, tuple(places), keep_image=storages.keeps_images(storage)))  # type: ignore[arg-type]
    except AssertionError as error:
        return dict.fromkeys(places, str(error))
    return dict.fromkeys(places, "")


def points_of_conductors() -> Iterator[str]:
    """Every phase of every step, at which a conductor may sleep."""
    for (storage, kind, direction), phase in itertools.product(storages.WAYS, PHASES):
        for step in relay(kind, direction, phase).steps:  # type: ignore[arg-type]
            yield f"conductor:{storage}:{kind}:{direction}:{phase}:{step}"


def points_of_workers(folder: Path, storage: str, kind: str, direction: str, *thens: str) -> list[str]:
    """Every effect by which the workers come in a dry run of the operation."""
    with bench(folder, storage) as made:
        found = made.effects(kind, direction)
    return [f"worker:{storage}:{kind}:{direction}:{then}:{place}" for then in thens for place in found]


def points_of_writers(folder: Path, storage: str, kind: str, direction: str) -> list[str]:
    """Every write by which a conductor comes in a dry run of the operation."""
    with conductor_sleeps.bench(folder, storage) as made:
        return list(made.writes(kind, direction))


def _in_turns(places: Mapping[str, list[str]], kind: str, direction: str) -> Iterator[str]:
    """Each write in one of the labs that come by it, in turn; whether another move follows takes turns as well."""
    for place in dict.fromkeys(itertools.chain.from_iterable(places.values())):
        turn = sum(place.encode())
        there = [storage for storage, found in places.items() if place in found]
        storage = there[turn % len(there)]
        yield f"{conductor_sleeps.WHO}:{storage}:{kind}:{direction}:{THENS[turn // 2 % 2]}:{place}"


@functools.cache
def _points_of_writers() -> tuple[str, ...]:
    folder = Path(tempfile.mkdtemp(prefix="droveway-dry-", dir=scratch.place()))
    found: list[str] = []
    try:
        for alike in (storages.APART, storages.BETWEEN_CELLS, *((storage,) for storage in storages.SHELVES)):
            for kind, direction in storages.ways(alike[0]):
                places = {
                    storage: points_of_writers(folder / f"{storage}-{kind}-{direction}", storage, kind, direction)
                    for storage in alike
                }
                found += _in_turns(places, kind, direction)
    finally:
        shutil.rmtree(folder)
    # By lab and how it ends: those of one operation that wake together follow each other.
    return tuple(sorted(found, key=lambda point: (storages.STORAGES.index(point.split(":")[1]), point.split(":")[2:5])))


@functools.cache
def _points_of_workers() -> tuple[str, ...]:
    folder = Path(tempfile.mkdtemp(prefix="droveway-dry-", dir=scratch.place()))
    try:
        return tuple(
            point
            for storage, kind, direction in storages.WAYS
            for point in points_of_workers(folder / f"{storage}-{kind}-{direction}", storage, kind, direction, *THENS)
        )
    finally:
        shutil.rmtree(folder)
