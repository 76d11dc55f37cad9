"""What the journal knows of the daemons: the conductors' own word, and the workers as conductors see them registered.

Commands speak to no ZooKeeper, so this is what they know.
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
"""A conductor that has not written its row for so long is taken to be down."""

KEPT: Final = dt.timedelta(days=1)
"""So long the rows of conductors that are down stay: each process has a row of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DaemonStatus:
    """What a daemon says of itself."""

    name: str
    host: str
    pid: int
    version: str
    knows: tuple[str, ...]
    address: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownWorkers:
    """What is known of the workers at one time."""

    current: bool
    """Whether a conductor is up that would have noticed a change; else this is what the last one saw."""
    workers: Mapping[str, Daemon]
    """Every worker that ever registered, by its host."""

    def away(self, hosts: Collection[str]) -> frozenset[str]:
        """Those of the hosts that have no worker; none when nobody is up who would know."""
        there = {host for host, worker in self.workers.items() if worker.gone_at is None}
        return frozenset(hosts) - there if self.current else frozenset()

    def drained(self) -> dict[str, str]:
        """Why each host that is drained takes no servers."""
        return {
            host: f"its worker is drained ({worker.drain_reason or 'no reason was given'})"
            for host, worker in self.workers.items()
            if worker.drained_at is not None
        }


@dataclasses.dataclass(frozen=True)
class Runnable:
    """The graphs that some conductor runs which is up; when none is known to be up, nobody can say: then all."""

    known: tuple[frozenset[str], ...] = ()
    """What each of them knows."""

    def runs(self, kind: str, version: int, digest: str) -> bool:
        """Whether one of them takes a flow of this graph."""
        return not self.known or any(
            exactly(kind, version, digest) in knows
            # One of a release that told no digests yet.
            or (f"{kind}@{version}" in knows and not any(_EXACT in each for each in knows))
            for knows in self.known
        )


def exactly(kind: str, version: int, digest: str) -> str:
    """The name of a graph by what it consists of."""
    return f"{kind}@{version}{_EXACT}{digest}"


def kinds(knows: Iterable[str]) -> list[str]:
    """The kinds and versions of what a conductor knows, for people."""
    return [each for each in knows if _EXACT not in each]


def runnable(connection: Executor) -> Runnable:
    """What the conductors that are up can run."""
    rows = connection.execute(_CONDUCTORS).all()
    return Runnable(tuple(frozenset(row.knows) for row in rows if row.now - row.seen_at <= LATE))


def beat(session: orm.Session, status: DaemonStatus) -> None:
    """Write the conductor's row; it is up for `LATE` from now on."""
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
    """The conductor has ended."""
    row = session.get(Daemon, (CONDUCTOR, name))
    if row is not None:
        row.gone_at = database_time(session)


def mirror(session: orm.Session, registered: Mapping[str, DaemonStatus]) -> None:
    """Bring the workers' rows in line with their registrations; several may do that at a time."""
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
    """What is known of the workers now."""
    last = session.scalar(_LAST_BEAT)
    return KnownWorkers(
        current=last is not None and database_time(session) - last <= LATE,
        workers={row.name: row for row in session.scalars(_WORKERS)},
    )


def listing(session: orm.Session, kind: str) -> list[tuple[Daemon, bool]]:
    """Every daemon of the kind by name, and whether it is up."""
    now = database_time(session)
    rows = session.scalars(sa.select(Daemon).where(Daemon.kind == kind).order_by(Daemon.name))
    return [(row, row.gone_at is None and (kind == WORKER or now - row.seen_at <= LATE)) for row in rows]


def find(session: orm.Session, kind: str, name: str) -> tuple[Daemon, bool]:
    """The daemon and whether it is up; raises `droveway.errors.NotFound`."""
    for row, up in listing(session, kind):
        if row.name == name:
            return row, up
    raise NotFound(f"{kind} {name} is unknown: droveway {kind} list shows the {kind}s")


def moves_of(session: orm.Session, conductor: str) -> list[str]:
    """The moves that the conductor has claimed and not given back."""
    return list(session.scalars(sa.select(Claim.move_id).where(Claim.owner == conductor, Claim.released_at.is_(None))))


def drain(session: orm.Session, host: str, *, on: bool, reason: str | None) -> None:
    """Let the host's worker take no new moves, or let it again; raises `droveway.errors.NotFound`. Safe to repeat."""
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
