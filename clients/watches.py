"""What tells of changes in ZooKeeper: a watch there fires once, and whoever wants to know more arms it again.

Nothing here waits for an answer on the client's own threads but `NodeWatch`; the others only forget what they knew
there, and ask again when they are asked.
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
"""What the client calls once, with kazoo's event."""


class Session(Protocol):
    """Says what a watch needs of a session, which is `droveway.clients.zookeeper.Coordination`."""

    client: Any

    def exists(self, path: str, watch: WhenChanged | None = None) -> bool:
        """Whether the node is there."""

    def children(self, path: str, watch: WhenChanged | None = None) -> list[str]:
        """The names below the node."""


class NodeWatch:
    """Keeps one data watch and one child watch armed on a path."""

    def __init__(self, session: Session, path: str, callback: Callable[[], None]) -> None:
        self._client = session.client
        self._path = path
        self._callback = callback
        self._lock = threading.Lock()
        self._armed: set[str] = set()
        self._stopped = False
        self._present: bool | None = None
        """Whether the node is there; None while nobody can say."""
        self._client.add_listener(self._on_state)
        self._arm()

    def stop(self) -> None:
        """Call back no more."""
        self._stopped = True
        self._client.remove_listener(self._on_state)

    def _on_state(self, state: str) -> None:
        # A listener must not wait for an answer of the connection that it is called by.
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
        # NONE is the end of a connection, which took the watch with it; `_on_state` arms it on the next one.
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
                    # It may go between the two calls, which the data watch tells.
                    with contextlib.suppress(exceptions.NoNodeError):
                        self._client.get_children(self._path, watch=self._on_children)
                        self._armed.add("children")
            except (exceptions.KazooException, self._client.handler.timeout_exception):
                LOG.debug("The watch on %s waits for the next connection", self._path)


class LeafWatch:
    """Knows whether a node is there that has nothing below it, until the watch on it tells that this has changed."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._path = path
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._told = 0
        """How many events came."""
        self.known: bool | None = None
        """Whether the node is there; None since the last event, and while nobody has looked."""

    def look(self) -> bool:
        """Whether the node is there: what is known, else it is asked for and the watch armed.

        Raises `droveway.errors.CoordinationLost`.
        """
        if (known := self.known) is not None:
            return known
        told = self._told
        present = self._session.exists(self._path, watch=self._on_event)
        with self._lock:
            # The answer comes before any event of the watch that it has armed; one of those makes it old.
            if told == self._told:
                self.known = present
        return present

    @contextlib.contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back within the block at each event of the watch; who wants more of them looks again.

        Not at the end of a connection, which takes the watch with it: whoever waits looks now and then anyway.
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
            self._told += 1
            self.known = None
            callbacks = list(self._callbacks)
        if event.type != EventType.NONE:
            for callback in callbacks:
                callback()


class Listing:
    """The names below a node, listed anew once its watch has told of a change: one call lists them and arms it."""

    def __init__(self, session: Session, path: str, callback: Callable[[], None]) -> None:
        """``callback`` is called, by the client's own thread, when the names may have changed."""
        self._session = session
        self._path = path
        self._callback = callback
        self._lock = threading.Lock()
        self._told = 0
        """How many events came."""
        self._known: list[str] | None = None
        self._ends = contextlib.ExitStack()
        self._node = LeafWatch(session, path)
        self._ends.enter_context(self._node.telling(self._forget))
        session.client.add_listener(self._on_state)
        self._ends.callback(session.client.remove_listener, self._on_state)

    def names(self, *, fresh: bool = False) -> list[str]:
        """The names, sorted; none when the node is missing.  ``fresh``: asked for though nothing told of a change.

        Raises `droveway.errors.CoordinationLost`.
        """
        known, told = self._known, self._told
        if known is not None:
            return self._session.children(self._path) if fresh else known
        # A node that is made, or goes, its own watch tells of.
        names = self._session.children(self._path, watch=self._on_event) if self._node.look() else []
        with self._lock:
            # As in `LeafWatch.look`.
            if told == self._told:
                self._known = names
        return names

    def stop(self) -> None:
        """Call back no more."""
        self._ends.close()
        self._callback = lambda: None

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._forget()

    def _on_event(self, event: Any) -> None:
        # NONE is the end of a connection, which took the watch with it: nothing can be listed before the next one.
        self._forget(tells=event.type != EventType.NONE)

    def _forget(self, *, tells: bool = True) -> None:
        with self._lock:
            self._told += 1
            self._known = None
        if tells:
            self._callback()
