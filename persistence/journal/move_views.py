"""Moves and their history for reading only, as plain rows.

Speaks to the tables directly: mapping the journal's models takes longer than a listing may.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from droveway.errors import NotFound, Refused
from droveway.persistence.database import Database, database_time
from droveway.printable import SHORT

_MOST_NAMED: Final = 6
_TIMES: Final = ("created_at", "updated_at", "ended_at", "deadline", "progress_at")
_BYTES: Final = ("progress_done", "progress_total", "progress_kept")
_MOVE_FLAGS: Final = ("hold", "cancel_requested", "delete_requested")

_MOVES: Final = sa.table(
    "moves",
    *(sa.column(name, sa.DateTime) for name in _TIMES),
    *(sa.column(name, sa.Boolean) for name in _MOVE_FLAGS),
    sa.column("progress_seconds", sa.Double),
    *(sa.column(name, sa.Integer) for name in ("step_number", "step_count", "attempt", "keep_seconds", *_BYTES)),
    *(
        sa.column(name, sa.String)
        for name in (
            *("id", "kind", "server", "server_name", "state", "parked_from", "step", "source_cell", "source_host"),
            *("dest_cell", "dest_host", "target_host", "old_flavor", "new_flavor", "storage", "policy", "reason"),
            *("transfer", "asked_by", "error", "error_code", "health", "health_reason", "waits_for"),
        )
    ),
)
_STEPS: Final = sa.table(
    "move_steps",
    *(sa.column(name, sa.Integer) for name in ("seq", "attempt")),
    *(sa.column(name, sa.DateTime) for name in ("started_at", "ended_at")),
    *(sa.column(name, sa.JSON) for name in ("result", "error")),
    *(sa.column(name, sa.String) for name in ("move_id", "flow", "step", "direction", "host")),
)

_CLAIMS: Final = sa.table(
    "claims",
    *(sa.column(name, sa.String) for name in ("move_id", "owner")),
    *(sa.column(name, sa.Integer) for name in ("epoch", "unclean")),
    *(sa.column(name, sa.DateTime) for name in ("claimed_at", "released_at")),
)

View = sa.Row[Any]
"""A row whose columns are attributes, named as those of `droveway.persistence.journal.tables`."""


def listing(
    journal: Database, *, server: str | None = None, states: Sequence[str] = (), kinds: Sequence[str] = ()
) -> list[View]:
    """Return moves, oldest first, narrowed by what is given; ``server`` by id or name."""
    query = sa.select(_MOVES).order_by(_MOVES.c.created_at, _MOVES.c.id)
    if server:
        query = query.where(sa.or_(_MOVES.c.server == server, _MOVES.c.server_name == server))
    if states:
        query = query.where(_MOVES.c.state.in_(states))
    if kinds:
        query = query.where(_MOVES.c.kind.in_(kinds))
    return _rows(journal, query)


def now(journal: Database) -> dt.datetime:
    """The clock by which the journal's times are."""
    with journal.read() as session:
        found: dt.datetime = database_time(session)
        return found


def find(journal: Database, name: str) -> View:
    """The move by its id or the first letters of it; raises NotFound, or Refused naming the ids when several match."""
    matches = _rows(journal, sa.select(_MOVES).where(_MOVES.c.id.startswith(name, autoescape=True)).limit(_MOST_NAMED))
    if not matches:
        raise NotFound(f"no move's id begins with {name}: droveway move list shows the moves")
    if len(matches) > 1:
        ids = ", ".join(move.id[: SHORT + 4] for move in matches)
        raise Refused(f"several moves begin with {name} ({ids}): give more letters of the id")
    return matches[0]


def history(journal: Database, move_id: str) -> list[View]:
    """Every run of every step and undo, in order."""
    return _rows(journal, sa.select(_STEPS).where(_STEPS.c.move_id == move_id).order_by(_STEPS.c.seq))


def claim(journal: Database, move_id: str) -> View | None:
    """The move's last claim; None when nobody ever claimed it."""
    return next(iter(_rows(journal, sa.select(_CLAIMS).where(_CLAIMS.c.move_id == move_id))), None)


def _rows(journal: Database, query: sa.Select[Any]) -> list[View]:
    with journal.read() as session:
        return list(session.execute(query))
