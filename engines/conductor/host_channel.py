"""The conductor's side of host commands: durable both ways, at most one effect a key.

A command is a node ``/hosts/HOST/commands/KEY``, made once and only while the epoch's node stands at this claim's
version; its answer is ``/hosts/HOST/results/KEY``.  The key's attempt is the number of the step's row in the history.
A conductor that finds its command there already adopts it: it stamps it with its own epoch and waits.  The worker runs
one command of a server at a time, so an undo that comes after its step's withdrawn execute waits for it there.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from droveway.clients.zookeeper import (
    Coordination,
    command_path,
    progress_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor import answers, registrations
from droveway.errors import CoordinationLost, Fenced, Refused
from droveway.outages import Once
from droveway.wire import Command, Progress, Registration, Result, decode, decode_answer, decode_command, encode

LOG = logging.getLogger(__name__)

REFUSED: Final = Once(LOG)
"""What hosts have written that is refused."""

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at whether the move was held or cancelled, while a host works."""

MOST_REFUSED: Final = 20
"""So many unreadable answers to one command are taken away, for its worker to answer again."""


class Unreachable(Exception):
    """The host's worker was away for too long; the command may or may not have been taken."""


class DeclaredDown(Unreachable):
    """The host's worker is away, and a person made sure that the host is off: nobody waits for it."""


class Overdue(Exception):
    """The worker is there and has not answered within the command's deadline."""


class Commands:
    """Posts, adopts, awaits and withdraws the commands of one claimed flow."""

    def __init__(self, coordination: Coordination, *, flow_uuid: str, epoch: int, guard: str, version: int) -> None:
        self._coordination = coordination
        self._flow = flow_uuid
        self._epoch = epoch
        self._guard = guard
        self._version = version
        self._session = coordination.session
        self._answered: list[tuple[str, str]] = []
        self._posted: dict[str, Command] = {}
        self._refused: collections.Counter[str] = collections.Counter()

    def post(self, command: Command) -> None:
        """Make the command's node, or adopt the one that stands; raises Fenced when a newer claim has it."""
        path = command_path(command.host, command.key)
        self._posted[command.key] = command
        while True:
            if self._coordination.get(result_path(command.host, command.key)) is not None:
                return
            if self._coordination.create_guarded(path, encode(command), guard=self._guard, version=self._version):
                return
            present = self._coordination.get(path, sync=True)
            if present is None:
                continue
            try:
                standing = decode_command(present[0])
            except Refused as error:
                REFUSED.tell(f"The command {command.key} of host {command.host} is refused", error)
                standing = msgspec.structs.replace(command, epoch=0)
            if standing.epoch > self._epoch:
                raise Fenced(f"command {command.key} was adopted by epoch {standing.epoch}, newer than {self._epoch}")
            adopted = msgspec.structs.replace(standing, epoch=self._epoch)
            if standing.epoch == self._epoch or self._coordination.put(path, encode(adopted), version=present[1]):
                return

    def wait(
        self,
        host: str,
        key: str,
        *,
        deadline: float,
        away: float,
        look: Callable[[], None],
        wakeup: threading.Event,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Result:
        """The answer of the command that was posted, checked by its schema.

        ``look`` is called whenever ``wakeup`` was set for anything but the answer and at least every `LOOK_EVERY`
        seconds, and ends the wait by raising.  ``is_gone`` is asked while the worker is away.  Raises DeclaredDown when
        it says so, Unreachable after the worker was away for ``away`` seconds, Overdue when it was there and
        ``deadline`` seconds have passed.
        """
        stops = [self._coordination.watch(path, wakeup.set) for path in (result_path(host, key), worker_path(host))]
        began = seen = time.monotonic()
        waited = False
        try:
            while True:
                try:
                    result = self._read_result(host, key, look)
                    up = self._coordination.get(worker_path(host)) is not None
                except CoordinationLost:
                    result, up = None, True  # nothing is known of the worker while ZooKeeper is away
                if result is not None:
                    self._answered.append((host, key))
                    return answers.checked(self._posted[key], result)
                if self._refused[key] >= MOST_REFUSED:
                    self._answered.append((host, key))
                    return answers.refused(self._posted[key], self._epoch, f"{MOST_REFUSED} of them were unreadable")
                if waited:
                    look()
                if not up and is_gone():
                    raise DeclaredDown
                now = time.monotonic()
                seen = now if up else seen
                if now - seen >= away:
                    raise Unreachable
                if up and now - began >= deadline:
                    raise Overdue
                wakeup.wait(min(LOOK_EVERY, max(0.01, away - (now - seen))))
                wakeup.clear()
                waited = True
        finally:
            for stop in stops:
                stop()

    def is_up(self, host: str) -> bool:
        """Whether the host's worker is up now."""
        return self._coordination.get(worker_path(host)) is not None

    def claim_is_alive(self) -> bool | None:
        """Whether the session that the flow was claimed under lives on; None while nobody can say."""
        if self._session is None or self._coordination.session != self._session:
            return False
        return True if self._coordination.live() else None

    def withdraw(self, hosts: Iterable[str], step: str, direction: str) -> None:
        """Take back what the step still asks in that direction; what a worker has begun, it ends alone."""
        for host in hosts:
            for key in self._coordination.children(command_path(host)):
                if key.startswith(f"{self._flow}.{step}.{direction}."):
                    self._coordination.delete(command_path(host, key))

    def tidy(self, current: str) -> None:
        """Remove the nodes of commands whose answers are stored by now: all but those of the row ``current``."""
        kept = [(host, key) for host, key in self._answered if f"{key}.".startswith(f"{current}.")]
        for host, key in set(self._answered) - set(kept):
            self.remove(host, key)
        self._answered = kept

    def remove(self, host: str, key: str) -> None:
        """Remove all nodes of one command, whether it was answered or not."""
        # The command first: a worker that finds a command without an answer would answer it again.
        for path in (command_path(host, key), result_path(host, key), progress_path(host, key)):
            self._coordination.delete(path)

    def sweep(self, hosts: Iterable[str], flows: Iterable[str]) -> None:
        """Remove every node that these flows left on these hosts: their ends are stored."""
        ended = frozenset(flows)
        for host in hosts:
            for folder in (command_path, result_path, progress_path):
                for key in self._coordination.children(folder(host)):
                    if key.partition(".")[0] in ended:
                        self._coordination.delete(folder(host, key))

    def workers(self) -> dict[str, Registration]:
        """Return the registrations of the workers that are up, by host."""
        return registrations.workers(self._coordination)

    def progress(self, host: str, key: str) -> Progress | None:
        """How far the worker says it is; None when it says nothing, or nobody can hear it."""
        try:
            node = self._coordination.get(progress_path(host, key))
        except CoordinationLost:
            return None
        if node is None:
            return None
        try:
            return decode(node[0], Progress)
        except Refused as error:
            REFUSED.tell(f"The progress of {key} on host {host} is refused", error)
            return None

    def _read_result(self, host: str, key: str, look: Callable[[], None]) -> Result | None:
        node = self._coordination.get(result_path(host, key))
        if node is None:
            return None
        try:
            result = decode_answer(node[0], key)
        except Refused as error:
            why = str(error)
        else:
            if result.epoch <= self._epoch:
                return result
            look()  # ends the wait, unless our claim stands: then nobody can have asked under a newer one
            self._refused[key] -= 1
            why = f"it was given to epoch {result.epoch}, newer than {self._epoch}"
        REFUSED.tell(f"The result of {key} on host {host} is refused", why)
        self._refused[key] += 1
        # In its place the worker answers again: what it has done it knows.
        self._coordination.delete(result_path(host, key))
        return None


def value_of(result: Result) -> dict[str, Any]:
    """The answer's value, empty when it has none."""
    return result.value or {}
