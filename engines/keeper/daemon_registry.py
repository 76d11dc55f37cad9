"""Keeps the journal's rows of daemons current: this conductor's own, and those of the workers that are registered.

Commands read these rows, since they do not connect to ZooKeeper.  Every conductor writes them.  What it writes follows
from the registrations in ZooKeeper, so all conductors write the same.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Final

import sqlalchemy as sa

from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import incarnation, registrations
from droveway.engines.conductor.loop_guard import one_round
from droveway.flows import registry
from droveway.outages import Outage
from droveway.persistence.database import Database, absence
from droveway.persistence.journal import daemons
from droveway.persistence.journal.daemons import DaemonStatus, exactly
from droveway.wire.commands import Registration

LOG = logging.getLogger(__name__)

POLL_EVERY: Final = 1.0
"""Seconds between two looks at the registrations."""

BEAT_EVERY: Final = 5.0
"""Seconds after which the rows are written even if nothing changed."""

MOST_PID: Final = 2**31 - 1

LATEST: Final = 5.0
"""Seconds after which a look at the registrations is too old to be written."""


class DaemonRegistry:
    """Writes the rows, in a thread of its own between `start` and `stop`, or one `round` at a time."""

    def __init__(self, coordination: Coordination, journal: Database, *, name: str, version: str) -> None:
        """``name``: the conductor's; ``version``: its release."""
        self._coordination = coordination
        self._journal = journal
        self._status = DaemonStatus(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version,
            knows=tuple(
                sorted(
                    name
                    for kind, number in registry.GRAPHS
                    for name in (f"{kind}@{number}", exactly(kind, number, registry.graph(kind, number).digest()))
                )
            ),
        )
        self._beat_due = 0.0
        self._given = 0
        """The highest epoch that any host can have been given, as it was last read."""
        self._written: dict[str, DaemonStatus] | None = None
        self._wakeup = threading.Event()
        self._last_tick = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="daemon-registry", daemon=True)

    def start(self) -> None:
        """Write all rows once, then keep them current."""
        self.round()
        self._thread.start()

    def stop(self) -> None:
        """End, and write that this conductor has ended."""
        self._wakeup.set()
        self._thread.join()
        try:
            with self._journal.write() as session:
                daemons.leave(session, self._status.name)
        except Exception as error:
            # Readers take the conductor for ended anyway, once its row is old.
            if (why := absence(error)) is None:
                raise
            LOG.info("The journal was not told that conductor %s ends: %s", self._status.name, why)

    def last_tick(self) -> float:
        """Return when its loop last turned, by the monotonic clock; it does so every second."""
        return self._last_tick

    def round(self) -> None:
        """Look at the registrations; write when they changed, and every `BEAT_EVERY` seconds."""
        now = time.monotonic()
        registered = {each.host: _status(each.host, each) for each in self._registrations()}
        if registered == self._written and now < self._beat_due:
            return
        try:
            with self._journal.write() as session:
                if time.monotonic() - now > LATEST:
                    return  # it was paused meanwhile: what it saw may be true no more
                daemons.mirror(session, registered)
                daemons.beat(session, self._status)
        except sa.exc.IntegrityError as error:
            LOG.info("Another conductor has written a row of these daemons, so they are written again: %s", error.orig)
        else:
            self._written, self._beat_due = registered, now + BEAT_EVERY

    def _registrations(self) -> list[Registration]:
        found = registrations.workers(self._coordination)
        if any(each.epoch > self._given for each in found.values()):
            self._given = incarnation.given(self._coordination, self._journal)[0]
        return incarnation.believed(found.values(), self._given)

    def _run(self) -> None:
        outage = Outage(LOG, "The journal's rows of daemons wait for ZooKeeper or a database")
        while not self._wakeup.wait(POLL_EVERY):
            self._last_tick = time.monotonic()
            with one_round(outage, LOG, "A round of the daemon registry failed"):
                self.round()
                outage.over()


def _status(host: str, found: Registration) -> DaemonStatus:
    # Cut to what the columns hold: one odd registration must not keep the rows of other workers from being written.
    return DaemonStatus(
        name=host,
        host=host,
        pid=max(0, min(found.pid, MOST_PID)),
        version=found.version[:64],
        knows=tuple(found.actions),
        address=found.address[:255],
    )
