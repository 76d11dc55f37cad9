"""Elects the keeper that leads: one session at most, as far as ZooKeeper knows, and another one once that has ended.

Leading saves the other keepers work, and is no fence: a process that was paused while its session ended may go on for a
moment beside its successor.  So nothing that a leader does may do harm when two do it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from droveway.clients.zookeeper import ROOT, Coordination
from droveway.errors import CoordinationLost

LOG = logging.getLogger(__name__)

LEADER: Final = f"{ROOT}/keeper"
"""This node stands while a keeper leads, and ends with its session."""


class Election:
    """Takes part in the election for one session, between `start` and `stop`."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._news = threading.Event()
        self._news.set()
        self._session: int | None = None
        """The session in which `leads` last asked ZooKeeper."""
        self._leads = False
        self._unwatch: Callable[[], None] = lambda: None

    def start(self, wakeup: Callable[[], None]) -> None:
        """Take part; ``wakeup`` is called in the ZooKeeper client's thread when another session may lead."""

        def changed() -> None:
            self._news.set()
            wakeup()

        self._unwatch = self._coordination.watch(LEADER, changed)

    def stop(self) -> None:
        """Take part no more; a leader gives the lead up now, or when its session ends if ZooKeeper is away."""
        self._unwatch()
        if self._leads:
            with contextlib.suppress(CoordinationLost):
                if self._is_ours():
                    self._coordination.delete(LEADER)

    def leads(self) -> bool:
        """Tell whether this session leads; it takes the lead when nobody has it.  Raises CoordinationLost."""
        if self._news.is_set() or self._session != self._coordination.session:
            self._news.clear()
            led, self._leads = self._leads, False
            try:
                self._leads = self._coordination.create(LEADER, b"", ephemeral=True) or self._is_ours()
            except CoordinationLost:
                self._news.set()
                raise
            self._session = self._coordination.session
            if led != self._leads:
                LOG.info("The keeper of this process leads" if self._leads else "Another process leads now")
        return self._leads

    def _is_ours(self) -> bool:
        return self._coordination.owner(LEADER) == self._coordination.session
