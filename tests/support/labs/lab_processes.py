"""A lab whose conductor and workers are processes of their own, over a real ZooKeeper."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from support.labs.lab_process import Spec
from support.labs.small_lab import is_released, read_move, until
from support.labs.snapshot import Snapshot
from support.rows import left_over

from droveway.clients import zookeeper
from droveway.clients.zookeeper import BOARD, ROOT, Coordination, epoch_path
from droveway.errors import CoordinationLost
from droveway.lab.session import Lab

SESSION = 2.0
"""Seconds after which ZooKeeper gives up a process that was killed."""

LONG = 180.0

Effects = collections.Counter[tuple[bool, str]]


class Processes:
    """The processes of one lab, from `start` to `close`."""

    def __init__(self, root: Path, hosts: str) -> None:
        self.lab = Lab.open(root)
        self.root = root
        self._zookeeper = hosts
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.session: Coordination = zookeeper.connect(hosts, timeout=SESSION)
        self.session.delete(ROOT)

    def close(self) -> None:
        """Stop all that run, as daemons are stopped."""
        for name in list(self._running):
            self.stop(name)
        self.session.close()
        self.lab.close()

    def start_workers(self, **others: Any) -> None:
        """A worker for every host, up when this returns."""
        for host in self.lab.identity.hosts:
            self.start(host, host=host, **(others if host != "host1" else {}))
        for host in self.lab.identity.hosts:
            self.await_worker(host)

    def await_worker(self, host: str) -> None:
        """The host's present worker has registered."""
        path = zookeeper.worker_path(host)
        until(lambda: self.session.get(path), f"the worker of {host}", LONG)

    def start(self, name: str, **facts: Any) -> None:
        """A process by the name that `await_kill` and `restart` know it by."""
        assert name not in self._running
        spec = Spec(
            root=str(self.root),
            zookeeper=self._zookeeper,
            session=SESSION,
            parent=os.getpid(),
            effects=str(self.root.parent / "effects" / facts.get("host", "")),
            **facts,
        )
        Path(spec.effects).parent.mkdir(exist_ok=True)
        with (self.root.parent / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "support.labs.lab_process", msgspec.json.encode(spec).decode()],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                stderr=log,
            )

    def stop(self, name: str) -> None:
        """End the process as a daemon is ended."""
        process = self._running.pop(name)
        process.terminate()
        assert process.wait(LONG) == 0, self.said(name)

    def await_kill(self, *names: str) -> str:
        """The first of these processes that ended, which a SIGKILL ended."""
        name = until(
            lambda: next((name for name in names if self._running[name].poll() is not None), None),
            f"the kill of {' or '.join(names)}",
            LONG,
        )
        process = self._running.pop(name)
        assert process.returncode == -signal.SIGKILL, self.said(name)
        return str(name)

    def await_rest(self, move: str) -> str:
        """Where the move rests when nobody runs it any more."""
        until(lambda: is_released(self.lab, move), f"the end of move {move}", LONG)
        until(lambda: self.session.children(BOARD) == [], "an empty board", LONG)
        return read_move(self.lab, move).state

    def said(self, name: str) -> str:
        """The end of what the process logged."""
        return (self.root.parent / f"{name}.log").read_text()[-4000:]

    def wipe(self) -> None:
        """Remove every node, though the processes make new ones meanwhile."""
        for folder in self.session.children(ROOT):
            until(functools.partial(self._remove, f"{ROOT}/{folder}"), f"the end of {folder}")

    def _remove(self, path: str) -> bool:
        try:
            self.session.delete(path)
        except CoordinationLost:
            return False  # somebody put a node below it meanwhile
        return True

    def left_over(self) -> list[str]:
        """Every node of a job, a command, an answer or a progress."""
        return left_over.nodes(self.lab, self.session)

    def epoch(self, move: str) -> bytes | None:
        """What the move's epoch node says."""
        found = self.session.get(epoch_path(move), sync=True)
        return found[0] if found else None

    def effects(self) -> Effects:
        """How often each effect was begun: whether on the source, and its step, direction and name."""
        return collections.Counter(
            (path.name == "host1", line)
            for path in (self.root.parent / "effects").iterdir()
            for line in path.read_text().splitlines()
        )


@contextlib.contextmanager
def processes(rest: Snapshot, hosts: str) -> Iterator[Processes]:
    """The processes of the lab as it was at rest."""
    rest.restore()
    shutil.rmtree(rest.root.parent / "effects", ignore_errors=True)
    made = Processes(rest.root, hosts)
    try:
        yield made
    finally:
        made.close()
        for log in sorted(rest.root.parent.glob("*.log")):
            # Shown where a test failed, which is where it is wanted.
            sys.stdout.write(f"{log.name}:\n{log.read_text()[-4000:]}\n")


def runs_overlap(guests_log: Path) -> bool:
    """Whether two runs of a server ever overlapped, by the log that the guests themselves write."""
    running: dict[str, set[tuple[str, int]]] = collections.defaultdict(set)
    # A guest that was killed in the middle of its line has left half of it.
    whole, _, _torn = guests_log.read_text().rpartition("\n")
    for line in whole.splitlines():
        event = json.loads(line)
        runs = running[event["server"]]
        if event["event"] == "stop":
            runs.discard((event["host"], event["pid"]))
        else:
            runs.add((event["host"], event["pid"]))
        if len(runs) > 1:
            return True
    return False
