"""The journal put back from an older copy, or a worker's journal moved away, in the middle of an operation.

Each operation runs once, and the whole lab is copied around every effect.  A point is a pair: the lab as it was at one
effect, and in it the journal as it had been at an earlier boundary, or a host whose worker's journal is gone.  The lab
is adopted as the documents say, and its move then ends by the commands that it names.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from support.operations import Stage, stage
from support.two_faults import copies, ways_out
from support.two_faults.copies import Copy
from support.two_faults.world import Verdict, Watch, running_on

from droveway.clients.embedded import placement
from droveway.errors import StepError
from droveway.flows import registry
from droveway.flows.step import Where

KIND: Final = "restores"

UNDONE: Final = "-undone"
OPERATIONS: Final = tuple(f"{kind}{end}" for kind in ("resize", "migrate", "confirm", "revert") for end in ("", UNDONE))

REST: Final = "rest"
"""The boundary before a confirm or revert was asked for."""
BEGIN: Final = "begin"
"""The boundary before the first step."""

HOWS: Final = tuple(itertools.product(("retried", "left"), ("up", "host1", "host2"), ("confirm", "revert")))
"""What is done once it was adopted, whose worker is away meanwhile, and how the move is ended where it waits."""

LOST: Final = "worker-"
"""Before a host's name, in a boundary's place: the journal of that host's worker was moved away."""
HOSTS: Final = ("host1", "host2")

STORAGES: Final = ("apart", "shared")

_CLOUD: Final = """
cells: {cell1: {hosts: {host1: {SHARED}, host2: {SHARED}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  near: {flavor: small, host: host1, image: base, ports: [{}]}
"""


@dataclasses.dataclass(frozen=True)
class Point:
    """One database put back in one world, or moved away there."""

    storage: str
    operation: str
    at: str
    """The effect: direction.step.phase."""
    of: str
    """The boundary that the journal is as of: direction.step, `BEGIN` or `REST`; or `LOST` with a host."""
    how: tuple[str, str, str]

    def __str__(self) -> str:
        return ":".join([self.storage, self.operation, self.at, self.of, *self.how])

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that `str` of it named."""
        storage, operation, at, of, *how = text.split(":")
        return cls(storage, operation, at, of, (how[0], how[1], how[2]))


def points() -> list[str]:
    """Every point: with the journal put back, then with a worker's journal moved away."""
    return [*put_back(), *moved_away()]


def put_back() -> list[str]:
    """Every effect of every operation with every earlier boundary, each in one of `HOWS` in turn."""
    turns = itertools.cycle(HOWS)
    return [
        str(Point(storage, operation, at, of, next(turns)))
        for storage in STORAGES
        for operation in OPERATIONS
        for at, of in _pairs(operation)
    ]


def moved_away() -> list[str]:
    """Every effect of every operation with each host's worker's journal moved away, each in one of `HOWS` in turn."""
    every = [
        (storage, operation, at)
        for storage in STORAGES
        for operation in OPERATIONS
        for at in dict.fromkeys(at for at, _ in _pairs(operation))
    ]
    # One turn for both hosts: else each would be tried in every second of them only.
    return [
        str(Point(*world, f"{LOST}{host}", how))
        for world, how in zip(every, itertools.cycle(HOWS), strict=False)
        for host in HOSTS
    ]


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Record each operation of the points once, then run its points one after another."""
    wanted = [Point.parse(text) for text in points]
    for (storage, operation), found in itertools.groupby(wanted, lambda point: (point.storage, point.operation)):
        place = folder / f"{storage}-{operation}"
        with stage(place / "lab", _CLOUD.replace("SHARED", "shared: nfs1" if storage == "shared" else "")) as lab:
            taken = Recording(lab, place, operation)
            for point in found:
                began = time.monotonic()
                trouble = taken.trouble(point)
                yield Verdict(KIND, str(point), trouble, time.monotonic() - began)
            taken.close()
        shutil.rmtree(place)


class Recording:
    """One run of an operation, with copies of the lab at its effects and of the journal at its boundaries."""

    def __init__(self, lab: Stage, folder: Path, operation: str) -> None:
        self._lab = lab
        self._folder = folder
        self._kind = operation.removesuffix(UNDONE)
        self._undone = operation.endswith(UNDONE)
        self._graph = registry.latest(self._kind)
        self._worlds: dict[str, Copy] = {}
        self._inner: list[str] = []
        self._lock = threading.Lock()
        with lab.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        copies.brand(lab.root, [lab.id_of("web"), lab.id_of("near")])
        self._server = lab.id_of("web")
        self._watch = Watch(lab.root)
        self._record()

    def trouble(self, point: Point) -> str:
        """Make the world of the point, adopt it where that is wanted, and end the move by what it names."""
        self._put_back(point)
        rest, away, choice = point.how
        lab = self._lab
        if not point.of.startswith(LOST) or self._is_wanted():
            said = ways_out.say(lab, "db", "adopt")
            if said.code != 0:
                return f"db adopt ended with {said.code}: {said.error.strip()}"
        if away != "up":
            # Not before: with a journal that was put back every other command is refused.
            said = ways_out.say(lab, "lab", "worker", "stop", away)
            if said.code != 0:
                return f"the worker of {away} is not away: {said.error.strip()}"
        if rest == "left":
            ways_out.say(lab, "move", "resume")
        elif away != "up":
            ways_out.say(lab, "move", "retry", self._move)
        if wrong := self._watch.trouble(self._server, ended=False):
            return f"adopted and {rest}: {wrong}"
        if away != "up":
            ways_out.say(lab, "lab", "worker", "start", away)
        if stuck := ways_out.finish(lab, self._move, choice=choice):
            return stuck
        if away != "up":
            # A host pays what it owes once its worker is there, in a lab as the next command runs.
            ways_out.say(lab, "move", "resume")
        if wrong := self._watch.trouble(self._server, ended=True):
            return wrong
        return "" if running_on(lab.root, self._server) else "the server ran before its move, and is off at its end"

    def close(self) -> None:
        """Have the lab as it is after the operation: whoever removes it stops its guests."""
        placement.disconnect(self._lab.lab.layout.placement)

    def _is_wanted(self) -> bool:
        """Whether the lab says that it has to be adopted: where it has never seen the journal, it misses none."""
        return "db adopt" in ways_out.say(self._lab, "move", "list").error

    def _put_back(self, point: Point) -> None:
        self._lab.lab.close()
        placement.disconnect(self._lab.lab.layout.placement)
        self._lab.lab = self._world(point.at).put_back()
        files = self._lab.lab.layout
        if point.of.startswith(LOST):
            journal = files.worker(point.of.removeprefix(LOST))
            for path in journal.parent.glob(f"{journal.name}*"):
                path.unlink()
        else:
            copies.restore_database(self._journal(point.of), files.journal)

    def _world(self, at: str) -> Copy:
        """The world at the effect; where a step had nothing to do on its host, the one after it."""
        if at not in self._worlds:
            at = f"{at.rpartition('.')[0]}.after"
        return self._worlds[at]

    def _journal(self, of: str) -> Path:
        return self._folder / "journals" / of

    def _record(self) -> None:
        lab = self._lab
        (self._folder / "journals").mkdir()
        forward = self._kind in ("resize", "migrate")
        if not forward:
            lab.cli("server", "resize", "web", "--flavor", "large")
            copies.copy_database(lab.lab.layout.journal, self._journal(REST))
        hosts = {host: functools.partial(self._on_worker, host) for host in sorted(lab.lab.identity.hosts)}
        with lab.running(self._on_conductor, hosts):
            words = ["--flavor", "large"] if self._kind == "resize" else []
            code = 3 if self._undone else 0
            said = ways_out.say(lab, "server", self._kind, "web", *words)
            assert "Traceback" not in said.error, (said, code)
        self._move = lab.move("web").id
        self._worlds["end"] = copies.keep(lab.root, self._folder / "worlds" / "end")

    def _on_conductor(self, _move: str, step: str, direction: str, phase: str) -> None:
        if phase == "before" and not self._journal(BEGIN).exists():
            copies.copy_database(self._lab.lab.layout.journal, self._journal(BEGIN))
        if phase in ("before", "after"):
            self._keep(f"{direction}.{step}.{phase}")
        if phase == "stored":
            copies.copy_database(self._lab.lab.layout.journal, self._journal(f"{direction}.{step}"))
        if self._undone and (step, direction, phase) == (_last(self._kind), "execute", "after"):
            raise StepError("it fails", code="test")

    def _on_worker(self, _host: str, step: str, direction: str, _phase: str, _effect: str) -> None:
        """The first effect of the step, and the last one: each one takes the place of the one before."""
        name = f"{direction}.{step}"
        self._keep(f"{name}.{'late' if f'{name}.early' in self._worlds else 'early'}")

    def _keep(self, name: str) -> None:
        with self._lock:
            self._worlds[name] = copies.keep(self._lab.root, self._folder / "worlds" / name)


def _last(kind: str) -> str:
    """The last step before the point of no return: with its failure all is undone."""
    graph = registry.latest(kind)
    names = graph.names()
    return names[names.index(graph.no_return.step_name()) - 1]


def _pairs(operation: str) -> Iterator[tuple[str, str]]:
    """Every effect of the operation, with every boundary before it."""
    kind = operation.removesuffix(UNDONE)
    graph = registry.latest(kind)
    at_host = {step.step_name() for step in graph.walk() if step.where is not Where.CONDUCTOR}
    boundaries = [BEGIN] if kind in ("resize", "migrate") else [REST, BEGIN]
    for direction, step in _passed(operation):
        for phase in ("before", "early", "late", "after") if step in at_host else ("before", "after"):
            yield from ((f"{direction}.{step}.{phase}", of) for of in boundaries)
        if not (direction == "execute" and operation.endswith(UNDONE) and step == _last(kind)):
            boundaries.append(f"{direction}.{step}")
    yield from (("end", of) for of in boundaries)


def _passed(operation: str) -> list[tuple[str, str]]:
    """What the operation passes, in its order."""
    kind = operation.removesuffix(UNDONE)
    names = registry.latest(kind).names()
    if not operation.endswith(UNDONE):
        return [("execute", name) for name in names]
    there = names[: names.index(_last(kind)) + 1]
    return [("execute", name) for name in there] + [("revert", name) for name in reversed(there)]
