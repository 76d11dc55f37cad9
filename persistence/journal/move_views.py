"""Read-only views of moves and their history, as plain rows.

The queries name the tables and columns directly.  To import the journal's models would take longer than a command that
lists moves may take.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from droveway.errors import NotFound, Refused
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal.policy_names import MANUAL
from droveway.persistence.journal.states import ENDED, State
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
            *("transfer", "asked_by", "project", "error", "error_code", "health", "health_reason", "waits_for"),
        )
    ),
)
_STEPS: Final = sa.table(
    "move_steps",
    *(sa.column(name, sa.Integer) for name in ("seq", "attempt", "epoch")),
    *(sa.column(name, sa.DateTime) for name in ("started_at", "ended_at")),
    *(sa.column(name, sa.JSON) for name in ("result", "error")),
    *(sa.column(name, sa.String) for name in ("move_id", "flow", "flow_uuid", "step", "direction", "host")),
)

_CLAIMS: Final = sa.table(
    "claims",
    *(sa.column(name, sa.String) for name in ("move_id", "owner")),
    *(sa.column(name, sa.Integer) for name in ("epoch", "unclean")),
    *(sa.column(name, sa.DateTime) for name in ("claimed_at", "released_at")),
)

View = sa.Row[Any]
"""A row; its attributes are the columns, named as in `droveway.persistence.journal.tables`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """Holds the conditions on the moves that a list shows; a field that is None or empty is no condition."""

    server: str | None = None
    """The server's id, or the name that it had when one of its moves began: all moves of such servers are listed."""
    host: str | None = None
    """The host is the source, the destination, or the destination that was asked for."""
    cell: str | None = None
    """The cell is the source's or the destination's."""
    project: str | None = None
    states: Sequence[str] = ()
    kinds: Sequence[str] = ()
    since: dt.datetime | None = None
    """The move was asked for at this moment (naive, UTC) or later."""
    before: dt.datetime | None = None
    """The move was asked for before this moment (naive, UTC)."""
    stuck_before: dt.datetime | None = None
    """The move is stuck by the rule of `droveway.persistence.journal.stuck.reason`.

    By this rule a move is late when it has made no progress since this moment (naive, UTC), or when its deadline was
    before this moment.
    """
    older_than: View | None = None
    """The move comes after this one in the list, whose order is newest first."""


def listing(journal: Database, wanted: Wanted, *, limit: int | None = None) -> list[View]:
    """Return the moves, newest first; at most ``limit`` of them."""
    newest_first = (_MOVES.c.created_at.desc(), _MOVES.c.id.desc())
    return _rows(journal, sa.select(_MOVES).where(*_conditions(wanted)).order_by(*newest_first).limit(limit))


def count(journal: Database, wanted: Wanted) -> int:
    """Return how many moves fulfil the conditions."""
    with journal.read() as session:
        return session.scalars(sa.select(sa.func.count()).select_from(_MOVES).where(*_conditions(wanted))).one()


def _conditions(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    moves, found = _MOVES.c, list[sa.ColumnElement[bool]]()
    if wanted.server is not None:
        named = sa.or_(moves.server == wanted.server, moves.server_name == wanted.server)
        found.append(moves.server.in_(sa.select(moves.server).where(named)))
    if wanted.host is not None:
        hosts = (moves.source_host, moves.dest_host, moves.target_host)
        found.append(sa.or_(*(host == wanted.host for host in hosts)))
    if wanted.cell is not None:
        found.append(sa.or_(moves.source_cell == wanted.cell, moves.dest_cell == wanted.cell))
    if wanted.project is not None:
        found.append(moves.project == wanted.project)
    if wanted.states:
        found.append(moves.state.in_(wanted.states))
    if wanted.kinds:
        found.append(moves.kind.in_(wanted.kinds))
    if wanted.since is not None:
        found.append(moves.created_at >= wanted.since)
    if wanted.before is not None:
        found.append(moves.created_at < wanted.before)
    if wanted.stuck_before is not None:
        found.append(_stuck(wanted.stuck_before))
    if wanted.older_than is not None:
        at, number = wanted.older_than.created_at, wanted.older_than.id
        found.append(sa.or_(moves.created_at < at, sa.and_(moves.created_at == at, moves.id < number)))
    return found


def _stuck(moment: dt.datetime) -> sa.ColumnElement[bool]:
    """Return the rule of `droveway.persistence.journal.stuck.reason` as an SQL condition."""
    moves = _MOVES.c
    silent = sa.and_(moves.updated_at < moment, sa.or_(moves.progress_at.is_(None), moves.progress_at < moment))
    undone = sa.or_(moves.error_code.is_not(None), sa.and_(moves.deadline.is_(None), moves.policy != MANUAL))
    return sa.and_(
        moves.state.not_in([state.value for state in ENDED]),
        moves.hold.is_(False),
        sa.or_(
            moves.state == State.NEEDS_OPERATOR.value,
            moves.waits_for != "",
            sa.and_(moves.state == State.VERIFYING.value, sa.or_(moves.deadline < moment, undone)),
            sa.and_(moves.state != State.VERIFYING.value, silent),
        ),
    )


def now(journal: Database) -> dt.datetime:
    """Read the journal's own clock (UTC, naive), by which all its times are."""
    with journal.read() as session:
        found: dt.datetime = database_time(session)
        return found


def find(journal: Database, name: str) -> View:
    """Return the move whose id is ``name`` or begins with it.

    Raises `droveway.errors.NotFound` when none does, and `droveway.errors.Refused`, naming the ids, when several do.
    """
    matches = _rows(journal, sa.select(_MOVES).where(_MOVES.c.id.startswith(name, autoescape=True)).limit(_MOST_NAMED))
    if not matches:
        raise NotFound(f"no move's id begins with {name}: droveway move list shows the moves")
    if len(matches) > 1:
        ids = ", ".join(move.id[: SHORT + 4] for move in matches)
        raise Refused(f"several moves begin with {name} ({ids}): give more letters of the id")
    return matches[0]


def open_of(journal: Database, server: str) -> str | None:
    """Return the id of the server's move that has not ended; None when it has none."""
    moves = _MOVES.c
    wanted = (moves.server == server, moves.state.not_in([state.value for state in ENDED]))
    with journal.read() as session:
        return session.scalar(sa.select(moves.id).where(*wanted).limit(1))


def history(journal: Database, move_id: str) -> list[View]:
    """Return all runs of the move's steps and undos, in the order in which they began."""
    return _rows(journal, sa.select(_STEPS).where(_STEPS.c.move_id == move_id).order_by(_STEPS.c.seq))


def claim(journal: Database, move_id: str) -> View | None:
    """Return the move's last claim; None when nobody ever claimed it."""
    return next(iter(_rows(journal, sa.select(_CLAIMS).where(_CLAIMS.c.move_id == move_id))), None)


def _rows(journal: Database, query: sa.Select[Any]) -> list[View]:
    with journal.read() as session:
        return list(session.execute(query))
