"""Follows changes in ZooKeeper by watches.

A watch of ZooKeeper fires once, and has to be armed again by another read. The client calls watches on threads of its
own. A watch that waits for an answer of ZooKeeper on such a thread delays the watches after it. Of these classes only
`NodeWatch` does that. The other classes only forget what they knew, and read again when they are asked next.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from kazoo import exceptions
from kazoo.protocol.states import EventType, KazooState

LOG = logging.getLogger(__name__)

WhenChanged = Callable[[Any], None]
"""A function that the client calls once, with kazoo's event."""


class Session(Protocol):
    """The methods of `droveway.clients.zookeeper.Coordination` that a watch uses."""

    client: Any

    def exists(self, path: str, watch: WhenChanged | None = None) -> bool:
        """Say whether the node exists; ``watch`` is called once when that changes."""

    def children(self, path: str, watch: WhenChanged | None = None) -> list[str]:
        """Return the names below the node; ``watch`` is called once when they change."""


class NodeWatch:
    """Keeps one data watch and one child watch armed on a path, and calls back when one of them fires."""

    def __init__(self, session: Session, path: str, callback: Callable[[], None]) -> None:
        self._client = session.client
        self._path = path
        self._callback = callback
        self._lock = threading.Lock()
        self._armed: set[str] = set()
        self._stopped = False
        self._present: bool | None = None
        """Whether the node exists; None while that is not known."""
        self._client.add_listener(self._on_state)
        self._arm()

    def stop(self) -> None:
        """Stop calling back."""
        self._stopped = True
        self._client.remove_listener(self._on_state)

    def _on_state(self, state: str) -> None:
        # The connection calls its listeners itself, so a listener must not wait for an answer of it.
        if state == KazooState.CONNECTED and not self._stopped:
            self._client.handler.spawn(self._restore)

    def _restore(self) -> None:
        with self._lock:
            self._armed.clear()
        self._fire()

    def _on_data(self, event: Any) -> None:
        self._changed("data", event)

    def _on_children(self, event: Any) -> None:
        self._changed("children", event)

    def _changed(self, which: str, event: Any) -> None:
        with self._lock:
            self._armed.discard(which)
            if which == "data":
                self._present = None
        # NONE is the end of a connection, which removes the watch; `_on_state` arms it again on the next connection.
        if event.type != EventType.NONE:
            self._fire()

    def _fire(self) -> None:
        if self._stopped:
            return
        self._arm()
        self._callback()

    def _arm(self) -> None:
        with self._lock:
            try:
                if "data" not in self._armed:
                    self._present = self._client.exists(self._path, watch=self._on_data) is not None
                    self._armed.add("data")
                if self._present is not False and "children" not in self._armed:
                    # The node may be deleted between the two calls. Then the data watch fires.
                    with contextlib.suppress(exceptions.NoNodeError):
                        self._client.get_children(self._path, watch=self._on_children)
                        self._armed.add("children")
            except (exceptions.KazooException, self._client.handler.timeout_exception):
                LOG.debug("The watch on %s waits for the next connection", self._path)


class LeafWatch:
    """Remembers whether a node without children exists, until the watch on it fires."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._path = path
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._events = 0
        """The number of events so far."""
        self.known: bool | None = None
        """Whether the node exists; None after an event, and before the first `look`."""

    def look(self) -> bool:
        """Say whether the node exists; what is not remembered is read from ZooKeeper, which arms the watch.

        Raises `droveway.errors.CoordinationLost`.
        """
        if (known := self.known) is not None:
            return known
        events = self._events
        present = self._session.exists(self._path, watch=self._on_event)
        with self._lock:
            # An event that came since the question makes the answer old.
            if events == self._events:
                self.known = present
        return present

    @contextlib.contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back at each event of the watch within the block; after each one `look` has to arm the watch again.

        The end of a connection removes the watch and does not call back. So a caller that waits also looks now and
        then.
        """
        with self._lock:
            self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def _on_event(self, event: Any) -> None:
        with self._lock:
            self._events += 1
            self.known = None
            callbacks = list(self._callbacks)
        if event.type != EventType.NONE:
            for callback in callbacks:
                callback()


class Listing:
    """Remembers the names below a node, and reads them again once the watch on it has fired."""

    def __init__(self, session: Session, path: str, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the client's thread when the names may have changed."""
        self._session = session
        self._path = path
        self._callback = callback
        self._lock = threading.Lock()
        self._events = 0
        """The number of events so far."""
        self._known: list[str] | None = None
        self._ends = contextlib.ExitStack()
        self._node = LeafWatch(session, path)
        self._ends.enter_context(self._node.telling(self._forget))
        session.client.add_listener(self._on_state)
        self._ends.callback(session.client.remove_listener, self._on_state)

    def names(self, *, fresh: bool = False) -> list[str]:
        """Return the names, sorted; none when the node is missing. ``fresh`` reads them in any case.

        Raises `droveway.errors.CoordinationLost`.
        """
        known, events = self._known, self._events
        if known is not None:
            return self._session.children(self._path) if fresh else known
        # Only the watch of `_node` fires when the node is made or deleted.
        names = self._session.children(self._path, watch=self._on_event) if self._node.look() else []
        with self._lock:
            # An event that came since the question makes the answer old.
            if events == self._events:
                self._known = names
        return names

    def stop(self) -> None:
        """Stop calling back."""
        self._ends.close()
        self._callback = lambda: None

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._forget()

    def _on_event(self, event: Any) -> None:
        # NONE is the end of a connection, which removes the watch. Nothing can be read before the next connection.
        self._forget(tells=event.type != EventType.NONE)

    def _forget(self, *, tells: bool = True) -> None:
        with self._lock:
            self._events += 1
            self._known = None
        if tells:
            self._callback()
