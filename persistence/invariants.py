"""Checks that the journal's rows agree with each other, and that Nova's tables have the columns that Droveway uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import Database
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim, Counter, Move, MoveFlow
from droveway.persistence.nova import api, cell_hosts
from droveway.persistence.restored import EPOCH
from droveway.printable import SHORT

_RESTORE: Final = "restore the journal from a backup, then droveway db adopt"
_AT_REST: Final = (State.VERIFYING, State.DELETING, State.NEEDS_OPERATOR)

CELL: Final = cell_hosts.ComputeNode.metadata
API: Final = api.CellMapping.metadata


class Broken(NamedTuple):
    """One check that failed: what it is about, what is wrong, and what mends it."""

    subject: str
    detail: str
    mend: str


def journal(session: orm.Session) -> Iterator[Broken]:
    """Yield each invariant of the journal that does not hold."""
    for move in session.scalars(sa.select(Move).order_by(Move.created_at, Move.id)):
        yield from _move(session, move)
    mark = session.scalar(sa.select(Counter.value).where(Counter.name == EPOCH)) or 0
    for claim in session.scalars(sa.select(Claim).where(Claim.epoch > mark)):
        yield Broken(
            f"move {claim.move_id[:SHORT]}",
            f"its claim has epoch {claim.epoch}, and the journal has counted to {mark} only",
            _RESTORE,
        )


def columns(database: Database, wanted: sa.MetaData) -> Iterator[Broken]:
    """Yield each table and column of Nova's that Droveway uses and the database lacks."""
    inspector = sa.inspect(database.engine)
    there = set(inspector.get_table_names())
    mend = "bring Nova's schema to a release that has it: nova-manage db sync, nova-manage api_db sync"
    for table in wanted.sorted_tables:
        if table.name not in there:
            yield Broken(f"table {table.name}", "it is missing", mend)
            continue
        present = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                yield Broken(f"table {table.name}", f"column {column.name} is missing", mend)


def _move(session: orm.Session, move: Move) -> Iterator[Broken]:
    subject, state = f"move {move.id[:SHORT]}", State(move.state)
    if state in ENDED:
        if move.active_server is not None or move.flow_uuid is not None:
            yield Broken(subject, f"it is {state}, and still holds its server or a flow", _RESTORE)
        return
    if move.active_server != move.server:
        yield Broken(subject, f"it is {state}, and does not hold its server", _RESTORE)
    if state is State.NEEDS_OPERATOR and move.parked_from is None:
        yield Broken(subject, "it needs an operator, and the state before that is not recorded", _RESTORE)
    if move.flow_uuid is None:
        if state not in _AT_REST:
            yield Broken(subject, f"it is {state}, and has no flow to run", _RESTORE)
        return
    flow = session.get(MoveFlow, move.flow_uuid)
    if flow is None or flow.move_id != move.id or flow.ended_at is not None:
        yield Broken(subject, "the flow that it is to run is missing, another move's, or has ended", _RESTORE)
