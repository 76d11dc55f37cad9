"""Running crash points in a process of its own, since the harness forks and pytest has threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from droveway.flows import registry
from droveway.flows.graph import Graph

KINDS: Final = ("resize", "confirm", "revert", "delete")
"""Every kind of flow; resize and migrate are one graph, so that one of them will do."""

EVERY: Final = tuple(word for kind in KINDS for word in ("--kind", kind))

KINDS_BETWEEN: Final = ("cross_cell_resize", "cross_cell_confirm", "cross_cell_revert")
"""Likewise every kind that leads from one cell into another, or ends such a move."""

KINDS_OF_SHELVING: Final = ("delete", "shelve", "unshelve")
"""Those that bring a server from its host to none, and back, or delete it there."""

KINDS_OF_SHELVING_BETWEEN: Final = ("cross_cell_unshelve",)
"""Those that bring a shelved server into another cell."""

SEEDS: Final = {"three-hosts": 1, "volume-backed": 2, "one-host": 3}
"""Cloud → what its fixed sample of single faults is chosen by; `tools/matrix --full` runs every one of them."""

BETWEEN: Final = "two-cells"
"""The cloud of two cells of which there is a fixed sample."""

BY_IMAGE: Final = "two-cells-by-image"
"""That of two cells which do not reach each other's disks: of its points those of `OF_IMAGES` are its fixed sample."""

OF_IMAGES: Final = tuple(
    dict.fromkeys(
        step.step_name()
        for kind in KINDS_BETWEEN
        for step in registry.latest(kind).walk()
        if step.__module__.rpartition(".")[2] in ("moved_images", "transferring")
    )
)
"""The steps that do something else where disks go by the image service; all others are those of `BETWEEN`."""

SHELVED: Final = "shelved"
"""The cloud of shelving of which there is a fixed sample."""

SHELVED_BETWEEN: Final = "shelved-two-cells"
"""The same with two cells."""

SOURCE_LOST: Final = "source-lost"
"""The cloud of two cells in which the source of the move is dead: so many points of it are its fixed sample."""

KIND_OF_SOURCE_LOST: Final = "cross_cell_revert_elsewhere"
_FEW: Final = 12

END: Final = "end_of_flow"
"""What a kill is called that comes once the last result was stored."""

ANY: Final = "any way"
"""Stands for the way of a flow where it does not matter on which one a step or an effect is met."""

AROUND: Final = ("before", "after", "stored")

SILENT: Final = {("confirm", "revert"), ("cross_cell_confirm", "revert")}
"""Ways on which nothing is asked of a host or of a service: there is nothing to be killed between."""


def sample(cloud: str, *, each_way: bool = True) -> tuple[str, ...]:
    """Return the words with which `tools/matrix` runs the cloud's fixed sample: by way, or by step alone."""
    if cloud == SOURCE_LOST:
        return ("--cloud", cloud, "--kind", KIND_OF_SOURCE_LOST, "--sample", str(_FEW), "--seed", "10")
    others = {
        BETWEEN: (KINDS_BETWEEN, 4),
        BY_IMAGE: (KINDS_BETWEEN, 9),
        SHELVED: (KINDS_OF_SHELVING, 6),
        SHELVED_BETWEEN: (KINDS_OF_SHELVING_BETWEEN, 7),
    }
    kinds, seed = others[cloud] if cloud in others else (KINDS, SEEDS[cloud])
    every = EVERY if kinds is KINDS else tuple(word for kind in kinds for word in ("--kind", kind))
    steps = tuple(word for step in OF_IMAGES for word in ("--step", step)) if cloud == BY_IMAGE else ()
    cover = "ways" if each_way else "steps"
    return ("--cloud", cloud, *every, *steps, "--cover", cover, "--seed", str(seed))


def assert_converged(record: Callable[[str, object], None], *arguments: str) -> list[str]:
    """Run `tools/matrix` with these arguments and record its figures; return the points, all of which converged."""
    done = subprocess.run(
        [sys.executable, "-m", "proofs.matrix.command", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    counted = re.fullmatch(r"crash matrix: (\d+) points, (\d+) converged, (\d+) leaks", said[-1] if said else "")
    assert counted, done.stdout + done.stderr
    points, converged, leaks = map(int, counted.groups())
    # Before the verdict: the figure at the end counts what failed too.
    record("crash points", (points, converged, leaks))
    assert (done.returncode, leaks) == (0, 0), done.stdout + done.stderr
    assert points == converged > 0
    ran = re.findall(r"^([a-z_]+:\S+)  [a-z-]+  [\d.]+ s(?:  met)?$", done.stdout, re.MULTILINE)
    assert len(set(ran)) == points, done.stdout
    return ran


def unmet(
    ran: Iterable[str],
    *,
    alternates: bool = True,
    kinds: Sequence[str] = KINDS,
    of: Sequence[str] = (),
    each_way: bool = True,
) -> list[str]:
    """Name what the points leave out: a step of any graph that no kill meets, or what never happens to a flow.

    What there is to meet is read from the graphs of all versions.  ``alternates``: there is a second destination;
    ``of``: these steps alone are to be met, whatever happens to the flows.  Without ``each_way`` it is enough that a
    step or an effect is met on one of the ways that the flows of a kind can go.
    """
    killed, happened = set(), set()
    for point in ran:
        if "+" not in point:
            kind, way, step, effect, phase = point.split(":")
            way = way if each_way else ANY
            happened.add((kind, way, effect, phase if phase in AROUND else "within"))
            if effect in ("kill", "worker"):
                killed.add((kind, way, step))
    missing = []
    for graph in registry.GRAPHS.values():
        for way, steps in _ways(graph, alternates=alternates) if graph.kind in kinds else ():
            flow = (graph.kind, way if each_way else ANY)
            due = [step for step in steps if not of or step in of]
            missing += [f"{graph.kind}@{graph.version}:{flow[1]}:{step}" for step in due if (*flow, step) not in killed]
            if of:
                continue
            missing += [":".join((*flow, *what)) for what in _happens(graph, way) if (*flow, *what) not in happened]
    return list(dict.fromkeys(missing))


def _ways(graph: Graph, *, alternates: bool) -> Iterator[tuple[str, list[str]]]:
    """Give each way of the graph's flows with the steps that are met on it."""
    names = graph.names()
    undone = names[: names.index(graph.no_return.step_name()) + 1]
    yield "execute", [*names, END]
    if len(undone) > 1:
        yield "revert", [*undone, END]
    if graph.tried and alternates:
        tried = {step.step_name() for step in graph.tried}
        yield "retry", [*(name for name in undone if name in tried), END]


def _happens(graph: Graph, way: str) -> Iterator[tuple[str, str]]:
    """Give each effect that there is on the way, with its phases."""
    for effect, phases in (("kill", AROUND), ("fail", ("before", "after")), ("pause", ("before",))):
        yield from ((effect, phase) for phase in phases)
    yield "twice", "before"
    if (graph.kind, way) not in SILENT:
        yield from ((effect, "within") for effect in ("kill", "worker", "fail"))
    if graph.kind != "delete":
        yield "delete", "before"
    if graph.kind_record.cancellable:
        yield "cancel", "before"
    if graph.tried and way == "execute":
        yield "refuse", "before"
