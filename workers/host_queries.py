"""Answers queries about everything that the host holds.

Each page of an answer is a ZooKeeper node of its own.  A thread beside the commands answers, so that a directory that
hangs holds up answers but no command.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from droveway.clients.zookeeper import Coordination, page_path, query_path
from droveway.errors import CoordinationLost, DrovewayError, Refused
from droveway.outages import Once, Outage
from droveway.wire import codec, queries
from droveway.wire.values import ACTION_VERSION, MOST_BYTES, printable
from droveway.workers import host_contents
from droveway.workers.digests import Digests
from droveway.workers.hypervisors.base import Hypervisor

LOG = logging.getLogger(__name__)

POLL_EVERY: Final = 10.0
"""Seconds after which the thread looks for queries although no watch has fired.

It is shorter than the time that an answer may take (`queries.Query.seconds`).
"""

STOPS_WITHIN: Final = 2.0
"""Seconds that `HostQueries.stop` waits for an answer that is being read."""

ROOM: Final = MOST_BYTES - 8192
"""Bytes of a page for the records in it; the rest is for the page's other fields, such as its error."""

MOST_SAID: Final = 1000
"""Most characters of the error of an answer."""


class HostQueries:
    """Answers the queries to one host, between `start` and `stop`."""

    def __init__(self, host: str, hypervisor: Hypervisor, coordination: Coordination) -> None:
        self._host = host
        self._hypervisor = hypervisor
        self._coordination = coordination
        self._wakeup = threading.Event()
        self._stopping = False
        self._cleared = False
        self._done: set[str] = set()
        """The queries that stand and need no answer any more."""
        self._refused = Once(LOG)
        self._thread = threading.Thread(target=self._serve, name=f"queries-{host}", daemon=True)

    def start(self) -> None:
        """Begin to answer queries."""
        self._unwatch = self._coordination.watch(query_path(self._host), self._wakeup.set)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; waits only `STOPS_WITHIN` for an answer that is being read, since that may hang."""
        self._stopping = True
        self._wakeup.set()
        self._thread.join(STOPS_WITHIN)
        self._unwatch()

    def _serve(self) -> None:
        outage = Outage(LOG, f"Queries to {self._host} wait for ZooKeeper")
        while not self._stopping:
            try:
                self._take_queries()
                outage.over()
            except CoordinationLost as error:
                outage.note(error)
            except Exception:
                # The host must go on answering, so the next round tries again.
                LOG.exception("The worker of %s could not look at its queries", self._host)
            self._wakeup.wait(POLL_EVERY)
            self._wakeup.clear()

    def _take_queries(self) -> None:
        standing = self._coordination.children(query_path(self._host))
        self._done &= set(standing)
        for name in self._coordination.children(page_path(self._host)):
            # The page's query is gone, or an earlier process of the worker wrote the page.  This process answers each
            # standing query anew, with all pages.
            if not self._cleared or name.rpartition(".")[0] not in standing:
                self._coordination.delete(page_path(self._host, name))
        self._cleared = True
        for name in standing:
            if name not in self._done and not self._stopping:
                self._answer(name)
                self._done.add(name)

    def _answer(self, name: str) -> None:
        began = time.monotonic()
        found = self._coordination.get(query_path(self._host, name))
        if found is None:
            return
        try:
            query = codec.decode_query(found[0], self._host, name)
        except Refused as error:
            self._refused.log_once(f"The query {name[:200]} to {self._host} is refused", error)
            return
        for page in self._pages(query):
            late = time.monotonic() - began > query.seconds
            if self._stopping or late or self._coordination.get(query_path(self._host, name), sync=True) is None:
                return
            self._coordination.create(page_path(self._host, f"{name}.{page.number}"), codec.encode(page))

    def _pages(self, query: queries.Query) -> list[queries.Page]:
        question = QUESTIONS.get(query.question)
        # A worker that restarts may read its host again for the same query.  Each page has the id of its reading.  So
        # the conductor does not make one answer of pages of two readings.
        reading = uuid.uuid4().hex
        try:
            if question is None or query.version != ACTION_VERSION:
                known = f"{query.question}@{query.version}"
                raise Refused(f"this worker does not know the query {known}: upgrade it first")
            parts = list(split(question(self._hypervisor)))
            if len(parts) > queries.MOST_PAGES:
                raise Refused(
                    f"the host holds too much for one answer: {len(parts)} pages, and {queries.MOST_PAGES} are accepted"
                )
        except (DrovewayError, OSError) as error:
            why = printable(" ".join(str(error).split()))[:MOST_SAID] or type(error).__name__
            return [queries.Page(id=query.id, host=self._host, reading=reading, number=0, pages=1, error=why)]
        return [
            queries.Page(id=query.id, host=self._host, reading=reading, number=number, pages=len(parts), held=part)
            for number, part in enumerate(parts)
        ]


def split(held: Iterable[queries.Held]) -> Iterator[list[queries.Held]]:
    """Yield the records in parts that fit into one page each; one empty part when there are no records."""
    part: list[queries.Held] = []
    size = 0
    for each in held:
        more = len(codec.encode(each)) + 1
        if part and size + more > ROOM:
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    yield part


def _directories(hypervisor: Hypervisor) -> Iterator[queries.Held]:
    instances = hypervisor.instances
    yield queries.StoreRef(id=host_contents.store(instances), path=printable(str(instances)))
    yield from host_contents.entries(instances)


_DIGESTS: Final = Digests()
"""The digests of all files that this process has read."""

QUESTIONS: Final[dict[str, Callable[[Hypervisor], Iterable[queries.Held]]]] = {
    "list_guests": host_contents.guests,
    "list_directories": _directories,
    "digest_disks": lambda hypervisor: _DIGESTS.of(hypervisor.instances),
}
