"""The queue in the journal: what of it the keeper has to look at, and what a move in it waits for."""

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
"""So many more of the queue are looked at when some of it is passed."""


def racks_of(api: Database, conf: cfg.ConfigOpts) -> Racks:
    """The racks of all hosts, where there is a limit for them."""
    return catalog.racks(api, conf.keeper.rack_key) if conf.keeper.per_rack else {}


def head(
    connection: sa.Connection,
    offered: Collection[str],
    admission: Admission,
    racks: Racks,
    runnable: Runnable,
    away: Collection[str] = (),
) -> list[sa.Row[Any]]:
    """As much of the queue as there may be room for: no move of which it is known that a place of it is full.

    What no conductor can run that is up takes no room, and is passed; so is all that is of a cell which is ``away``.
    """

    def goes(row: sa.Row[Any]) -> bool:
        return runs(row, runnable) and row.source_cell not in away

    # For the oldest room is kept, wherever that is.
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
        # Whoever has to pass many of them does it in few looks.
        most = room if all(goes(row) for row in page) else max(room, PASSED_AT_ONCE)
        page = open_flows.next_ones(connection, beside, hosts=hosts, cells=cells, most=most)
        found += page
        if len(page) < most:
            return found


def runs(row: sa.Row[Any], runnable: Runnable) -> bool:
    """Whether some conductor that is up can run the move's flow."""
    return row.uuid is None or runnable.runs(row.kind, row.version, row.digest)


def waits(row: sa.Row[Any]) -> bool:
    """Whether a flow that has begun waits for the database of its cell, as the last conductor that tried it said."""
    return row.uuid is not None and row.waits_for is not None and State(row.state) in BEGUN


def away(rows: Iterable[sa.Row[Any]], can_run: Callable[[sa.Row[Any]], bool]) -> frozenset[str]:
    """The cells whose databases are away: flows that are tried again and again wait for them."""
    tried = (row for row in rows if waits(row) and not row.hold and not row.frozen and can_run(row))
    return frozenset(cell_waits.named(row.waits_for) or row.source_cell for row in tried)


def nobody_runs(row: sa.Row[Any]) -> str:
    """What a move waits for whose flow no conductor can run that is up."""
    return (
        f"a conductor that knows {row.kind}@{row.version} as it was filed: those that are up are of another release "
        "(droveway conductor list)"
    )


def foreign(journal: Database, move_id: str) -> str | None:
    """What the move waits for when a flow of it has begun that no conductor can run any more; else None."""
    with journal.reading() as connection:
        row = open_flows.one(connection, move_id)
        unable = row is not None and not runs(row, daemons.runnable(connection))
        return nobody_runs(row) if row is not None and unable else None


def waits_for(journal: Database, move_id: str, limits: Limits, racks: Racks) -> str | None:
    """What the queued move waits for, by the journal alone; None when it is held, or queued no more."""
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
            return f"the database of cell {move.source_cell}, for which moves wait that have begun"
        admission = Admission(limits, running)
        # Those that are offered, too, are still queued in the journal.
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
