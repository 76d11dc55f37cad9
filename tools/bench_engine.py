"""`tools/bench engine`: what a persisted step costs in this engine, in stock TaskFlow and in DBOS.

Each of them runs flows of the same number of steps that do nothing, over SQLite on the same file system, each commit
synced to the medium (``synchronous=FULL``, which is SQLite's default).  Each run is a process of its own with a new
database; they take turns, and the shortest times count.  Stock TaskFlow and DBOS run as they are shipped, with SQLite's
rollback journal, and once more with the write-ahead log that this engine uses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import bench_figures as figures

STEPS: Final = 30
FLOWS: Final = 4
"""How many flows are measured in each process, after one that is not."""
ROUNDS: Final = 5
FULL: Final = 2

BUDGET_MS: Final = 2.5
TIMES_STOCK: Final = 10.0

Flow = Callable[[], None]


def main() -> int:
    """Measure all contenders in turns, or run one of them for the measuring process."""
    parser = argparse.ArgumentParser(prog="tools/bench engine", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    parser.add_argument("--run", nargs=2, metavar=("CONTENDER", "FILE"), help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.run:
        name, file = wanted.run
        print(json.dumps(run(name, Path(file))))
        return 0
    best: dict[str, figures.Cost] = {}
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder:
        for turn in range(wanted.rounds):
            for name in CONTENDERS:
                cost = measure(name, Path(folder, f"{turn}-{name}.sqlite"))
                best[name] = best[name].shorter(cost) if name in best else cost
    return figures.report(engine_bench(best), write=wanted.write)


def engine_bench(best: dict[str, figures.Cost]) -> figures.Bench:
    """Return the figures and the goals."""
    own = best["droveway"]
    rows = [
        [
            TITLES[name],
            f"{cost.wall:.2f}",
            f"{cost.cpu:.2f}",
            f"{cost.wall / own.wall:.1f}",
            f"{cost.cpu / own.cpu:.1f}",
        ]
        for name, cost in best.items()
    ]
    goals = [
        figures.at_most("a step of this engine, ms", own.wall, BUDGET_MS),
        figures.at_least("stock TaskFlow, times as long", best["taskflow"].wall / own.wall, TIMES_STOCK),
        figures.at_least("DBOS, times as long", best["dbos"].wall / own.wall, 1.0),
    ]
    return figures.Bench(
        name="engine",
        title="Cost of a persisted step",
        text=(
            f"A flow of {STEPS} steps that do nothing, from its first write to its end, divided by the number of its "
            "steps. This engine runs what a move runs: fence, history and step wrapper, with a commit between any two "
            "steps. SQLite, each commit synced."
        ),
        head=["engine", "ms a step", "ms of processor", "times as long", "times the processor"],
        rows=rows,
        goals=goals,
        bars=[(TITLES[name], cost.wall) for name, cost in best.items()],
        unit="ms a step",
    )


def measure(name: str, file: Path) -> figures.Cost:
    """Return the time of a step in the shortest flow of a new process."""
    words = [sys.executable, __file__, "--run", name, str(file)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    times = json.loads(done.stdout.splitlines()[-1])
    return figures.Cost(
        wall=min(wall for wall, _ in times) * 1000 / STEPS, cpu=min(cpu for _, cpu in times) * 1000 / STEPS
    )


def run(name: str, file: Path) -> list[tuple[float, float]]:
    """Run the contender's flows, and return the seconds and the processor seconds of each."""
    contender, log = CONTENDERS[name]
    if log:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute(f"PRAGMA journal_mode={log}")
    watch = Stopwatch()
    with contender(file, watch) as flow:
        for _ in range(FLOWS + 1):
            flow()
    if len(watch.times) != FLOWS + 1:
        raise RuntimeError(f"{name} ran {len(watch.times)} flows instead of {FLOWS + 1}")
    return watch.times[1:]


class NoRows:
    """Stands for a database, its session and its results, and has no rows."""

    @contextlib.contextmanager
    def read(self) -> Iterator[NoRows]:
        """Open a transaction."""
        yield self

    reading = read

    def execute(self, *_query: Any) -> NoRows:
        """Return a result without rows."""
        return self

    def first(self) -> None:
        """Return None: there is no row."""

    def all(self) -> list[Any]:
        """Return no rows."""
        return []

    def scalar(self, *_query: Any) -> None:
        """Return None: there is no row."""


class Stopwatch:
    """Times the flows."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time the block as one flow."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.times.append((time.perf_counter() - wall, time.process_time() - cpu))


@contextlib.contextmanager
def droveway(file: Path, watch: Stopwatch) -> Iterator[Flow]:
    """Run flows by a conductor from a board in memory; the claim before and the cleaning after are not timed."""
    from droveway.clients import zookeeper
    from droveway.engines.conductor import conductor
    from droveway.engines.conductor.run import Resources
    from droveway.engines.conductor.taskflow.board import MoveBoard, posting_of
    from droveway.flows.graph import Graph
    from droveway.persistence.database import Database, sqlite_url
    from droveway.persistence.journal import kinds, migrate, moves
    from droveway.persistence.journal.moves import FlowRef, Request

    steps = tuple(_steps())
    graph = Graph(kind_record=kinds.MIGRATE, version=1, steps=steps, no_return=steps[-1])
    journal = Database(sqlite_url(file))
    migrate.sync(journal)
    _require_synced(journal.engine)
    coordination = zookeeper.connect_embedded(zookeeper.embedded_store())
    over = threading.Event()
    board = MoveBoard(coordination)

    class Conductor(conductor.MoveConductor):
        def _run_engine(self, *facts: Any) -> None:
            with watch.timed():
                super()._run_engine(*facts)

        def _give_back(self, *facts: Any, **options: Any) -> None:
            super()._give_back(*facts, **options)
            over.set()

    class NoCells:
        def raise_fence(self, *_: Any) -> None:
            """Do nothing: no cell has a server of this flow."""

        drop_fence = raise_fence

        def database(self, _cell: str) -> NoRows:
            """Return a cell without rows: what a step reads of its server is not measured."""
            return NoRows()

    others: Any = {"cells": NoCells(), "cloud": None}
    resources = Resources(journal=journal, api=journal, **others)
    runs = Conductor("bench", board, coordination, resources, lambda *_: graph, slots=1, reserved=1)
    board.wakeup = runs.wakeup.wake
    runs.connect()
    thread = threading.Thread(target=runs.run)
    thread.start()

    def flow() -> None:
        server = str(uuid.uuid4())
        request = Request(
            kind="migrate", server=server, server_name=server, cell="", host="h", old_flavor="f", new_flavor="f"
        )
        with journal.write() as session:
            move = moves.submit(session, request, FlowRef(graph.kind, graph.version, graph.digest()))
        with journal.read() as session:
            posting = posting_of(move, moves.flow_of(session, str(move.flow_uuid)))
        over.clear()
        board.post_flow(posting)
        if not over.wait(60):
            raise TimeoutError("the flow did not end")
        with journal.read() as session:
            state, rows = moves.get(session, move.id).state, moves.history(session, move.id)
        if (state, len(rows)) != ("verifying", STEPS):
            raise RuntimeError(f"the move is {state} after {len(rows)} steps")

    try:
        yield flow
    finally:
        runs.stop()
        thread.join()
        coordination.close()
        journal.close()


def _steps() -> Iterator[Any]:
    from droveway.flows.run import Context
    from droveway.flows.stands import NOTHING
    from droveway.flows.step import Step

    class Nothing(Step):
        leaves = NOTHING
        does = "nothing"
        undoes = "nothing"

        def perform(self, ctx: Context) -> dict[str, Any]:
            return {"step": ctx.step}

    for number in range(STEPS):
        yield type(f"Step_{number}", (Nothing,), {})


@contextlib.contextmanager
def taskflow(file: Path, watch: Stopwatch) -> Iterator[Flow]:
    """Run flows by TaskFlow's serial engine on its own persistence."""
    import taskflow.engines
    from taskflow import task
    from taskflow.patterns import linear_flow
    from taskflow.persistence.backends import impl_sqlalchemy
    from taskflow.utils import persistence_utils

    class Nothing(task.Task):
        def execute(self) -> dict[str, Any]:
            return {"step": self.name}

    backend = impl_sqlalchemy.SQLAlchemyBackend({"connection": f"sqlite:///{file}"})
    with contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
    _require_synced(backend.engine)

    def flow() -> None:
        steps = linear_flow.Flow("bench")
        for number in range(STEPS):
            steps.add(Nothing(f"step_{number}"))
        with watch.timed():
            _, detail = persistence_utils.temporary_flow_detail(backend)
            engine = taskflow.engines.load(steps, flow_detail=detail, backend=backend, engine="serial")
            engine.run()
        if engine.storage.get_flow_state() != "SUCCESS":
            raise RuntimeError("the flow did not do what it should")

    yield flow
    backend.close()


@contextlib.contextmanager
def dbos(file: Path, watch: Stopwatch) -> Iterator[Flow]:
    """Run flows by DBOS on its SQLite system database."""
    from dbos import DBOS, DBOSConfig
    from dbos._dbos import _get_dbos_instance

    config: DBOSConfig = {"name": "bench", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.step()
    def nothing(number: int) -> dict[str, Any]:
        return {"step": number}

    @DBOS.workflow()
    def work() -> int:
        return sum(nothing(number)["step"] for number in range(STEPS))

    DBOS.launch()
    _require_synced(_get_dbos_instance()._sys_db.engine)

    def flow() -> None:
        with watch.timed():
            total = work()
        if total != sum(range(STEPS)):
            raise RuntimeError("the workflow did not do what it should")

    yield flow
    DBOS.destroy()


def _require_synced(engine: Any) -> None:
    with engine.connect() as connection:
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    if synchronous != FULL:
        raise RuntimeError(f"the contenders are not alike: synchronous is {synchronous}, not {FULL}")


CONTENDERS: Final = {
    "droveway": (droveway, ""),
    "taskflow": (taskflow, ""),
    "taskflow-wal": (taskflow, "WAL"),
    "dbos": (dbos, ""),
    "dbos-wal": (dbos, "WAL"),
}
TITLES: Final = {
    "droveway": "Droveway",
    "taskflow": "TaskFlow as shipped",
    "taskflow-wal": "TaskFlow, write-ahead log",
    "dbos": "DBOS as shipped",
    "dbos-wal": "DBOS, write-ahead log",
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
