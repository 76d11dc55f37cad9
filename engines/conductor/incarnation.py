"""Tells a journal that was restored from an older copy, or is another's, from the one that ZooKeeper and hosts know.

What only ever grows, the journal's epoch, is mirrored in a node beside the incarnation, and each worker says how far it
has seen it.  A journal that stands below either is older than what its daemons have done: nothing runs on it.

The node is the conductors' own, and each epoch stands there before any host is told of it.  So a worker that has seen a
higher one tells what nobody gave it: it is named and left out.  Where the node is gone with a ZooKeeper that was wiped,
the workers are the only ones who know, and are believed as far as any journal can be behind.
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
"""So many epochs, or numbers of steps, at most a journal can be behind what its hosts have seen."""

_COUNTERS: Final = sa.select(Counter.name, Counter.value)
_OTHER: Final = (
    "the journal is another one than this ZooKeeper's daemons have used last, so nothing runs: put the newest copy "
    f"back, or take it as it is with  {ADOPT}, which parks every unfinished move"
)


def begin(coordination: Coordination, journal: Database, *, ignored: Collection[str] = ()) -> None:
    """Give a new journal its incarnation, and ZooKeeper its mark; for a daemon that starts.

    Raises `Restored` when the mark or a worker knows of a later journal; workers of ``ignored`` hosts are not asked.
    """
    with journal.write() as session:
        if _mark(session).incarnation is None:
            session.add(Counter(name=INCARNATION, value=new_incarnation()))
    incarnation = require(coordination, journal)
    asked = [each for host, each in registrations.workers(coordination).items() if host not in ignored]
    # After the registrations: what they tell by right was given out before.
    most, own = given(coordination, journal)
    seen = max(believed(asked, most), key=lambda each: each.epoch, default=None)
    if seen is not None:
        told = Mark(incarnation=incarnation, epoch=seen.epoch)
        if why := _why(Mark(incarnation=incarnation, epoch=own), f"the worker of host {seen.host} has seen ", told):
            raise Restored(f"{why}; a host that lies is left out by  droveway conductor run --ignore-host {seen.host}")
    raise_mark(coordination, incarnation, own)


def given(coordination: Coordination, journal: Database) -> tuple[int, int]:
    """The highest epoch that any host can have been given, and the journal's own."""
    mark = read_mark(coordination)
    with journal.reading() as connection:
        own = _mark(connection).epoch
    return (own + GAP if mark is None else max(own, mark.epoch)), own


def believed(told: Iterable[commands.Registration], most: int) -> list[commands.Registration]:
    """Those of the workers that have seen no higher epoch than ``most``; of the others it is told that they lie."""
    found = []
    for each in told:
        if each.epoch <= most:
            found.append(each)
        else:
            why = f"it has seen epoch {each.epoch}, and none above {most} was given to any host"
            registrations.REFUSED.log_once(f"The registration of host {each.host} is refused", why)
    return found


def require(coordination: Coordination, journal: Database) -> int | None:
    """The journal's incarnation, None for one that never had any; raises `Restored`."""
    mark = read_mark(coordination)
    with journal.reading() as connection:
        return compare(mark, connection)


def compare(mark: Mark | None, connection: Executor) -> int | None:
    """As `require`, over a mark that was read before ``connection`` began to read: what it says was there by then."""
    own = _mark(connection)
    if mark is not None and own.incarnation is not None and (why := _why(own, "ZooKeeper has seen ", mark)):
        raise Restored(why)
    return own.incarnation


def raise_mark(coordination: Coordination, incarnation: int | None, epoch: int) -> None:
    """Let the mark say that this epoch was given out; a higher one stays."""
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
    """What ZooKeeper knows; None for one that is new or was wiped.  Raises `Restored` for what is no mark."""
    found = coordination.get(MARK)
    return None if found is None else _decoded(found[0])


def _mark(connection: Executor) -> Mark:
    """Read what the journal says of itself."""
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
