"""Runs the worker of one host, which carries out commands and answers them.

For each server it carries out one command at a time, and beside it one question.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from droveway.certificates import Identity
from droveway.clients.zookeeper import ROOT, Coordination, command_path, epoch_path, result_path, worker_path
from droveway.clocks import LARGEST_SKEW
from droveway.errors import CoordinationLost, Refused
from droveway.outages import Once, Outage
from droveway.wire import codec, commands, queries
from droveway.wire.values import ACTION_VERSION
from droveway.workers.actions import copies
from droveway.workers.actions.table import ACTIONS
from droveway.workers.context import Host, Probe, References
from droveway.workers.directories import Directories
from droveway.workers.fence import standing_epoch
from droveway.workers.hypervisors.base import Hypervisor
from droveway.workers.journal import WorkerJournal
from droveway.workers.permission import Permissions
from droveway.workers.run import Run, answer, of_command, parse_key, superseded
from droveway.workers.seen import JOURNAL
from droveway.workers.transfer import frames
from droveway.workers.transfer.endpoints import Endpoint
from droveway.workers.transfer.limits import Limits
from droveway.workers.transfer.server import TransferServer
from droveway.workers.transfer.sources import LocalSource

LOG = logging.getLogger(__name__)

LOCK: Final = "worker.lock"

FORGET_EVERY: Final = 3600.0
"""Seconds between two searches for moves that were purged."""

POLL_EVERY: Final = 2.0
"""Seconds after which the worker reads its commands although no watch has fired, since a watch may get lost."""


MOST_AT_ONCE: Final = 16
"""Most commands that the worker carries out side by side.

An undo starts even when so many run, and so does a question (`commands.ages`).  Questions are not counted.
"""


class _Left(NamedTuple):
    """A command whose run ended without a result.

    The worker carries it out again when its epoch in ZooKeeper has changed, or after the time ``until``.
    """

    epoch: int
    until: float
    unwatch: Callable[[], None]


class Worker:
    """One host's worker, from `start` to `stop`.

    ``root`` is the directory of its journal.  `start` raises Refused when the journal is damaged or another worker of
    the host runs.  The worker serves its disks at ``endpoint``, and fetches disks from other workers as ``identity``
    and within ``limits``.  Actions call ``probe`` before each effect.
    """

    def __init__(
        self,
        host: str,
        root: Path,
        hypervisor: Hypervisor,
        references: References,
        coordination: Coordination,
        *,
        endpoint: Endpoint,
        identity: Identity | None = None,
        limits: Limits | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.host = host
        self.root = root
        self.hypervisor = hypervisor
        self.references = references
        self.coordination = coordination
        self.endpoint = endpoint
        self.identity = identity
        self.limits = limits or Limits()
        self.probe = probe
        self._wakeup = threading.Event()
        self._answered: set[str] = set()
        """The keys of commands that still stand in ZooKeeper and that the worker knows to be answered."""
        self._next_full_read = time.monotonic()
        """When the worker next reads everything from ZooKeeper, also what no watch has told of."""
        self._seen = (0, 0)
        """The highest epoch and the highest step number of all commands, as the registration has them."""
        self._registered = False
        """Whether the node of the registration is known to exist; False as soon as it may be gone."""
        self._stopping = False
        self._last_tick = time.monotonic()
        self._forgets = time.monotonic()
        """When the worker next searches for purged moves."""
        self._runs: dict[str, Run] = {}
        """The runs by what each of them occupies (`_slot`)."""
        self._left: dict[str, _Left] = {}
        """The commands whose runs ended without a result, by key."""
        self._refused = Once(LOG)
        self._unfinished = Once(LOG, logging.INFO)
        self._thread: threading.Thread | None = None
        self._lock: int | None = None

    def start(self) -> None:
        """Open the journal, serve disks, register and take commands; raises Refused as the class says."""
        codec.learn_types()
        with contextlib.ExitStack() as left_open:
            self._lock = self._only_one()
            left_open.callback(os.close, self._lock)
            self._journal = WorkerJournal(self.root / JOURNAL, self.host)
            left_open.callback(self._journal.close)
            self._parts = Host(
                name=self.host,
                hypervisor=self.hypervisor,
                directories=Directories(self.hypervisor.instances),
                references=self.references,
                coordination=self.coordination,
                journal=self._journal,
                permissions=Permissions(self.coordination.timeout / 2),
                transfer_address=self.endpoint.address,
                identity=self.identity,
                limits=self.limits,
            )
            self._parts.directories.ensure()
            self._transfer = TransferServer(self.host, self.endpoint, self._admit, limit=self.limits.sending)
            self._transfer.start()
            left_open.pop_all()
        self._keys = self.coordination.listing(command_path(self.host), self._wakeup.set)
        self._unwatch = [
            self._keys.stop,
            self.coordination.watch(worker_path(self.host), self._check_registration),
        ]
        self._wakeup.set()
        self._thread = threading.Thread(target=self._serve, name=f"worker-{self.host}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every action at its next effect, without a result; does nothing when the worker does not run."""
        if self._thread is None:
            return
        self._stopping = True
        self._wakeup.set()
        self._thread.join()
        self._thread = None
        for run in self._runs.values():
            run.stop()
        self._transfer.stop()
        for run in self._runs.values():
            run.join()
        for unwatch in self._unwatch:
            unwatch()
        for left in self._left.values():
            left.unwatch()
        try:
            if self.coordination.owner(worker_path(self.host)) == self.coordination.session:
                self.coordination.delete(worker_path(self.host))
        except CoordinationLost as error:
            LOG.info("The worker of %s could not sign off, its session will end: %s", self.host, error)
        self._journal.close()
        if self._lock is not None:
            os.close(self._lock)

    def last_tick(self) -> float:
        """Return when the worker's loop last turned, by the monotonic clock; it turns every few seconds."""
        return self._last_tick

    def register(self) -> None:
        """Create the node that says that this host is up, in place of any other node that has its name.

        Raises Refused while a worker of the same name lives on another machine: both would carry out each command.
        """
        path = worker_path(self.host)
        data = self._registration()
        owner = self.coordination.owner(path)
        if owner is not None:
            found = self.coordination.get(path)
            if owner == self.coordination.session and found is not None and found[0] == data:
                return
            if owner not in (0, self.coordination.session) and found is not None:
                self._refuse_namesake(found[0])
            self.coordination.delete(path)
        # The journal's numbers change with each command.  So they are read only when a node is made.  The node is not
        # made again when only the numbers have changed.
        self._seen = self._journal.seen()
        self.coordination.create(path, self._registration(), ephemeral=True)

    def _refuse_namesake(self, data: bytes) -> None:
        try:
            other = codec.decode(data, commands.Registration)
        except Refused:
            return  # a node that cannot be read was written by no worker
        if other.boot and other.boot != _boot():
            raise Refused(
                f"another machine has a live worker of host {self.host} (process {other.pid}), so this one takes no "
                "commands: stop one of the two, and give each machine a name of its own"
            )

    def _registration(self) -> bytes:
        epoch, step = self._seen
        record = commands.Registration(
            host=self.host,
            version=_release(),
            hypervisor=self.hypervisor.name,
            actions=[f"{action}@{ACTION_VERSION}" for action in sorted({*ACTIONS, *queries.QUERIES})],
            address=self.endpoint.address,
            same_host_cold_migrate=self.hypervisor.same_host_cold_migrate,
            pid=os.getpid(),
            epoch=epoch,
            step=step,
            boot=_boot(),
        )
        return codec.encode(record)

    def _check_registration(self) -> None:
        self._registered = False
        self._wakeup.set()

    def _admit(self, hello: frames.Hello) -> LocalSource:
        return copies.admit(self._parts, hello)

    def _only_one(self) -> int:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Refused(f"another worker of host {self.host} runs in {self.root}: stop it first") from None
        return lock

    def _serve(self) -> None:
        outage = Outage(LOG, f"The worker of {self.host} waits for ZooKeeper")
        while not self._stopping:
            self._last_tick = time.monotonic()
            woken = self._wakeup.wait(POLL_EVERY)
            self._wakeup.clear()
            try:
                if not (woken and self._registered):
                    self._registered = True
                    self.register()
                self._take_commands()
                if time.monotonic() >= self._forgets:
                    self._forgets = time.monotonic() + FORGET_EVERY
                    self.forget_purged()
                outage.over()
            except CoordinationLost as error:
                self._registered = False
                outage.note(error)
            except Refused as error:
                self._registered = False
                self._refused.log_once(f"The worker of {self.host} is refused", error)
            except Exception:
                # A registered host must go on answering, so the next round tries again.
                LOG.exception("The worker of %s could not look at its commands", self.host)

    def _take_commands(self) -> None:
        """Start commands that may start, answer those that are done, and cancel those that are being undone."""
        self._forget_ended()
        keys = self._unanswered()
        for key in self._left.keys() - set(keys):
            self._left.pop(key).unwatch()
        waiting = [command for key in keys if (command := self._command(key)) is not None]
        for command in sorted(waiting, key=self._turn):
            if not self._stopping:
                with of_command(command):
                    self._consider(command, waiting)

    def _unanswered(self) -> list[str]:
        """Return the keys of the commands without an answer that the worker has to look at.

        An execute that runs now is left out, because its thread answers it.  An undo that runs now stays in the list.
        The execute that it undoes may still wait in the list, and the worker ends that execute only if it finds the
        undo in the list too.
        """
        everything = time.monotonic() >= self._next_full_read
        if everything:
            # A conductor deletes an answer that it cannot read.  No watch tells the worker of it.
            self._answered.clear()
            self._next_full_read = time.monotonic() + POLL_EVERY
        keys = self._keys.names(fresh=everything)
        self._answered.intersection_update(keys)
        running = {run.command.key for run in self._runs.values() if run.key.direction == "execute"}
        left = [key for key in keys if key not in running and key not in self._answered]
        if left:
            # A conductor deletes a command before its answer.  If it deletes both while this method runs, the key stays
            # in the list as if it had no answer.  `_command` reads the command later, and finds it gone.
            self._answered.update(self.coordination.children(result_path(self.host)))
        return [key for key in left if key not in self._answered]

    def _turn(self, command: commands.Command) -> tuple[float, int]:
        """Return the key by which the waiting commands are sorted.

        Commands whose last run ended without a result come last, in the order in which these runs ended.  Otherwise one
        that never gets a result would keep the other commands of its server from starting.
        """
        left = self._left.get(command.key)
        return 0.0 if left is None else left.until, parse_key(command.key).number

    def forget_purged(self) -> None:
        """Drop what the journal has of purged moves, whose nodes a conductor has deleted.

        A node is also missing when ZooKeeper was wiped.  So a missing node counts only if all recorded commands of the
        move were begun after Droveway's root node in ZooKeeper was made.  For a move without a recorded command it
        always counts.
        """
        born = self.coordination.born(ROOT)
        if born is None:
            return
        for move in self._journal.finished_since(born + LARGEST_SKEW.total_seconds()):
            busy = any(run.command.move == move for run in self._runs.values())
            if not busy and self.coordination.get(epoch_path(move), sync=True) is None:
                self._journal.forget_move(move)

    def _consider(self, command: commands.Command, waiting: list[commands.Command]) -> None:
        key = parse_key(command.key)
        known = self._journal.result(command.key)
        if known is None and any(self._supersedes(other, command) for other in waiting):
            busy = self._runs.get(_slot(command))
            if busy is None or busy.command.key != command.key:
                known = superseded(self._parts, command)
        if known is not None:
            answer(self.coordination, self.host, command.key, known)
            return
        busy = self._runs.get(_slot(command))
        if busy is None:
            waits_for_none = key.direction == "revert" or commands.ages(command.action)
            if (waits_for_none or self._has_room()) and not self._rests(command):
                self._begin(command)
        elif self._supersedes(command, busy.command):
            busy.cancel()

    def _supersedes(self, undo: commands.Command, command: commands.Command) -> bool:
        """Return whether ``undo`` is the undo that ends ``command``, asked for by the claim that stands."""
        return (
            parse_key(undo.key).supersedes(parse_key(command.key))
            and undo.move == command.move
            and undo.epoch == standing_epoch(self.coordination, undo.move)
        )

    def _begin(self, command: commands.Command) -> None:
        left = self._left.pop(command.key, None)
        if left is not None:
            left.unwatch()
        run = Run(self._parts, command, probe=self.probe)
        self._runs[_slot(command)] = run
        run.start(self._wakeup)

    def _has_room(self) -> bool:
        return sum(not commands.ages(run.command.action) for run in self._runs.values()) < MOST_AT_ONCE

    def _rests(self, command: commands.Command) -> bool:
        """Return whether the last run left the command without a result just now, so that its next run has to wait."""
        left = self._left.get(command.key)
        return left is not None and left.epoch == command.epoch and time.monotonic() < left.until

    def _forget_ended(self) -> None:
        """Drop the runs that have ended, which makes room for the next commands of their servers.

        The worker watches each command that ended without a result, because a conductor may stamp it with a new epoch.
        """
        for slot, run in list(self._runs.items()):
            if not run.alive:
                run.join()
                del self._runs[slot]
                key = run.command.key
                if run.why:
                    with of_command(run.command):
                        self._unfinished.log_once(f"{key} ended without an answer", run.why)
                elif not run.left_begun:
                    self._answered.add(key)
                if run.left_begun and not self._stopping:
                    unwatch = self.coordination.watch(command_path(self.host, key), self._wakeup.set)
                    self._left[key] = _Left(run.command.epoch, time.monotonic() + POLL_EVERY, unwatch)

    def _command(self, key: str) -> commands.Command | None:
        found = self.coordination.get(command_path(self.host, key))
        if found is None:
            return None
        try:
            command = codec.decode_command(found[0])
            parse_key(command.key)
        except Refused as error:
            self._refused.log_once(f"The command {key[:200]} of {self.host} is refused", error)
            return None
        if (command.key, command.host) != (key, self.host):
            why = f"it names {command.key[:80]} on {command.host[:80]}"
            self._refused.log_once(f"The command {key[:200]} of {self.host} is refused", why)
            return None
        return command


@functools.cache
def _release() -> str:
    """Return Droveway's version; it is cached, since finding it takes longer than the rest of the registration."""
    return metadata.version("droveway")


@functools.cache
def _boot() -> str:
    """Return this machine's boot id, which a restart of the worker keeps.

    A machine that was cloned from this one has another boot id, though its other ids may be the same.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _slot(command: commands.Command) -> str:
    """Return what a command occupies while it is carried out: one command at a time for each slot.

    Questions (`commands.ages`) have a second slot for each server.  So a guest that does not answer a question cannot
    hold up the other commands of its server.
    """
    return f"{command.server}?" if commands.ages(command.action) else command.server
