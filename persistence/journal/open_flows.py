"""Queries of the keeper, the part of the leading conductor that admits queued moves and acts on deadlines.

They return the moves that run, those that may have to be acted on now, and as much of the queue as could be admitted.
A row is a move with the flow that it has to run: ``uuid`` is the flow's, and None for a move without such a flow, such
as one that waits for confirm or revert.

Most queries read only a few rows of an index, however long the queue is.  But `of_open_moves` reads all moves that are
open, `count_older` counts a part of the queue, and `next_ones` reads past the moves that it leaves out.

A queued move is *in line* when it is neither held (``droveway move pause``) nor frozen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from droveway.persistence.database import Executor
from droveway.persistence.journal.freezes import FROZEN
from droveway.persistence.journal.moves import OPEN, OPERATOR_WRITES, UNRELEASED_FLOWS
from droveway.persistence.journal.policy_names import HEALTHY
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move, MoveFlow

_COLUMNS: Final[tuple[Any, ...]] = (
    Move.id,
    Move.state,
    Move.hold,
    Move.cancel_requested,
    Move.delete_requested,
    Move.policy,
    Move.deadline,
    Move.confirm_seconds,
    Move.source_cell,
    Move.source_host,
    Move.dest_cell,
    Move.dest_host,
    Move.target_host,
    Move.health,
    Move.health_asked,
    Move.waits_for,
    FROZEN.label("frozen"),
    MoveFlow.uuid,
    MoveFlow.kind,
    MoveFlow.version,
    MoveFlow.digest,
    MoveFlow.created_at,
)
_TO_RUN: Final = sa.and_(MoveFlow.uuid == Move.flow_uuid, MoveFlow.ended_at.is_(None))
_OPEN: Final = OPEN.with_only_columns(*_COLUMNS).outerjoin(MoveFlow, _TO_RUN)
_ACTIVE: Final = frozenset(State) - ENDED - {State.QUEUED, State.NEEDS_OPERATOR}
_UNDER_WAY: Final = _OPEN.where(
    Move.state.in_(sorted(state.value for state in _ACTIVE)),
    sa.or_(Move.state != State.VERIFYING.value, Move.policy == HEALTHY, Move.deadline <= sa.func.utc_now()),
)
_QUEUED: Final = sa.select(*_COLUMNS).join(MoveFlow, _TO_RUN).order_by(Move.created_at, Move.id)
_IN_LINE: Final = sa.and_(Move.state == State.QUEUED.value, Move.hold.is_(False), ~FROZEN)


def _expanding(name: str) -> sa.BindParameter[list[str]]:
    return sa.bindparam(name, expanding=True)


def _first(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    # The subquery limits the moves before their flows are joined.  A database whose statistics are out of date, since
    # the tables were filled a moment ago, might otherwise plan to join all of them.
    oldest = sa.select(Move.id).where(_IN_LINE, *conditions).order_by(Move.created_at, Move.id)
    few = oldest.limit(sa.bindparam("most")).subquery()
    return _QUEUED.join(few, few.c.id == Move.id)


_OFFERED: Final = _QUEUED.where(_IN_LINE, Move.flow_uuid.in_(_expanding("flows")))
_NOT_THESE: Final = Move.flow_uuid.not_in(_expanding("flows"))
_OLDEST: Final = _first(_NOT_THESE)
_ROOM_FOR: Final = _first(
    _NOT_THESE,
    Move.source_cell.not_in(_expanding("cells")),
    Move.source_host.not_in(_expanding("hosts")),
    sa.or_(Move.target_host.is_(None), Move.target_host.not_in(_expanding("hosts"))),
)
_ONE_QUEUED: Final = _QUEUED.where(_IN_LINE, Move.id == sa.bindparam("move"))
_ONE: Final = _OPEN.where(Move.id == sa.bindparam("move"))
_OLDER: Final = sa.select(sa.func.count()).where(
    _IN_LINE,
    sa.tuple_(Move.created_at, Move.id) < sa.tuple_(sa.bindparam("created_at"), sa.bindparam("move")),
)
_LEFT: Final = UNRELEASED_FLOWS.with_only_columns(*_COLUMNS)
_NEWEST: Final = sa.select(sa.func.max(MoveFlow.created_at))


def of_open_moves(connection: Executor) -> Sequence[sa.Row[Any]]:
    """Return all moves that have not ended, oldest first."""
    return connection.execute(_OPEN).all()


def under_way(connection: Executor) -> Sequence[sa.Row[Any]]:
    """Return the moves that run, and the moves that wait for confirm or revert and whose policy may have to act now.

    Moves that wait for an operator are left out.  A move in `State.DELETING` counts as one that runs, even before its
    delete flow is filed.
    """
    return connection.execute(_UNDER_WAY).all()


def queued(connection: Executor, flows: Collection[str]) -> Sequence[sa.Row[Any]]:
    """Return the moves in line that have one of these flows to run."""
    return connection.execute(_OFFERED, {"flows": [*flows]}).all() if flows else []


def oldest(connection: Executor, leaving_out: Collection[str]) -> Sequence[sa.Row[Any]]:
    """Return the oldest move in line whose flow is not among ``leaving_out``: a list of one row, or of none."""
    return connection.execute(_OLDEST, {"flows": [*leaving_out], "most": 1}).all()


def next_ones(
    connection: Executor, leaving_out: Collection[str], *, hosts: Collection[str], cells: Collection[str], most: int
) -> Sequence[sa.Row[Any]]:
    """Return at most ``most`` moves in line, oldest first, for which the limits leave room.

    A move is left out when its flow is among ``leaving_out``, when its source is in one of the ``cells`` or on one of
    the ``hosts``, or when the destination that was asked for is one of the ``hosts``.
    """
    given = {"flows": [*leaving_out], "hosts": [*hosts], "cells": [*cells], "most": most}
    return connection.execute(_ROOM_FOR, given).all()


def one_queued(connection: Executor, move_id: str) -> sa.Row[Any] | None:
    """Return the move if it is in line, and None otherwise."""
    return connection.execute(_ONE_QUEUED, {"move": move_id}).first()


def one(connection: Executor, move_id: str) -> sa.Row[Any] | None:
    """Return the move if it has not ended, and None otherwise."""
    return connection.execute(_ONE, {"move": move_id}).first()


def count_older(connection: Executor, move: sa.Row[Any]) -> int:
    """Count the moves in line that were asked for before this one.

    ``move`` is a row of `one_queued`.  Its ``created_at`` is the time at which its flow was filed, which for a queued
    move is the time at which the move was asked for.
    """
    given = {"created_at": move.created_at, "move": move.id}
    return connection.execute(_OLDER, given).scalar_one()


def left(connection: Executor, now: dt.datetime) -> Sequence[sa.Row[Any]]:
    """Return the flows of `droveway.persistence.journal.moves.unreleased_flows`; ``now`` is the database's time."""
    return connection.execute(_LEFT, {"dead_since": now - OPERATOR_WRITES}).all()


def newest(connection: Executor) -> Any:
    """Return when the newest flow was filed; None when there is none.

    A flow gets its time before it is committed.  So a flow that is committed after this call may have an earlier time.
    """
    return connection.scalar(_NEWEST)
