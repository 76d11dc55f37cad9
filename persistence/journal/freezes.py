"""Freezes: each is a row that stands until a thaw deletes it, so that a freeze outlives every daemon.

A frozen move is not claimed.  If the move is under way when it is frozen, it goes on, but parks before a step that
deletes what cannot be brought back.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import NotFound
from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal.tables import Freeze, Move

Scope = Literal["all", "cell", "host"]

_COVERS: Final = sa.or_(
    Freeze.scope == "all",
    sa.and_(Freeze.scope == "cell", Freeze.name.in_([Move.source_cell, Move.dest_cell])),
    sa.and_(Freeze.scope == "host", Freeze.name.in_([Move.source_host, Move.dest_host, Move.target_host])),
)
# Built once: to build a statement takes far longer than to run it.
_OVER: Final = (
    sa.select(*Freeze.__table__.c).join(Move, _COVERS).where(Move.id == sa.bindparam("move")).order_by(Freeze.at)
)
FROZEN: Final = sa.select(Freeze.scope).where(_COVERS).correlate(Move).exists()
"""The condition that a freeze covers the move; it is for statements that select from `Move`."""

_HOSTS: Final = sa.select(Freeze).where(Freeze.scope == "host")


def freeze(session: orm.Session, scope: Scope, name: str, *, who: str, reason: str | None) -> None:
    """Freeze everything, a cell or a host; what is frozen already keeps its first row."""
    if session.get(Freeze, (scope, name)) is None:
        session.add(Freeze(scope=scope, name=name, reason=reason, who=who, at=database_time(session)))


def thaw(session: orm.Session, scope: Scope, name: str) -> None:
    """Delete that freeze; raise `droveway.errors.NotFound` when there is none."""
    row = session.get(Freeze, (scope, name))
    if row is None:
        raise NotFound(f"{_what(scope, name)} is not frozen: droveway freeze list shows what is")
    session.delete(row)


def listing(session: orm.Session) -> list[Freeze]:
    """Return all freezes, oldest first."""
    return list(session.scalars(sa.select(Freeze).order_by(Freeze.at)))


def over(transaction: Executor, move_id: str) -> str | None:
    """Return why the move is frozen, with the command that ends that; None when no freeze is over the move.

    If several freezes cover the move, the sentence is about the oldest one.
    """
    row = transaction.execute(_OVER, {"move": move_id}).first()
    return None if row is None else _sentence(row)


def hosts(session: orm.Session) -> dict[str, str]:
    """Return each host that is frozen by its own name, with the reason why it takes no servers."""
    return {row.name: f"it is frozen by {row.who}{_because(row.reason)}" for row in session.scalars(_HOSTS)}


def _sentence(row: Any) -> str:
    option = "" if row.scope == "all" else f" --{row.scope} {row.name}"
    return f"{_what(row.scope, row.name)} is frozen by {row.who}{_because(row.reason)}: droveway thaw{option} ends that"


def _what(scope: str, name: str) -> str:
    return "everything" if scope == "all" else f"{scope} {name}"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
