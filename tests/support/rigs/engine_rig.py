"""A rig for the engine's tests: a journal, an embedded ZooKeeper, toy graphs of real steps, and crashes on demand."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import event
from support.rigs.valid_answers import VALID

from droveway.clients import zookeeper
from droveway.clients.zookeeper import Coordination, command_path, result_path, worker_path
from droveway.engines.conductor.conductor import Conductor, MoveConductor
from droveway.engines.conductor.run import Resources
from droveway.engines.conductor.taskflow.board import MoveBoard, posting_of
from droveway.errors import DestinationFault, Fenced, NotFound, StepError
from droveway.flows.graph import Graph
from droveway.flows.run import Context, MoveOptions
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step, Where
from droveway.persistence.database import Database, database_time, sqlite_url
from droveway.persistence.journal import kinds, migrate, moves
from droveway.persistence.journal.moves import FlowRef, Request
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.wire import codec, commands


class Crash(BaseException):
    """Stands for SIGKILL: nothing handles it."""


class FakeCells:
    """Records fences as the cell databases do."""

    def __init__(self) -> None:
        self.fences: dict[tuple[str, str], int] = {}
        self.down: set[str] = set()

    def is_declared_down(self, cell: str, host: str) -> bool:
        return host in self.down

    def raise_fence(self, cell: str, server: str, epoch: int) -> None:
        if self.fences.get((cell, server), 0) > epoch:
            raise Fenced("newer")
        self.fences[cell, server] = epoch

    def drop_fence(self, cell: str, server: str, epoch: int) -> None:
        if self.fences.get((cell, server)) == epoch:
            del self.fences[cell, server]

    def database(self, _cell: str) -> NoRows:
        """A cell without a row."""
        return NoRows()


class NoRows:
    """A database, and its session, in which nothing is found."""

    @contextlib.contextmanager
    def read(self) -> Iterator[NoRows]:
        yield self

    reading = read

    def scalar(self, *_query: Any) -> None:
        """No row."""

    def execute(self, *_query: Any) -> NoRows:
        """A result without a row."""
        return self

    first = scalar

    def all(self) -> list[Any]:
        """No rows."""
        return []


class World:
    """What toy steps change: ``held`` is what stands, ``log`` all that ran."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.held: set[str] = set()
        self.log: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.hooks: dict[str, Callable[[Context], None]] = {}

    def fail(self, name: str, *errors: Exception) -> None:
        """Let the next runs of ``x NAME`` or ``r NAME`` raise these, one each."""
        self.failures.setdefault(name, []).extend(errors)

    def run(self, mark: str, ctx: Context) -> None:
        self.log.append(mark)
        if mark in self.hooks:
            self.hooks[mark](ctx)
        if self.failures.get(mark):
            raise self.failures[mark].pop(0)


class Toy(Step):
    """A conductor step that holds its own name (and host, once there is one) in the world."""

    leaves = NOTHING

    does = "holds its name"
    undoes = "lets it go"
    per_host: ClassVar[bool] = False

    def _name(self, ctx: Context) -> str:
        return f"{self.step_name()}@{ctx.destination.host}" if self.per_host else self.step_name()

    def perform(self, ctx: Context) -> dict[str, Any]:
        world: World = ctx.run.cloud  # type: ignore[assignment]
        world.held.add(self._name(ctx))
        world.run(f"x {self.step_name()}", ctx)
        return {"step": self.step_name()}

    def undo(self, ctx: Context) -> None:
        world: World = ctx.run.cloud  # type: ignore[assignment]
        world.run(f"r {self.step_name()}", ctx)
        world.held.discard(self._name(ctx))


class Prepare(Toy):
    pass


class ChooseDestinations(Toy):
    gives = "candidates"
    no_undo = "reads"
    hosts: ClassVar[tuple[str, ...]] = ("h2", "h3")

    def perform(self, ctx: Context) -> dict[str, Any]:
        world: World = ctx.run.cloud  # type: ignore[assignment]
        world.run("x choose_destinations", ctx)
        return {
            "chosen": [
                {"cell": "c1", "host": host, "node": host, "provider": f"rp-{host}", "request": {}}
                for host in self.hosts
            ]
        }


class Claim(Toy):
    per_host = True


class Copy(Toy):
    per_host = True
    where = Where.DESTINATION


class StartGuest(Toy):
    pass


class Finish(Toy):
    no_undo = "past the point of no return"


class OnHost(Step):
    """A step that a worker carries out."""

    leaves = NOTHING

    where = Where.SOURCE
    does = "asks the source's worker"
    undoes = "asks it to undo"
    deadline = 1.0

    def perform(self, ctx: Context) -> dict[str, Any]:
        return ctx.run.command(
            ctx.step,
            "execute",
            host=ctx.move.source_host,
            action="set_aside",
            details=commands.NoDetails(),
            deadline=self.deadline,
        )

    def undo(self, ctx: Context) -> None:
        ctx.run.command(
            ctx.step,
            "revert",
            host=ctx.move.source_host,
            action="set_aside",
            details=commands.NoDetails(),
            deadline=self.deadline,
        )


MIGRATE = Graph(
    kind_record=kinds.MIGRATE,
    version=1,
    steps=(Prepare, ChooseDestinations),
    tried=(Claim, Copy, StartGuest),
    no_return=StartGuest,
    after=(Finish,),
)
REMOTE = Graph(
    kind_record=kinds.RESIZE, version=1, steps=(Prepare, OnHost, StartGuest), no_return=StartGuest, after=(Finish,)
)
CONFIRM = Graph(kind_record=kinds.CONFIRM, version=1, steps=(Prepare, StartGuest, Finish), no_return=StartGuest)
GRAPHS = {(graph.kind, graph.version): graph for graph in (MIGRATE, REMOTE, CONFIRM)}


def find_graph(kind: str, version: int) -> Graph:
    if (kind, version) not in GRAPHS:
        raise NotFound(kind)
    return GRAPHS[kind, version]


def reference(graph: Graph) -> FlowRef:
    return FlowRef(graph.kind, graph.version, graph.digest())


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for the condition; fails when it does not come."""
    ends = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < ends, "the condition did not come"
        pause.wait(0.01)
    return value


@dataclasses.dataclass
class Host:
    """One conductor process: its session and its conductor, driven by hand."""

    coordination: Coordination
    board: MoveBoard
    conductor: MoveConductor

    def jobs(self) -> list[Any]:
        return list(self.board.iterjobs(ensure_fresh=True))

    def turn(self) -> list[bool]:
        """Claim and run every job that is there, in this thread; a Crash passes through and leaves all as it is."""
        outcomes = []
        for job in self.jobs():
            self.board.claim(job, self.conductor.name)
            consume = self.conductor._dispatch_job(job)
            self.conductor._give_back(job, consume=consume)
            outcomes.append(consume)
        return outcomes

    def die(self) -> None:
        """The process is gone; its ephemeral nodes go with the session."""
        self.coordination.close()


class Rig:
    """Everything beside the flow itself."""

    def __init__(self, folder: Path, connect: Callable[[], Coordination]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Database(sqlite_url(_journal_in(folder)))
        # These tests end processes, never the machine: nothing has to survive a power cut.
        event.listen(self.journal.engine, "connect", lambda raw, _record: raw.execute("PRAGMA synchronous=OFF"))
        self.connect = connect
        self.cells = FakeCells()
        self.world = World()
        self.options = MoveOptions(retry_for=0.2, retry_pause=0.01)
        self.probe: Callable[[str, str, str, str], None] | None = None
        self._names = itertools.count(1)
        self._open: list[Coordination] = []

    def resources(self, **others: Any) -> Resources:
        known: dict[str, Any] = {
            "journal": self.journal,
            "api": self.journal,
            "cells": self.cells,
            "cloud": self.world,
            "options": self.options,
            "host_away": 0.3,
            "probe": lambda *facts: self.probe(*facts) if self.probe else None,
        }
        return Resources(**(known | others))

    def session(self) -> Coordination:
        session = self.connect()
        self._open.append(session)
        return session

    def host(self, **others: Any) -> Host:
        """A conductor to be driven by hand."""
        session = self.session()
        board = MoveBoard(session)
        name = f"conductor-{next(self._names)}"
        conductor = MoveConductor(name, board, session, self.resources(**others), find_graph, slots=4, reserved=2)
        conductor.connect()
        return Host(session, board, conductor)

    def conductor(self, **others: Any) -> Conductor:
        """A conductor with threads of its own."""
        name = f"conductor-{next(self._names)}"
        return Conductor(self.session(), self.resources(), find_graph, name=name, **others)

    def submit(self, graph: Graph = MIGRATE, server: str = "s1") -> str:
        request = Request(
            kind=graph.kind,
            server=server,
            server_name=server,
            cell="c1",
            host="h1",
            old_flavor="small",
            new_flavor="big",
        )
        with self.journal.write() as session:
            move = moves.submit(session, request, reference(graph))
        with self.journal.read() as session:
            # SQLite's clock tells milliseconds apart: two moves of one would be in no order.
            until(lambda: database_time(session) > move.created_at)
        return move.id

    def post(self, move_id: str) -> None:
        """Offer the move's flow, as the keeper does."""
        session = self.connect()
        board = MoveBoard(session)
        board.connect()
        with self.journal.read() as reading:
            move = moves.get(reading, move_id)
            assert move.flow_uuid is not None
            posting = posting_of(move, moves.flow_of(reading, move.flow_uuid))
        board.post_flow(posting)
        session.close()

    def move(self, move_id: str) -> Move:
        with self.journal.read() as session:
            return moves.get(session, move_id)

    def history(self, move_id: str) -> list[MoveStep]:
        with self.journal.read() as session:
            return moves.history(session, move_id)

    def flow_state(self, flow_uuid: str) -> str | None:
        with self.journal.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT state FROM flowdetails WHERE uuid = ?", (flow_uuid,)).scalar()

    def close(self) -> None:
        for session in self._open:
            with contextlib.suppress(Exception):
                session.close()
        self.journal.close()


class FakeWorker:
    """Answers a host's commands; each answer is made by ``act``, which may raise a StepError or return None to wait."""

    def __init__(
        self, coordination: Coordination, host: str, act: Callable[[commands.Command], dict[str, Any]]
    ) -> None:
        self.coordination = coordination
        self.host = host
        self.act = act
        self.seen: list[commands.Command] = []
        self._wakeup = threading.Event()
        self._stopped = False
        registration = commands.Registration(host=host, version="1", hypervisor="toy", actions=[], address="unix:/none")
        coordination.create(worker_path(host), codec.encode(registration), ephemeral=True)
        self._unwatch = coordination.watch(command_path(host), self._wakeup.set)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._unwatch()
        self._wakeup.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._wakeup.clear()
            for key in self.coordination.children(command_path(self.host)):
                if self.coordination.get(result_path(self.host, key)) is None:
                    self._answer(key)
            self._wakeup.wait(0.05)

    def _answer(self, key: str) -> None:
        node = self.coordination.get(command_path(self.host, key))
        if node is None:
            return
        command = codec.decode_command(node[0])
        self.seen.append(command)
        try:
            right = VALID[command.action] if command.direction == "execute" else {}
            result = commands.Result(key=key, epoch=command.epoch, value={**right, **self.act(command)})
        except StepError as error:
            result = commands.Result(key=key, epoch=command.epoch, error=error.as_dict())
        self.coordination.create(result_path(self.host, key), codec.encode(result))


@contextlib.contextmanager
def embedded_rig(folder: Path) -> Iterator[Rig]:
    store = zookeeper.embedded_store()
    rig = Rig(folder, lambda: zookeeper.connect_embedded(store))
    yield rig
    rig.close()


def fault(message: str = "full") -> DestinationFault:
    return DestinationFault(message, code="full")


_TEMPLATE: dict[str, bytes] = {}


def _journal_in(folder: Path) -> Path:
    path = folder / "journal.sqlite"
    if not _TEMPLATE:
        database = Database(sqlite_url(folder / "template.sqlite"))
        migrate.sync(database)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        _TEMPLATE["journal"] = (folder / "template.sqlite").read_bytes()
    path.write_bytes(_TEMPLATE["journal"])
    return path
