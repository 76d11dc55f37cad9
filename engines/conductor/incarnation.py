"""Recognises a journal that was put back from an older copy, or that belongs to another installation.

A journal gets an id when it is new, its *incarnation*.  Its epoch only ever grows.  A node in ZooKeeper, the *mark*,
holds the incarnation and the highest epoch that was given out.  If the journal's own epoch is below the mark's, the
journal is older than what its daemons have done, and nothing runs on it.

Each worker also says the highest epoch that it has seen.  Only conductors write the mark, and they write an epoch there
before they tell it to any host.  So no worker can have seen an epoch above both the mark's and the journal's.  A worker
that says so is wrong: the log names the worker, and its epoch is not used.  If ZooKeeper was wiped, the mark is gone.
Then the workers' epochs take the mark's place, and are believed up to `GAP` above the journal's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
import sqlalchemy as sa

from droveway.clients.zookeeper import ROOT, Coordination
from droveway.engines.conductor import registrations
from droveway.persistence.database import Database, Executor
from droveway.persistence.journal.tables import Counter
from droveway.persistence.restored import (
    ADOPT,
    EPOCH,
    INCARNATION,
    Mark,
    Restored,
    contradiction,
    new_incarnation,
)
from droveway.wire import commands

MARK: Final = f"{ROOT}/journal"

GAP: Final = 1_000_000
"""How many epochs, or numbers of steps, a journal can at most be behind what its hosts have seen."""

_COUNTERS: Final = sa.select(Counter.name, Counter.value)
_OTHER: Final = (
    "the journal is another one than this ZooKeeper's daemons have used last, so nothing runs: put the newest copy "
    f"back, or take it as it is with  {ADOPT}, which parks every unfinished move"
)


def begin(coordination: Coordination, journal: Database, *, ignored: Collection[str] = ()) -> None:
    """Give a new journal its incarnation, and ZooKeeper its mark; a daemon calls this when it starts.

    Raises `Restored` when the mark is ahead of the journal, or belongs to another one.  If there is no mark, a worker
    that has seen a later epoch than the journal's raises it too; workers of ``ignored`` hosts are not asked.
    """
    with journal.write() as session:
        if _mark(session).incarnation is None:
            session.add(Counter(name=INCARNATION, value=new_incarnation()))
    incarnation = require(coordination, journal)
    asked = [each for host, each in registrations.workers(coordination).items() if host not in ignored]
    # Read after the registrations: any epoch that they can rightly name stands in the mark by now.
    most, own = given(coordination, journal)
    seen = max(believed(asked, most), key=lambda each: each.epoch, default=None)
    if seen is not None:
        told = Mark(incarnation=incarnation, epoch=seen.epoch)
        if why := _why(Mark(incarnation=incarnation, epoch=own), f"the worker of host {seen.host} has seen ", told):
            raise Restored(f"{why}; a host that lies is left out by  droveway conductor run --ignore-host {seen.host}")
    raise_mark(coordination, incarnation, own)


def given(coordination: Coordination, journal: Database) -> tuple[int, int]:
    """Return the highest epoch that any host can have been given, and the journal's own epoch."""
    mark = read_mark(coordination)
    with journal.reading() as connection:
        own = _mark(connection).epoch
    return (own + GAP if mark is None else max(own, mark.epoch)), own


def believed(told: Iterable[commands.Registration], most: int) -> list[commands.Registration]:
    """Return the workers that have seen no epoch above ``most``; log that the others are refused."""
    found = []
    for each in told:
        if each.epoch <= most:
            found.append(each)
        else:
            why = f"it has seen epoch {each.epoch}, and none above {most} was given to any host"
            registrations.REFUSED.log_once(f"The registration of host {each.host} is refused", why)
    return found


def require(coordination: Coordination, journal: Database) -> int | None:
    """Return the journal's incarnation, None for one without; raises `Restored` if the mark is ahead of the journal."""
    mark = read_mark(coordination)
    with journal.reading() as connection:
        return compare(mark, connection)


def compare(mark: Mark | None, connection: Executor) -> int | None:
    """Do as `require` with a mark that was read before ``connection`` began to read.

    The order matters: a sound journal has everything that the mark named before the journal was read.
    """
    own = _mark(connection)
    if mark is not None and own.incarnation is not None and (why := _why(own, "ZooKeeper has seen ", mark)):
        raise Restored(why)
    return own.incarnation


def raise_mark(coordination: Coordination, incarnation: int | None, epoch: int) -> None:
    """Let the mark say that this epoch was given out; a higher one stays.

    Raises `Restored` when the mark belongs to another journal, or cannot be read.
    """
    if incarnation is None:
        return
    data = msgspec.json.encode(Mark(incarnation=incarnation, epoch=epoch))
    while True:
        present = coordination.get(MARK, sync=True)
        if present is None:
            if coordination.create(MARK, data):
                return
            continue
        mark = _decoded(present[0])
        if mark.incarnation != incarnation:
            raise Restored(_OTHER)
        if mark.epoch >= epoch or coordination.put(MARK, data, version=present[1]):
            return


def read_mark(coordination: Coordination) -> Mark | None:
    """Read the mark; None when ZooKeeper is new or was wiped.  Raises `Restored` when the node holds no mark."""
    found = coordination.get(MARK)
    return None if found is None else _decoded(found[0])


def _mark(connection: Executor) -> Mark:
    """Read the journal's own incarnation and epoch."""
    counters = {row.name: row.value for row in connection.execute(_COUNTERS)}
    return Mark(incarnation=counters.get(INCARNATION), epoch=counters.get(EPOCH, 0))


def _why(own: Mark, who: str, seen: Mark) -> str:
    """Say in which way the journal is not the one that ``who`` has seen; empty when it is."""
    told = [(who, seen.standing(seen.incarnation))]
    return contradiction("the journal", own.standing(own.incarnation), told, another=_OTHER, newest="copy")


def _decoded(data: bytes) -> Mark:
    try:
        return msgspec.json.decode(data, type=Mark)
    except msgspec.DecodeError as error:
        raise Restored(
            f"the node {MARK} holds no mark of a journal ({error}), so nothing runs: see who writes to ZooKeeper, and "
            f"take the journal as it is with  {ADOPT}"
        ) from None
