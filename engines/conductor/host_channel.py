"""Asks hosts through their nodes in ZooKeeper: a command survives crashes of both sides, and acts at most once.

A command is a node ``/hosts/HOST/commands/KEY``, and its answer is ``/hosts/HOST/results/KEY``.  The command's node is
made once, and only while the epoch's node has the version that the claim gave it.  KEY has the number of the step's
row in the history.  A conductor that finds its command there already adopts it: it writes its own epoch into
it and waits.  The worker runs one command of a server at a time.  So an undo waits there until the step's own command,
which was withdrawn but may have begun, has ended.

A query belongs to no move and no claim, and changes nothing.  It is a node ``/hosts/HOST/inquiries/ID`` that ends with
the session of the process that asks.  The pages of the answer are nodes ``/hosts/HOST/answers/ID.NUMBER``.  An answer
is only believed about the host that gave it, never about another host.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from droveway.clients.watches import LeafWatch
from droveway.clients.zookeeper import (
    HOSTS,
    Coordination,
    command_path,
    epoch_path,
    page_path,
    progress_path,
    query_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor import answers, eligibility, fencing, registrations
from droveway.errors import CoordinationLost, Fenced, Refused
from droveway.outages import Once
from droveway.persistence.database import Database
from droveway.wire.codec import decode, decode_answer, decode_command, decode_page, encode
from droveway.wire.commands import Command, Progress, Registration, Result
from droveway.wire.queries import QUERIES, Held, Page, Query

LOG = logging.getLogger(__name__)

REFUSED: Final = Once(LOG)
"""Logs what is refused of what hosts have written, each thing once."""

POLL_EVERY: Final = 0.5
"""Seconds between two looks of a thread that waits and that nothing has woken.

It looks whether a hold, cancel or delete was asked of the move, or whether pages of an answer have come.
"""

MOST_REFUSED: Final = 20
"""How many answers to one command may be unreadable; each is removed, so that its worker answers again."""

QUERY_SECONDS: Final = 30.0
"""How long a worker that is up may take to answer a query."""

AT_ONCE: Final = 64
"""How many hosts are queried at a time."""

_FOLDERS: Final = {"commands": command_path, "results": result_path, "progress": progress_path}

_Record = TypeVar("_Record", bound=msgspec.Struct)


class Unreachable(Exception):
    """The host's worker was away for too long; it may or may not have taken the command."""


class DeclaredDown(Unreachable):
    """The host's worker is away, and a person made sure that the host is off: nobody waits for it."""


class Overdue(Exception):
    """The worker is up and has not answered within the command's deadline."""


class Unanswered(Exception):
    """The worker answered a query with the reason why it cannot say."""


@dataclasses.dataclass(frozen=True)
class HostContents:
    """What a host holds, by all queries together; ``why`` is the reason when that is not known, else empty."""

    held: tuple[Held, ...] = ()
    why: str = ""


class Fence(NamedTuple):
    """An epoch's node (``guard``) and its version; a command is posted only while the node has that version."""

    guard: str
    version: int


def key_of(flow: str, step: str, direction: str, sequence: int, part: str = "") -> str:
    """Return the key of a command.

    ``sequence`` is the number of the step's row in the history.  ``part`` tells apart the commands of one such row.
    """
    key = f"{flow}.{step}.{direction}.{sequence}"
    return f"{key}.{part}" if part else key


class HostChannel:
    """Sends commands to hosts, each under the fence of a claim, and asks hosts what they hold."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._session = coordination.session
        self._refused: collections.Counter[str] = collections.Counter()
        """How many unreadable answers were removed, by the key of a command that is waited for."""

    def fence(self, move_id: str, epoch: int, *, journal: Database, claimed: str = "") -> Fence:
        """Raise the move's fence to the epoch and return it; raises as `droveway.engines.conductor.fencing.mirror`."""
        version = fencing.mirror(self._coordination, move_id, epoch, journal=journal, claimed=claimed)
        return Fence(epoch_path(move_id), version)

    def command(
        self, command: Command, fence: Fence, *, away: float, check: Callable[[], None] = lambda: None
    ) -> Result:
        """Post the command and wait for its answer; raises as `post` and `wait` do."""
        answer = self.post(command, fence)
        return self.wait(command, answer, deadline=command.deadline, away=away, check=check, wakeup=threading.Event())

    def post(self, command: Command, fence: Fence) -> LeafWatch:
        """Make the command's node, or adopt the one that stands; raises Fenced when a newer claim has it.

        Returns the watch on the command's answer, for `wait`.  It is set by now, unless the answer is there already.
        """
        path = command_path(command.host, command.key)
        answer = self._coordination.watch_leaf(result_path(command.host, command.key))
        while True:
            if answer.look():
                return answer
            if self._coordination.create_guarded(path, encode(command), guard=fence.guard, version=fence.version):
                return answer
            present = self._coordination.get(path, sync=True)
            if present is None:
                continue
            try:
                standing = decode_command(present[0])
            except Refused as error:
                REFUSED.log_once(f"The command {command.key} of host {command.host} is refused", error)
                standing = msgspec.structs.replace(command, epoch=0)
            if standing.epoch > command.epoch:
                raise Fenced(f"command {command.key} was adopted by epoch {standing.epoch}, newer than {command.epoch}")
            adopted = msgspec.structs.replace(standing, epoch=command.epoch)
            if standing.epoch == command.epoch or self._coordination.put(path, encode(adopted), version=present[1]):
                return answer

    def wait(
        self,
        command: Command,
        answer: LeafWatch,
        *,
        deadline: float,
        away: float,
        check: Callable[[], None],
        wakeup: threading.Event,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Wait for the answer to the command, and return it checked by its schema; ``answer`` is what `post` returned.

        ``check`` is called whenever ``wakeup`` was set for anything but the answer and at least every `POLL_EVERY`
        seconds, and ends the wait by raising.  ``is_gone`` is asked while the worker is away.  Raises DeclaredDown when
        that returns True, Unreachable after the worker was away for ``away`` seconds, and Overdue when the worker is up
        and ``deadline`` seconds have passed.
        """
        host, key = command.host, command.key
        worker = self._coordination.shared_watch(worker_path(host))
        began = seen = time.monotonic()
        waited = False
        with answer.telling(wakeup.set), worker.telling(wakeup.set), contextlib.ExitStack() as stack:
            stack.callback(self._refused.pop, key, None)
            while True:
                up, came = True, False
                try:
                    result = None if answer.known is False and not waited else self._read_result(command, check)
                    if result is None:
                        up = worker.look()
                        # An event uses up the watch on the answer, so `answer.look` sets it again before the wait.
                        # If the answer has come by then, there is nothing to wait for.
                        came = answer.known is None and answer.look()
                except CoordinationLost:
                    result, up = None, True  # nothing is known of the worker while ZooKeeper is away
                if result is not None:
                    return answers.checked(command, result)
                if self._refused[key] >= MOST_REFUSED:
                    return answers.refused(command, command.epoch, f"{MOST_REFUSED} answers were unreadable")
                if waited:
                    check()
                if not up and is_gone():
                    raise DeclaredDown
                now = time.monotonic()
                seen = now if up else seen
                if now - seen >= away:
                    raise Unreachable
                if up and now - began >= deadline:
                    raise Overdue
                if not came:
                    wakeup.wait(min(POLL_EVERY, max(0.01, away - (now - seen))))
                    wakeup.clear()
                waited = True

    def is_up(self, host: str) -> bool:
        """Tell whether the host's worker is up now."""
        return self._coordination.get(worker_path(host)) is not None

    def session_is_alive(self) -> bool | None:
        """Tell whether the session in which the channel was made still lives; None while nobody can say."""
        if self._session is None or self._coordination.session != self._session:
            return False
        return True if self._coordination.live() else None

    def withdraw(self, hosts: Iterable[str], flow: str, step: str, direction: str) -> None:
        """Remove the step's commands in that direction; a worker that has begun one still ends it."""
        for host in hosts:
            for key in self._coordination.children(command_path(host)):
                if key.startswith(f"{flow}.{step}.{direction}."):
                    self._coordination.delete(command_path(host, key))

    def remove(self, host: str, key: str) -> None:
        """Remove all nodes of one command, whether it was answered or not."""
        self.remove_answered([(host, key)])
        self._coordination.delete(progress_path(host, key))

    def remove_answered(self, answered: Iterable[tuple[str, str]]) -> None:
        """Remove the nodes of answered commands, which are given by host and key.

        They are removed together if all of them exist: a conductor that is killed then leaves all of them or none.
        What it leaves, the next claim or the flow's end removes.  The progress node is not among them: the worker
        removes it when it answers, and the flow's end removes one that a killed worker left.
        """
        # The nodes may have to be deleted one by one.  The commands are deleted first then, because a worker that finds
        # a command without an answer would answer it again.
        told = list(answered)
        self._coordination.delete_together([path(*each) for path in (command_path, result_path) for each in told])

    def remove_flow_nodes(self, hosts: Iterable[str], flows: Iterable[str]) -> None:
        """Remove every node that these flows left on these hosts: their ends are stored."""
        ended = frozenset(flows)
        # Commands come first: see `remove_answered`.  What a killed conductor leaves, the next one removes.
        folders = [folder(host) for host in hosts for folder in _FOLDERS.values()]
        self._coordination.delete_together(
            [
                f"{folder}/{key}"
                for folder, keys in zip(folders, self._coordination.children_of_each(folders), strict=True)
                for key in keys
                if key.partition(".")[0] in ended
            ]
        )

    def nodes(self) -> list[tuple[str, str, str]]:
        """Return host, folder and key of every node of a command, on all hosts."""
        return [
            (host, name, key)
            for host in self._coordination.children(HOSTS)
            for name, folder in _FOLDERS.items()
            for key in self._coordination.children(folder(host))
        ]

    def query(
        self, hosts: Iterable[str], *, pinned: int | None = None, seconds: float = QUERY_SECONDS
    ) -> dict[str, HostContents]:
        """Ask each host every query there is, and return what it holds; raises `droveway.errors.CoordinationLost`.

        ``pinned``: the highest level of queries that operators allow, None for this release's own; ``seconds``: how
        long to wait for workers that are up.
        """
        workers = self.workers()
        found: dict[str, HostContents] = {}
        able = []
        for host in sorted(hosts):
            if why := _unable(workers.get(host), pinned):
                found[host] = HostContents(why=why)
            else:
                able.append(host)
        for start in range(0, len(able), AT_ONCE):
            found |= self._query(able[start : start + AT_ONCE], seconds)
        return found

    def workers(self) -> dict[str, Registration]:
        """Return the registrations of the workers that are up, by host."""
        return registrations.workers(self._coordination)

    def keys(self, host: str) -> set[str]:
        """Return the keys of the host's commands that are posted or answered."""
        return {key for folder in (command_path, result_path) for key in self._coordination.children(folder(host))}

    def standing(self, host: str, key: str) -> Command | None:
        """Read the command's node, None without one; raises Refused when it cannot be read, which is logged once."""
        return self._read(command_path(host, key), f"The command {key} of host {host}", decode_command)

    def answer(self, host: str, key: str) -> Result | None:
        """Read what the worker has answered, None before it has; raises as `standing` does."""
        path = result_path(host, key)
        return self._read(path, f"The result of {key} on host {host}", lambda data: decode_answer(data, key))

    def progress(self, host: str, key: str) -> Progress | None:
        """Read how far the worker says it is; None when it says nothing, or it cannot be read."""
        path = progress_path(host, key)
        try:
            return self._read(path, f"The progress of {key} on host {host}", lambda data: decode(data, Progress))
        except (CoordinationLost, Refused):
            return None

    def _read_result(self, command: Command, check: Callable[[], None]) -> Result | None:
        """Return the answer, None without one.  Remove one that is refused, so that the worker answers again."""
        host, key = command.host, command.key
        try:
            result = self.answer(host, key)
        except Refused:
            self._refused[key] += 1
        else:
            if result is None or result.epoch <= command.epoch:
                return result
            check()  # raises if a newer epoch was given out; if none was, this answer cannot be right
            why = f"it was given to epoch {result.epoch}, newer than {command.epoch}"
            REFUSED.log_once(f"The result of {key} on host {host} is refused", why)
        self._coordination.delete(result_path(host, key))
        return None

    def _read(self, path: str, what: str, decoded: Callable[[bytes], _Record]) -> _Record | None:
        node = self._coordination.get(path)
        try:
            return None if node is None else decoded(node[0])
        except Refused as error:
            REFUSED.log_once(f"{what} is refused", error)
            raise

    def _query(self, hosts: Sequence[str], seconds: float) -> dict[str, HostContents]:
        wakeup = threading.Event()
        ends = time.monotonic() + seconds
        waiting = {
            host: [Query(id=str(uuid.uuid4()), host=host, question=question, seconds=seconds) for question in QUERIES]
            for host in hosts
        }
        asked = [query for each in waiting.values() for query in each]
        found: dict[str, HostContents] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(self._take_back, asked)
            for host in hosts:
                # An installation that was upgraded a moment ago may lack these folders.
                for folder in (page_path(host), query_path(host)):
                    self._coordination.ensure(folder)
                stack.callback(self._coordination.watch(page_path(host), wakeup.set))
            for query in asked:
                self._coordination.create(query_path(query.host, query.id), encode(query), ephemeral=True)
            while waiting:
                for host in list(waiting):
                    contents = self._contents(host, waiting[host])
                    if contents is None and time.monotonic() >= ends:
                        contents = HostContents(why=f"its worker is up and did not answer within {seconds:.0f} s")
                    if contents is not None:
                        found[host] = contents
                        del waiting[host]
                if waiting:
                    wakeup.wait(min(POLL_EVERY, max(0.01, ends - time.monotonic())))
                    wakeup.clear()
        return found

    def _contents(self, host: str, asked: Sequence[Query]) -> HostContents | None:
        """Return the host's answers to all the queries; None while one may still come."""
        found: list[Held] = []
        try:
            for query in asked:
                held = self._held(query)
                if held is None:
                    return None if self.is_up(host) else HostContents(why="its worker went away before it answered")
                found += held
        except Refused as error:
            return HostContents(why=f"what its worker answered is refused: {error}")
        except Unanswered as error:
            return HostContents(why=str(error))
        return HostContents(tuple(found))

    def _held(self, query: Query) -> list[Held] | None:
        """Return the whole answer; None while a page is missing, or while a page of an earlier answer still stands.

        The worker numbers each of its readings of the host, and writes that number on every page (``reading``).
        """
        first = self._page(query, 0)
        if first is None:
            return None
        if first.error:
            raise Unanswered(first.error)
        held = list(first.held)
        for number in range(1, first.pages):
            page = self._page(query, number)
            if page is None or (page.reading, page.pages) != (first.reading, first.pages):
                return None
            held += page.held
        return held

    def _page(self, query: Query, number: int) -> Page | None:
        node = self._coordination.get(page_path(query.host, f"{query.id}.{number}"))
        return None if node is None else decode_page(node[0], query, number)

    def _take_back(self, asked: Iterable[Query]) -> None:
        """Remove the queries and their answers; a worker itself removes what it answers after that."""
        # If ZooKeeper is away, the queries end with the session, and the worker removes its answers at its next look.
        with contextlib.suppress(CoordinationLost):
            for query in asked:
                self._coordination.delete(query_path(query.host, query.id))
                for name in self._coordination.children(page_path(query.host)):
                    if name.startswith(f"{query.id}."):
                        self._coordination.delete(page_path(query.host, name))


def _unable(worker: Registration | None, pinned: int | None) -> str:
    """Return why the worker cannot be asked what its host holds; empty when it can."""
    if worker is None:
        return "no worker of it is up"
    known = eligibility.Known(worker.version, worker.actions)
    return next((why for question in QUERIES if (why := eligibility.unsupported(known, question, pinned))), "")
