"""The journal's moves, as tests look at them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move


def listing(session: orm.Session, *, server: str | None = None, stuck: bool = False) -> list[Move]:
    """Moves, oldest first; ``server`` by id or name; ``stuck``: those that need an operator."""
    query = sa.select(Move).order_by(Move.created_at, Move.id)
    if server:
        query = query.where(sa.or_(Move.server == server, Move.server_name == server))
    if stuck:
        query = query.where(Move.state == State.NEEDS_OPERATOR)
    return list(session.scalars(query))
