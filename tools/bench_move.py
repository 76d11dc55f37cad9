"""`tools/bench move`: a whole sandbox move, a resize and its confirmation, within a cell and into another one.

The move is asked for and carried to verification, confirmed and carried to its end, as two commands of a lab do it:
each starts conductor, keeper and workers and stops them again.  What it waits for is timed from outside, by clocks
around the functions that do the work.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import bench_figures as figures

from droveway.cli.main import COLLECT_EVERY
from droveway.clients.embedded import placement
from droveway.engines.conductor import conductor, registrations
from droveway.engines.conductor.host_channel import HostChannel
from droveway.engines.conductor.run import MoveRun
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.engines.operations import move_requests, submit
from droveway.lab import build, cloud, runner
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cells import Cells
from droveway.workers.actions import copies, dispatch
from droveway.workers.journal import WorkerJournal

ROUNDS: Final = 6
BUDGET_MS: Final = 250.0
MOST_TIMES: Final = 1.6
"""The largest ratio of the own time of a move into another cell to that of a move within a cell."""

DISK_MB: Final = 16
CLOUD: Final = f"""
options: {{cross_cell: true}}
cells: {{cell1: {{hosts: {{host1: {{}}, host2: {{}}}}}}, cell2: {{hosts: {{host3: {{}}, host4: {{}}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}, large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}}}
images: {{base: {{size_mb: {DISK_MB}}}}}
servers: {{web: {{flavor: small, host: host1, image: base, ports: [{{}}], volumes: [{{size_gb: 1}}]}}}}
"""

PLACEMENT: Final = "Placement's answers"
DISK: Final = "disk data"
HOSTS: Final = "hosts' other work"
WORKER_JOURNAL: Final = "workers' journals"
COMMANDS: Final = "host commands: posted, waited for, taken"
ENGINE: Final = "engine's writes"
CELLS: Final = "cells' rows"
STEPS: Final = "steps, conductor and other services"
ASKING: Final = "accepting what is asked"
DAEMONS: Final = "starting and stopping conductor, keeper and workers"
POLLS: Final = "waiting for a look: at what was asked, at the end"
NOT_OURS: Final = (PLACEMENT, DISK)

CLOCKS: Final[list[tuple[Any, str, str]]] = [
    (placement._Transport, "send", PLACEMENT),
    (copies, "copy_disk", DISK),
    (dispatch, "run", HOSTS),
    (WorkerJournal, "begin", WORKER_JOURNAL),
    (WorkerJournal, "finish", WORKER_JOURNAL),
    (WorkerJournal, "raise_epoch", WORKER_JOURNAL),
    (MoveRun, "command", COMMANDS),
    (HostChannel, "remove_flow_nodes", COMMANDS),
    (registrations, "workers", COMMANDS),
    (FlowBackend, "update_atom_details", ENGINE),
    (FlowBackend, "update_flow_details", ENGINE),
    (FlowBackend, "load", ENGINE),
    (FlowBackend, "write", ENGINE),
    (Cells, "transaction", CELLS),
    (Cells, "raise_fence", CELLS),
    (Cells, "drop_fence", CELLS),
    (conductor.MoveConductor, "_dispatch_job", STEPS),
    (conductor.MoveConductor, "_give_back", STEPS),
    (runner.Runner, "start", DAEMONS),
    (runner.Runner, "stop", DAEMONS),
]


class Clock:
    """Sums by kind what each thread spends in the functions of `CLOCKS`; what one calls of another counts there."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._inside = threading.local()

    def install(self) -> None:
        """Put a clock around each function."""
        for owner, name, kind in CLOCKS:
            setattr(owner, name, self._around(getattr(owner, name), kind))

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Count the time of the block for this kind, and not for the kind around it."""
        stack: list[float] = self._inside.__dict__.setdefault("stack", [])
        began = time.perf_counter()
        stack.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            inner = stack.pop()
            if stack:
                stack[-1] += took
            with self._lock:
                self.spent[kind] += took - inner

    def _around(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        context_manager = hasattr(function, "__wrapped__")

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.timed(kind):
                return function(*args, **options)

        @contextlib.contextmanager
        def timed_block(*args: Any, **options: Any) -> Iterator[Any]:
            with self.timed(kind), function(*args, **options) as value:
                yield value

        return timed_block if context_manager else timed


def main() -> int:
    """Measure the move and the start of a command, and report."""
    parser = argparse.ArgumentParser(prog="tools/bench move", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    logging.disable(logging.WARNING)
    gc.set_threshold(COLLECT_EVERY)
    clock = Clock()
    clock.install()
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder:
        root = Path(folder, "lab")
        build.create(root, cloud.parse_cloud(CLOUD, "bench")).close()
        lab = Lab.open(root)
        try:
            # The moves alternate: within a cell, then into the other one.
            turns = itertools.cycle((("large", "cell1"), ("small", "cell2"), ("large", "cell2"), ("small", "cell1")))
            moves = [moved(lab, clock, *turn) for turn in itertools.islice(turns, 2 * wanted.rounds)]
        finally:
            lab.close()
            build.destroy(root)
    start = min(command_start() for _ in range(wanted.rounds))
    # The first move of each sort also loads modules.
    within, between = (min(moves[first::2], key=lambda spent: spent.own) for first in (2, 3))
    return figures.report(move_bench(within, between, start), write=wanted.write)


@dataclasses.dataclass(frozen=True)
class Spent:
    """The milliseconds of one move by kind, and those of the processor in all."""

    kinds: dict[str, float]
    processor: float

    @property
    def whole(self) -> float:
        """Return the milliseconds by the clock."""
        return sum(self.kinds.values())

    @property
    def own(self) -> float:
        """Return the milliseconds without those of Placement and of the disks."""
        return sum(took for kind, took in self.kinds.items() if kind not in NOT_OURS)


def moved(lab: Lab, clock: Clock, flavor: str, cell: str) -> Spent:
    """Carry one move to its end in the cell, and return its times."""
    clock.spent.clear()
    began, processor = time.perf_counter(), time.process_time()
    with clock.timed(ASKING):
        move = submit.submit(lab, submit.MoveSpec(server="web", flavor=flavor, to_cell=cell)).id
    require(move_requests.carry(lab, move), State.VERIFYING)
    with clock.timed(ASKING):
        move_requests.file_request(lab, move, move_requests.confirm)
    require(move_requests.carry(lab, move), State.DONE)
    whole, processor = time.perf_counter() - began, time.process_time() - processor
    spent = {kind: seconds * 1000 for kind, seconds in clock.spent.items()}
    # While the conductor waits for a command, the worker's own clocks measure what the time is used for.
    spent[COMMANDS] -= spent[HOSTS] + spent[DISK] + spent[WORKER_JOURNAL]
    spent[POLLS] = whole * 1000 - sum(spent.values())
    return Spent(spent, processor * 1000)


def require(move: Move, state: State) -> None:
    """Raise RuntimeError for a move that came to rest elsewhere."""
    if move.state != state:
        raise RuntimeError(f"the move is {move.state} instead of {state}: {move.error}")


def command_start() -> float:
    """Return the milliseconds until a command of a lab has started and imported what a move needs."""
    ours = ("cli.main", "cli.commands.server", "engines.operations.submit", "lab.runner")
    modules = ", ".join((*(f"droveway.{name}" for name in ours), "placement.handler"))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", f"import gc; gc.set_threshold({COLLECT_EVERY})\nimport {modules}"], check=True
    )
    return (time.perf_counter() - began) * 1000


def move_bench(within: Spent, between: Spent, start: float) -> figures.Bench:
    """Return the figures and goals of the shortest move within a cell and of the shortest into another one."""
    order = sorted(within.kinds.items(), key=lambda item: -item[1])
    sums = [
        ("the whole move", within.whole, between.whole),
        ("its own part", within.own, between.own),
        ("the whole move, of the processor", within.processor, between.processor),
    ]
    rows = [
        [what, f"{one:.0f}", f"{100 * one / within.whole:.0f} %", f"{other:.0f}", f"{other / one:.2f}"]
        for what, one, other in [*((kind, took, between.kinds[kind]) for kind, took in order), *sums]
    ]
    return figures.Bench(
        name="move",
        title="A whole move",
        text=(
            f"A resize between two sandbox hosts and its confirmation: a server with a disk of {DISK_MB} MB, a port "
            "and a volume, everything synced to the medium, Placement itself in the same process. Its own part is "
            f"all that is neither Placement's answers nor disk data. A command that carries a move first starts Python "
            f"and imports all of it, which takes {start:.0f} ms and is no part of the move. Beside it stands a resize "
            "of the same server into another cell, in turns with it; its disk goes from worker to worker."
        ),
        head=["what for", "ms", "share", "ms into another cell", "ratio"],
        rows=rows,
        goals=[
            figures.at_most("a move's own part, ms", within.own, BUDGET_MS),
            figures.at_most("own part into another cell, times that within one", between.own / within.own, MOST_TIMES),
        ],
        bars=order,
        unit="ms of one move",
    )


if __name__ == "__main__":
    sys.exit(main())
