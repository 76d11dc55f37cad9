"""Reads the queue in the journal: which of its moves the keeper has to look at, and what a queued move waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import sqlalchemy as sa
from oslo_config import cfg

from droveway.engines.keeper.admission import Admission, Kind, Limits, Racks, places
from droveway.persistence.database import Database
from droveway.persistence.journal import cell_waits, daemons, kinds, open_flows
from droveway.persistence.journal.daemons import Runnable
from droveway.persistence.journal.states import BEGUN, State
from droveway.persistence.nova import catalog

_ROOM: Final = {
    Kind.ALL: "its turn: {limit} run at a time ([keeper] max_running)",
    Kind.CELL: "room in cell {name}: {limit} run from or to it at a time ([keeper] per_cell)",
    Kind.HOST: "room on host {name}: {limit} run from or to it at a time ([keeper] per_host)",
    Kind.RACK: "room in rack {name}: {limit} run from or to it at a time ([keeper] per_rack)",
}

PASSED_AT_ONCE: Final = 200
"""How many more moves of the queue are read at a time, once some had to be passed over."""


def racks_of(api: Database, conf: cfg.ConfigOpts) -> Racks:
    """Read the racks of all hosts; none where racks have no limit."""
    return catalog.racks(api, conf.keeper.rack_key) if conf.keeper.per_rack else {}


def head(
    connection: sa.Connection,
    offered: Collection[str],
    admission: Admission,
    racks: Racks,
    runnable: Runnable,
    away: Collection[str] = (),
) -> list[sa.Row[Any]]:
    """Read the moves of the queue that there may be room for.

    Moves that need a place known to be full are left out, except the oldest: room is kept for it.  A move that no
    conductor which is up can run takes no room.  Nor does a move from a cell that is ``away``.  The list may have such
    moves too.
    """

    def goes(row: sa.Row[Any]) -> bool:
        return runs(row, runnable) and row.source_cell not in away

    # The oldest is read even if its places are full, since room is kept for it.
    page = open_flows.oldest(connection, offered) if admission.room() and admission.full() else []
    found = [*page]
    while True:
        for row in page:
            if goes(row):
                admission.admit(places(row, racks))
        if not (room := admission.room()):
            return found
        full = admission.full()
        hosts = {place.name for place in full if place.kind is Kind.HOST}
        hosts |= {host for host, its in racks.items() if any((Kind.RACK, rack) in full for rack in its)}
        cells = {place.name for place in full if place.kind is Kind.CELL} | {*away}
        beside = [*offered, *(row.uuid for row in found)]
        # Once a move was passed over, more are read at a time, so that passing many takes few reads.
        most = room if all(goes(row) for row in page) else max(room, PASSED_AT_ONCE)
        page = open_flows.next_ones(connection, beside, hosts=hosts, cells=cells, most=most)
        found += page
        if len(page) < most:
            return found


def runs(row: sa.Row[Any], runnable: Runnable) -> bool:
    """Tell whether some conductor that is up can run the move's flow."""
    return row.uuid is None or runnable.runs(row.kind, row.version, row.digest)


def waits(row: sa.Row[Any]) -> bool:
    """Tell whether the flow has begun and waits for its cell's database, as the last conductor that tried it noted."""
    return row.uuid is not None and row.waits_for is not None and State(row.state) in BEGUN


def away(rows: Iterable[sa.Row[Any]], can_run: Callable[[sa.Row[Any]], bool]) -> frozenset[str]:
    """Return the cells whose databases are away, by the flows that wait for them and are tried again and again."""
    tried = (row for row in rows if waits(row) and not row.hold and not row.frozen and can_run(row))
    return frozenset(cell_waits.named(row.waits_for) or row.source_cell for row in tried)


def nobody_runs(row: sa.Row[Any]) -> str:
    """Say what a move waits for when no conductor that is up can run its flow."""
    return (
        f"a conductor that knows {row.kind}@{row.version} as it was filed: those that are up are of another release "
        "(droveway conductor list)"
    )


def foreign(journal: Database, move_id: str) -> str | None:
    """Say what the move waits for if its flow has begun and no conductor that is up can run it; else None."""
    with journal.reading() as connection:
        row = open_flows.one(connection, move_id)
        unable = row is not None and not runs(row, daemons.runnable(connection))
        return nobody_runs(row) if row is not None and unable else None


def waits_for(journal: Database, move_id: str, limits: Limits, racks: Racks) -> str | None:
    """Say what the queued move waits for, by the journal alone; None when it is held, or queued no more."""
    with journal.reading() as connection:
        if (move := open_flows.one_queued(connection, move_id)) is None:
            return None
        begun = open_flows.under_way(connection)
        running = [
            places(row, racks)
            for row in begun
            if row.state == State.RUNNING and kinds.of(row.kind).limited and not waits(row)
        ]
        runnable = daemons.runnable(connection)
        if not runs(move, runnable):
            return nobody_runs(move)
        gone = away(begun, lambda row: runs(row, runnable))
        if move.source_cell in gone:
            return f"the database of cell {move.source_cell}, for which moves that have begun wait too"
        admission = Admission(limits, running)
        # In the journal, moves that are offered are still queued.
        before = head(connection, [], Admission(limits, running), racks, runnable, gone)
        for row in before:
            if not runs(row, runnable) or row.source_cell in gone:
                continue
            full = admission.admit(places(row, racks))
            if row.id == move_id and full is None:
                return "a conductor: those that run have their threads at work, or none runs"
        full = admission.admit(places(move, racks))
        older = open_flows.count_older(connection, move)
    if full is None:
        return None
    told = _ROOM[full.kind].format(name=full.name, limit=limits.of(full))
    return f"{told}, and {older} of those that wait were asked for before it"
