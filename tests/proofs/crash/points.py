"""The points of the crash matrix, read from the graphs: where in a flow something happens, and what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, get_args

from droveway.engines.conductor.conductor import END_OF_FLOW
from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State

Path = Literal["execute", "revert", "retry"]
"""How the flow runs: to its end; undone from its point of no return; or undone so far that the next alternate is tried,
which then succeeds."""

Direction = Literal["execute", "revert"]

Effect = Literal["kill", "worker", "fail", "refuse", "twice", "delete", "cancel", "pause", "bad"]
"""A SIGKILL of the process that is everything, or of a worker in a process of its own; a StepError; a DestinationFault;
the step's body run twice; a request that arrives; a world in which the step has to refuse."""

EFFECTS: Final = get_args(Effect)
PATHS: Final = get_args(Path)

AROUND: Final = ("before", "after", "stored")
"""The phases of every atom; those within it depend on what it does: ``posted``, ``call.N``, ``effect.HOST.N``."""

EFFECT: Final = "effect"
CALL: Final = "call"

Gaps = Mapping[tuple[Path, str], Iterable[str]]
"""By path and step, the phases within the step that a run of it has passed."""


@dataclasses.dataclass(frozen=True, order=True)
class Spot:
    """One place in a flow at which something happens.

    ``phase`` is before, after or stored; ``posted``: a command has been handed to a worker; ``call.N``: before the Nth
    write to a cloud service; ``effect.source.N``: before the Nth effect of the source's worker.  Of a bad world it is
    the world's name.
    """

    direction: Direction
    step: str
    effect: Effect
    phase: str

    def __str__(self) -> str:
        return f"{self.direction}:{self.step}:{self.effect}:{self.phase}"


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    """One flow, how it runs, and what happens in it: one thing, or a second one after the first."""

    kind: str
    path: Path
    spots: tuple[Spot, ...]

    def __str__(self) -> str:
        first, *others = self.spots
        start = f"{self.kind}:{self.path}:{first.step}:{first.effect}:{first.phase}"
        return "+".join([start, *map(str, others)])

    @property
    def first(self) -> Spot:
        """What happens first."""
        return self.spots[0]


def point(kind: str, path: Path, step: str, effect: Effect, phase: str) -> Point:
    """A point at which one thing happens."""
    forward = path == "execute" or step == END_OF_FLOW
    return Point(kind, path, (Spot("execute" if forward else "revert", step, effect, phase),))


def parse(text: str) -> Point:
    """The point that `str` of it named."""
    start, *others = text.split("+")
    kind, path, step, effect, phase = start.split(":")
    single = point(kind, path, step, effect, phase)  # type: ignore[arg-type]
    more = (Spot(*each.split(":")) for each in others)  # type: ignore[arg-type]
    return Point(kind, single.path, (*single.spots, *more))


def atoms(graph: Graph, path: Path) -> list[str]:
    """The atoms that are passed in the path's direction, in the graph's order."""
    names = graph.names()
    if path == "execute":
        return names
    undone = names[: names.index(graph.no_return.step_name()) + 1]
    tried = [step.step_name() for step in graph.tried]
    return undone if path == "revert" else [name for name in undone if name in tried]


def paths(graph: Graph, *, alternates: bool = True) -> list[Path]:
    """The ways in which a flow of the graph can run; with ``alternates`` there is a second destination."""
    found: list[Path] = ["execute"]
    if next(graph.walk()) is not graph.no_return:
        found.append("revert")
    if graph.tried and alternates:
        found.append("retry")
    return found


def kills(graph: Graph, gaps: Gaps, path: Path) -> Iterator[Point]:
    """Every atom killed before it, between each two things that it does, after it and once its result is stored."""
    for name in atoms(graph, path):
        for phase in ("before", *gaps.get((path, name), ()), "after", "stored"):
            yield point(graph.kind, path, name, "kill", phase)
    yield point(graph.kind, path, END_OF_FLOW, "kill", "before")


def worker_kills(graph: Graph, gaps: Gaps, path: Path) -> Iterator[Point]:
    """A host's worker killed before each of its effects, while the conductor lives on."""
    for name in atoms(graph, path):
        for phase in gaps.get((path, name), ()):
            if phase.startswith(EFFECT):
                yield point(graph.kind, path, name, "worker", phase)


def failures(graph: Graph, gaps: Gaps, path: Path) -> Iterator[Point]:
    """Every atom failing before it, half way and after it, by each class of error that sends a flow another way."""
    tried = {step.step_name() for step in graph.tried}
    for name in atoms(graph, path):
        for phase in ("before", *gaps.get((path, name), ()), "after"):
            yield point(graph.kind, path, name, "fail", phase)
        if path == "execute" and name in tried:
            yield point(graph.kind, path, name, "refuse", "before")


def repeats(graph: Graph, path: Path) -> Iterator[Point]:
    """Every step's body run twice in a row."""
    steps = {step.step_name() for step in graph.walk() if path == "execute" or not step.no_undo}
    yield from (point(graph.kind, path, name, "twice", "before") for name in atoms(graph, path) if name in steps)


def requests(graph: Graph, path: Path) -> Iterator[Point]:
    """A delete, a cancel and a pause that arrive while an atom is under way; of a delete itself there is no second."""
    for name in atoms(graph, path):
        kind = graph.kind_record
        if not kind.deletes:
            yield point(graph.kind, path, name, "delete", "before")
        if kind.cancellable:
            yield point(graph.kind, path, name, "cancel", "before")
        yield point(graph.kind, path, name, "pause", "before")


def singles(graph: Graph, gaps: Gaps, *, alternates: bool = True) -> Iterator[Point]:
    """Every point at which one thing happens."""
    for path in paths(graph, alternates=alternates):
        yield from kills(graph, gaps, path)
        yield from worker_kills(graph, gaps, path)
        yield from failures(graph, gaps, path)
        yield from repeats(graph, path)
        yield from requests(graph, path)


def pairs(graph: Graph) -> Iterator[Point]:
    """Every failure that sends a flow back with a fault in each undo that follows, and every kill with a second one."""
    names = graph.names()
    if next(graph.walk()) is graph.no_return:
        return
    last = names.index(graph.no_return.step_name())
    for number, name in enumerate(names[:last]):
        failed = Spot("execute", name, "fail", "after")
        for undone in names[: number + 1]:
            yield Point(graph.kind, "execute", (failed, Spot("revert", undone, "kill", "after")))
            yield Point(graph.kind, "execute", (failed, Spot("revert", undone, "fail", "before")))
    for name in names:
        killed = Spot("execute", name, "kill", "after")
        for phase in AROUND:
            yield Point(graph.kind, "execute", (killed, Spot("execute", name, "kill", phase)))


def expected_end(tested: Point, *, accepted: bool, alternates: bool = True) -> set[State]:
    """Where the point's move may rest; ``accepted`` tells whether what was asked for was granted."""
    kind = kinds.of(tested.kind)
    done, undone = (kind.ending(done=each).state for each in (True, False))
    if tested.first.effect == "delete":
        return {_end_of_deleted(tested)}
    if tested.path == "revert":
        return {undone, State.CANCELLED} if tested.first.effect == "cancel" else {undone}
    graph = registry.latest(tested.kind)
    names = graph.names()
    last = names.index(graph.no_return.step_name())
    if tested.first.effect == "cancel" and accepted:
        return {State.CANCELLED}
    if tested.path == "retry" or tested.first.step not in names:
        return {done}
    place = names.index(tested.first.step)
    if tested.first.effect == "refuse":
        return {done} if alternates else {undone}
    # At the point of no return a failure that proves nothing is tried again; before it the flow is undone.
    return {undone} if tested.first.effect == "fail" and place < last else {done}


def _end_of_deleted(tested: Point) -> State:
    """Where a move rests whose server was deleted at this point: done when it is confirmed, or was.

    A flow that a delete does not end comes to its own end first; what waits then is confirmed.
    """
    graph, kind = registry.latest(tested.kind), kinds.of(tested.kind)
    names = graph.names()
    beyond = names.index(tested.first.step) >= names.index(graph.no_return.step_name())
    done = beyond and tested.path == "execute" if kind.cancellable else tested.path != "revert"
    waits = kind.ending(done=done).state is State.VERIFYING
    return State.DONE if waits or (done and kind.asked_for_by_deletes) else State.CANCELLED
