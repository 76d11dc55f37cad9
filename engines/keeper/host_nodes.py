"""Makes the folders of hosts in ZooKeeper.

Workers have no right to make them.  Otherwise the worker of one host could make the folders of another host before that
host has any.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import sqlalchemy as sa

from droveway.clients.zookeeper import (
    HOSTS,
    Coordination,
    command_path,
    page_path,
    progress_path,
    query_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor.loop_guard import one_round
from droveway.outages import Outage
from droveway.persistence.database import Database
from droveway.persistence.nova.api import HostMapping

LOG = logging.getLogger(__name__)

POLL_EVERY: Final = 2.0
"""Seconds between two looks for hosts that have no folders."""

CHECK_EVERY: Final = 60.0
"""Seconds between two looks at the folders of all hosts, also of those that have some."""


def host_nodes(host: str) -> list[str]:
    """Return the folders of one host.  The commands' folder is last: a worker needs all, and waits for that folder."""
    told = [result_path(host), progress_path(host), page_path(host)]
    return [worker_path(host).rpartition("/")[0], *told, query_path(host), command_path(host)]


class HostNodes:
    """Makes the folders of every host that Nova has mapped to a cell, in a thread between `start` and `stop`."""

    def __init__(self, coordination: Coordination, api: Database) -> None:
        self._coordination = coordination
        self._api = api
        self._stopped = threading.Event()
        self._checked = float("-inf")
        self._thread = threading.Thread(target=self._run, name="host-nodes", daemon=True)

    def start(self) -> None:
        """Begin to make folders."""
        self._thread.start()

    def stop(self) -> None:
        """End, and return when it has."""
        self._stopped.set()
        self._thread.join()

    def round(self) -> None:
        """Make the folders that are missing."""
        with self._api.read() as session:
            wanted = set(session.scalars(sa.select(HostMapping.host)))
        check = time.monotonic() - self._checked >= CHECK_EVERY
        for host in sorted(wanted if check else wanted - set(self._coordination.children(HOSTS))):
            for path in host_nodes(host):
                self._coordination.ensure(path)
        if check:
            self._checked = time.monotonic()

    def _run(self) -> None:
        outage = Outage(LOG, "The folders of hosts wait for ZooKeeper or a database")
        while True:
            with one_round(outage, LOG, "The folders of hosts could not be looked at"):
                self.round()
                outage.over()
            if self._stopped.wait(POLL_EVERY):
                return
