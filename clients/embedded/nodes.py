"""Stores the nodes of an embedded ZooKeeper as zake does, with an index that finds them."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from zake.fake_storage import ROOT_PATH, FakeStorage


class Nodes(dict[str, Any]):
    """Holds nodes by their paths, and an index of the paths below each."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        super().__init__()
        self._below: collections.defaultdict[str, dict[str, None]] = collections.defaultdict(dict)
        for path, node in nodes.items():
            self[path] = node

    def __setitem__(self, path: str, node: Any) -> None:
        if path not in self and path != ROOT_PATH:
            self._below[_parent(path)][path] = None
        super().__setitem__(path, node)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        parent = _parent(path)
        del self._below[parent][path]
        if not self._below[parent]:
            del self._below[parent]

    def pop(self, path: str, *default: Any) -> Any:
        """Remove the node and return it."""
        if path not in self:
            return super().pop(path, *default)
        node = self[path]
        del self[path]
        return node

    def below(self, path: str) -> list[str]:
        """Return the paths right below this one."""
        return list(self._below.get(path, ()))


class Store(FakeStorage):
    """Zake's store with an index and with watches checked by path.

    Zake looks through all nodes for the parents and children of one, and through all sessions for each change. That
    took a tenth of the time of a move.
    """

    _paths: Nodes
    _sequences: dict[str, int]

    def __init__(self) -> None:
        super().__init__(SequentialThreadingHandler())
        self._paths = Nodes(self._paths)

    def get_children(self, path: str, only_direct: bool = True) -> dict[str, Any]:
        """Return the nodes below the path, by their paths."""
        with self.lock:
            found = self._paths.below(path)
            if not only_direct:
                for each in found:
                    found += self._paths.below(each)
            return {other: self._paths[other] for other in found}

    def get_parents(self, path: str) -> dict[str, Any]:
        """Return the nodes above the path, by their paths."""
        above = [path[:end] or ROOT_PATH for end, letter in enumerate(path) if letter == "/" and path != ROOT_PATH]
        with self.lock:
            return {other: self._paths[other] for other in above if other in self._paths}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock; when the block raises, the nodes are again those before it."""
        with self.lock:
            paths, sequences = dict(self._paths), dict(self._sequences)
            try:
                yield
            except BaseException:
                self._paths, self._sequences = Nodes(paths), sequences
                raise

    def inform(self, client: Any, child_watches: Any, data_watches: Any, inform_self: bool = True) -> None:
        """Fire the watches that these changes concern.

        A session may set a watch while this runs. Such a watch need not fire: the changes are stored already, and the
        read that sets the watch returns them.
        """
        with self._client_lock:
            clients = [each for each in self._clients if inform_self or each is not client]
        for each in clients:
            if told := [change for change in child_watches if _is_watched(change, each.child_watches)]:
                each.fire_child_watches(told)
            if told := [change for change in data_watches if _is_watched(change, each.data_watches)]:
                each.fire_data_watches(told)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT_PATH


def _is_watched(change: tuple[list[str], Any], watches: Any) -> bool:
    return any(path in watches for path in change[0])
