"""Runs a lab: the command that holds the lab's lock runs conductor, keeper and one worker for each host as threads.

The keeper is the part of a conductor that admits moves to the board and acts on deadlines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import orm

from droveway import log_context
from droveway.clients.references import References
from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines import start
from droveway.engines.conductor.conductor import Conductor
from droveway.engines.conductor.run import Probe
from droveway.engines.operations.move_requests import can_go_on
from droveway.errors import DrovewayError, Refused
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab import faults, lock, marks
from droveway.lab.isolated import IsolatedEndpoint
from droveway.lab.parts import Parts
from droveway.lab.records import InFolder
from droveway.lab.stopped import stopped_workers
from droveway.persistence.database import database_time
from droveway.persistence.journal import attempts, cells_down, debts, moves, open_flows
from droveway.workers.context import Probe as WorkerProbe
from droveway.workers.daemon import Worker
from droveway.workers.transfer.endpoints import UnixEndpoint

POLL: Final = 0.05
"""Seconds between two reads of the journal."""

SELDOM: Final = 0.25
"""Seconds between two reads of the journal while this process runs flows, since each read takes time from them."""

_SESSIONS_END: Final = "taskflow.jobs.backends.impl_zookeeper"
"""The logger of TaskFlow's board, which reports each end of a session as a lost connection."""

WORKERS_UP: Final = 30.0
"""Seconds within which the workers have to register."""


def drive(lab: Parts, at_rest: Callable[[], bool]) -> bool:
    """Run the lab until nothing in it can go on and return True; False when there was no need to run it.

    If another command holds the lab's lock, that command runs the lab. Then this function waits. It returns False as
    soon as ``at_rest`` returns True. If the lock is free before that, it takes the lock and runs the lab itself.
    """
    while not at_rest():
        with lock.tried(lab.layout) as held:
            if held:
                with running(lab) as runner:
                    runner.wait_idle()
                return True
        time.sleep(POLL)
    return False


def is_busy(lab: Parts) -> bool:
    """Say whether any move or debt can go on by itself."""
    away = stopped_workers(lab.layout)
    with lab.journal.reading() as connection:
        now = database_time(connection)
        if any(can_go_on(row, now, away) for row in open_flows.of_open_moves(connection)) or open_flows.left(
            connection, now
        ):
            return True
    with lab.journal.read() as session:
        return _is_owed(lab, session, away)


def _is_owed(lab: Parts, session: orm.Session, away: Collection[str]) -> bool:
    """Say whether a debt can be paid now.

    Its host is up or its cell answers, no attempt to pay it has failed, and no earlier debt holds it back.
    """
    due = debts.collectable(session)
    if any(debt.cell is not None for debt in due):
        gone = {*lab.cells.away(lab.cells.names()), *cells_down.find(session)}
        due = [debt for debt in due if debt.cell not in gone]
    return bool(
        debts.in_order(
            due,
            lambda debt: (
                debt.host not in away
                and debt.details.get(debts.AFTER) not in away
                and not debt.details.get(debts.ERROR)
            ),
        )
    )


@dataclasses.dataclass(frozen=True)
class Probes:
    """The functions that are called at each place where a fault may fire, in place of the lab's armed faults."""

    conductor: Probe
    worker: Callable[[str], WorkerProbe]
    """Makes the probe of a host's worker."""


@contextlib.contextmanager
def running(lab: Parts, probes: Probes | None = None, *, runner: Runner | None = None) -> Iterator[Runner]:
    """Run the lab within the block by threads, or by another kind of ``runner``; the caller holds the lock."""
    runner = runner or Runner(lab, probes)
    with marks.kept(lab.layout, lab.identity.hosts), logging_to(lab):
        try:
            runner.start()
            yield runner
        finally:
            runner.stop()


@contextlib.contextmanager
def logging_to(lab: Parts) -> Iterator[None]:
    """Write the lab's log: what the daemons of an installation log, and warnings of libraries."""
    handler = logging.FileHandler(lab.layout.log, delay=True)
    handler.setFormatter(log_context.LabFormatter())
    # The sessions of a lab's ZooKeeper end with the command. TaskFlow logs that as a lost connection. The line would be
    # wrong, so it is left out.
    handler.addFilter(lambda record: record.name != _SESSIONS_END)
    own = logging.getLogger("droveway")
    level = own.level
    logging.getLogger().addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.setLevel(level)
        logging.getLogger().removeHandler(handler)
        handler.close()


class Runner:
    """Runs conductor, keeper and workers over one embedded ZooKeeper."""

    def __init__(self, lab: Parts, probes: Probes | None = None) -> None:
        self._lab = lab
        self._probes = probes
        self._conductor: Conductor | None = None
        self._store = embedded_store()
        self._sessions: list[Coordination] = []
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start all: the workers first, so that no host seems to be away."""
        away = stopped_workers(self._lab.layout)
        hosts = [host for host in sorted(self._lab.identity.hosts) if host not in away]
        probes = self._probes
        for host in hosts:
            self._stops.append(self.start_worker(host))
        keeping = self.connect()
        _await(keeping, hosts)
        self._conductor = start_conductor(self._lab, self.connect(), probe=probes.conductor if probes else None)
        self._stops.append(self._conductor.stop)
        self._stops.append(start.keeper(self._lab, keeping).stop)

    def stop(self) -> None:
        """Stop all, the last one first; a running flow stops where it is and goes on in the next command."""
        while self._stops:
            self._stops.pop()()
        while self._sessions:
            self._sessions.pop().close()

    def start_worker(self, host: str) -> Callable[[], None]:
        """Start the host's worker, and return the function that stops it."""
        probe = self._probes.worker(host) if self._probes else None
        return start_worker(self._lab, host, self.connect(), probe=probe).stop

    def wait_idle(self) -> None:
        """Wait until nothing in the lab goes on by itself."""
        while self.busy() or is_busy(self._lab):
            self._rest()

    def _rest(self) -> None:
        """Wait before the next read of the journal.

        While flows run, it waits until the last of them ends, at most `SELDOM` seconds. While none runs, it waits at
        most `POLL` seconds.
        """
        if self._conductor is not None:
            self._conductor.rest(SELDOM if self.busy() else POLL)

    def busy(self) -> int:
        """Return how many flows are running now."""
        return self._conductor.busy() if self._conductor is not None else 0

    def connect(self) -> Coordination:
        """Open a session with the lab's ZooKeeper, which ends with the runner."""
        session = connect_embedded(self._store)
        self._sessions.append(session)
        return session


def _await(session: Coordination, hosts: list[str]) -> None:
    deadline = time.monotonic() + WORKERS_UP
    wakeup = threading.Event()
    for host in hosts:
        unwatch = session.watch(worker_path(host), wakeup.set)
        while session.get(worker_path(host)) is None:
            if not wakeup.wait(deadline - time.monotonic()):
                raise DrovewayError(f"the worker of host {host} did not come up within {WORKERS_UP:g} s")
            wakeup.clear()
        unwatch()


def start_worker(lab: Parts, host: str, coordination: Coordination, *, probe: WorkerProbe | None = None) -> Worker:
    """Start the host's worker over a session of its own; ``probe`` replaces the lab's armed faults."""
    Path(lab.identity.sockets).mkdir(mode=0o711, exist_ok=True)
    worker = Worker(
        host,
        lab.layout.host(host),
        lab.hypervisor(host),
        References(lab.cloud.volumes, lab.cloud.images),
        coordination,
        endpoint=_endpoint(lab, host),
        probe=probe or faults.worker_probe(lab.layout, host),
    )
    worker.start()
    return worker


def _endpoint(lab: Parts, host: str) -> UnixEndpoint:
    path, facts = f"{lab.identity.sockets}/{host}.sock", lab.host(host)
    if not facts.isolated:
        return UnixEndpoint(path)
    inside = frozenset(name for name, each in lab.identity.hosts.items() if each.cell == facts.cell)
    return IsolatedEndpoint(path, facts.cell, inside)


def start_conductor(lab: Parts, coordination: Coordination, *, probe: Probe | None = None) -> Conductor:
    """Start a conductor over a session of its own; ``probe`` replaces the lab's armed faults."""
    return start.conductor(
        lab,
        coordination,
        name=f"lab-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        probe=probe or faults.conductor_probe(lab.layout, lambda move, step: _host_of(lab, move, step)),
        records=InFolder(lab.layout.recorded),
    )


def _host_of(lab: Parts, move_id: str, step: str) -> str | None:
    """Return the host that a move's step is carried out on; None when the step has no host, or no known one."""
    with lab.journal.read() as session:
        move = moves.get(session, move_id)
        flow = moves.flow_of(session, move.flow_uuid) if move.flow_uuid else None
        at_home = moves.home(session, move)
        returns = attempts.returns(session, move.id)
    graph = registry.latest(move.kind) if flow is None else registry.graph(flow.kind, flow.version)
    hosts = {Where.SOURCE: move.source_host, Where.DESTINATION: move.dest_host, Where.HOME: at_home}
    if returns:
        hosts[Where.RETURN] = returns[-1].host
    return hosts.get(graph.by_name[step].where) if step in graph.by_name else None


@contextlib.contextmanager
def answering(lab: Parts) -> Iterator[Coordination]:
    """Open a session in which the workers that are not stopped answer, while no move goes on.

    Raises `droveway.errors.Refused` while another command runs the lab.
    """
    with lock.tried(lab.layout) as held, contextlib.ExitStack() as stack:
        if not held:
            raise Refused("another command runs this lab, so its hosts cannot be asked: wait until that ends")
        stack.enter_context(marks.kept(lab.layout, lab.identity.hosts))
        store = embedded_store()
        sessions = stack.enter_context(contextlib.ExitStack())

        def connect() -> Coordination:
            session = connect_embedded(store)
            sessions.callback(session.close)
            return session

        away = stopped_workers(lab.layout)
        hosts = [host for host in sorted(lab.identity.hosts) if host not in away]
        for host in hosts:
            stack.callback(start_worker(lab, host, connect()).stop)
        asking = connect()
        _await(asking, hosts)
        yield asking
