"""The daemons as the journal knows them.

Each conductor writes its own row.  The conductors also write the workers' rows, from the registrations that they see
in ZooKeeper.  The command line does not speak to ZooKeeper: it reads these rows.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import NotFound
from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal.tables import Claim, Daemon

CONDUCTOR: Final = "conductor"
WORKER: Final = "worker"
_EXACT: Final = "#"

LATE: Final = dt.timedelta(seconds=15)
"""A conductor that has not written its row for this long counts as down."""

KEPT: Final = dt.timedelta(days=1)
"""For how long the row of a conductor that is down is kept: each process makes a row of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DaemonStatus:
    """Holds what a daemon reports of itself."""

    name: str
    host: str
    pid: int
    version: str
    knows: tuple[str, ...]
    """A worker's actions or a conductor's graphs, each as ``NAME@VERSION``.

    A conductor adds the name that `exactly` returns for each graph.
    """
    address: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownWorkers:
    """Holds what the journal says of the workers at one time."""

    current: bool
    """Whether a conductor is up.

    Only conductors record which workers come and go.  If none is up, ``workers`` has what the last conductor recorded,
    and may be out of date.
    """
    workers: Mapping[str, Daemon]
    """Every worker that ever registered, by its host."""

    def away(self, hosts: Collection[str]) -> frozenset[str]:
        """Return which of the hosts have no worker.

        Returns no host at all while no conductor is up: then nobody knows which workers are there.
        """
        there = {host for host, worker in self.workers.items() if worker.gone_at is None}
        return frozenset(hosts) - there if self.current else frozenset()

    def drained(self) -> dict[str, str]:
        """Return each drained host with the reason why it takes no servers."""
        return {
            host: f"its worker is drained ({worker.drain_reason or 'no reason was given'})"
            for host, worker in self.workers.items()
            if worker.drained_at is not None
        }


@dataclasses.dataclass(frozen=True)
class Runnable:
    """Tells which graphs the conductors that are up can run.

    While no conductor is known to be up, every graph counts as one that can be run.
    """

    known: tuple[frozenset[str], ...] = ()
    """For each conductor that is up, the graphs that it knows: see `DaemonStatus.knows`."""

    def runs(self, kind: str, version: int, digest: str) -> bool:
        """Tell whether one of the conductors can run a flow of this graph."""
        return not self.known or any(
            exactly(kind, version, digest) in knows
            # A conductor of an older release reports no digests: its kind and version must do.
            or (f"{kind}@{version}" in knows and not any(_EXACT in each for each in knows))
            for knows in self.known
        )


def exactly(kind: str, version: int, digest: str) -> str:
    """Return ``KIND@VERSION#DIGEST``, which names a graph by its contents: the digest is made of its steps."""
    return f"{kind}@{version}{_EXACT}{digest}"


def kinds(knows: Iterable[str]) -> list[str]:
    """Return the names without a digest from what a conductor knows: these are shown to people."""
    return [each for each in knows if _EXACT not in each]


def runnable(connection: Executor) -> Runnable:
    """Read which graphs the conductors that are up can run."""
    rows = connection.execute(_CONDUCTORS).all()
    return Runnable(tuple(frozenset(row.knows) for row in rows if row.now - row.seen_at <= LATE))


def beat(session: orm.Session, status: DaemonStatus) -> None:
    """Write the conductor's row, so that it counts as up until `LATE` from now.

    The first call of a process also deletes the rows of conductors that have been down for longer than `KEPT`.
    """
    now = database_time(session)
    row = session.get(Daemon, (CONDUCTOR, status.name))
    if row is None:
        session.execute(
            sa.delete(Daemon).where(Daemon.kind == CONDUCTOR, Daemon.seen_at < now - KEPT),
            execution_options={"synchronize_session": False},
        )
        session.add(_row(CONDUCTOR, status, now))
    else:
        row.seen_at = now


def leave(session: orm.Session, name: str) -> None:
    """Record that the conductor has ended; nothing happens when it has no row."""
    row = session.get(Daemon, (CONDUCTOR, name))
    if row is not None:
        row.gone_at = database_time(session)


def mirror(session: orm.Session, registered: Mapping[str, DaemonStatus]) -> None:
    """Bring the workers' rows in line with their registrations; several conductors may do this at the same time."""
    now = database_time(session)
    rows = {row.name: row for row in session.scalars(_WORKERS)}
    for name, status in registered.items():
        row = rows.get(name)
        if row is None:
            session.add(_row(WORKER, status, now))
        elif row.gone_at is not None or _differs(row, status):
            row.host, row.pid, row.version, row.knows = status.host, status.pid, status.version, list(status.knows)
            row.address, row.started_at, row.seen_at, row.gone_at = status.address, now, now, None
    for name, row in rows.items():
        if name not in registered and row.gone_at is None:
            row.gone_at = now


def known_workers(session: orm.Session) -> KnownWorkers:
    """Read what is known of the workers now."""
    last = session.scalar(_LAST_BEAT)
    return KnownWorkers(
        current=last is not None and database_time(session) - last <= LATE,
        workers={row.name: row for row in session.scalars(_WORKERS)},
    )


def listing(session: orm.Session, kind: str) -> list[tuple[Daemon, bool]]:
    """Return all daemons of the kind, in the order of their names, each with whether it is up."""
    now = database_time(session)
    rows = session.scalars(sa.select(Daemon).where(Daemon.kind == kind).order_by(Daemon.name))
    return [(row, row.gone_at is None and (kind == WORKER or now - row.seen_at <= LATE)) for row in rows]


def find(session: orm.Session, kind: str, name: str) -> tuple[Daemon, bool]:
    """Return the daemon and whether it is up; raise `droveway.errors.NotFound` when there is none of this name."""
    for row, up in listing(session, kind):
        if row.name == name:
            return row, up
    raise NotFound(f"{kind} {name} is unknown: droveway {kind} list shows the {kind}s")


def moves_of(session: orm.Session, conductor: str) -> list[str]:
    """Return the ids of the moves that the conductor has claimed and not given back."""
    return list(session.scalars(sa.select(Claim.move_id).where(Claim.owner == conductor, Claim.released_at.is_(None))))


def drain(session: orm.Session, host: str, *, on: bool, reason: str | None) -> None:
    """Drain the host's worker, so that no new move goes there, or end that (``on`` is False).

    Safe to repeat.  Raises `droveway.errors.NotFound` when the host never had a worker.
    """
    row, _up = find(session, WORKER, host)
    row.drained_at = database_time(session) if on else None
    row.drain_reason = reason if on else None


_CONDUCTORS: Final = sa.select(Daemon.knows, Daemon.seen_at, sa.func.utc_now().label("now")).where(
    Daemon.kind == CONDUCTOR, Daemon.gone_at.is_(None)
)
_WORKERS: Final = sa.select(Daemon).where(Daemon.kind == WORKER)
_LAST_BEAT: Final = sa.select(sa.func.max(Daemon.seen_at)).where(Daemon.kind == CONDUCTOR, Daemon.gone_at.is_(None))


def _row(kind: str, status: DaemonStatus, now: dt.datetime) -> Daemon:
    return Daemon(
        kind=kind,
        name=status.name,
        host=status.host,
        pid=status.pid,
        version=status.version,
        knows=list(status.knows),
        address=status.address,
        started_at=now,
        seen_at=now,
    )


def _differs(row: Daemon, status: DaemonStatus) -> bool:
    return (row.host, row.pid, row.version, row.knows, row.address) != (
        status.host,
        status.pid,
        status.version,
        list(status.knows),
        status.address,
    )
