"""Reads and changes the instance mapping, which alone decides which cell a server lives in."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Conflict, NotFound, ServerDeleted
from droveway.persistence.database import Database
from droveway.persistence.nova.api import CELL_NAME, CellMapping, InstanceMapping

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_CELL: Final = (
    sa.select(CELL_NAME)
    .select_from(CellMapping)
    .join(InstanceMapping, InstanceMapping.cell_id == CellMapping.id)
    .where(InstanceMapping.instance_uuid == _SERVER)
)
_MAPPING: Final = sa.select(InstanceMapping).where(InstanceMapping.instance_uuid == _SERVER).with_for_update()
_CELL_ID: Final = sa.select(CellMapping.id).where(sa.bindparam("name") == CELL_NAME)


def cell_of(session: orm.Session, server: str) -> str | None:
    """Return the name of the cell that the server is mapped to; None when it has no mapping, or one to no cell."""
    found: str | None = session.scalar(_CELL, {"server": server})
    return found


def home_cell(api: Database, server: str, source: str, destination: str | None) -> str:
    """Return the name of the cell that the server of a move lives in.

    The mapping is read only when the move is between two cells.  A server that has no mapping any more counts as being
    in the source's cell.
    """
    if destination in (None, source):
        return source
    with api.read() as session:
        return destination if cell_of(session, server) == destination else source


def stands(session: orm.Session, server: str) -> bool:
    """Tell whether the server has a mapping and nobody asked for its delete."""
    row = session.scalar(sa.select(InstanceMapping).where(InstanceMapping.instance_uuid == server))
    return row is not None and not row.queued_for_delete


def switch(session: orm.Session, server: str, old: str, new: str, *, deleting: bool = False) -> None:
    """Map the server to the cell ``new`` instead of ``old``; nothing happens when it is mapped to ``new`` already.

    Raises `droveway.errors.ServerDeleted` when the server has no mapping any more.  Unless ``deleting`` is true, raises
    it also when somebody asked for the server's delete.  Raises `droveway.errors.NotFound` for an unknown cell, and
    `droveway.errors.Conflict` for a server that is mapped to a third cell.
    """
    row = session.scalar(_MAPPING, {"server": server})
    if row is None or (row.queued_for_delete and not deleting):
        raise ServerDeleted(f"server {server} was deleted meanwhile")
    was, becomes = _id_of(session, old), _id_of(session, new)
    if row.cell_id not in (was, becomes):
        raise Conflict(f"server {server} is mapped neither to cell {old} nor to cell {new}: somebody mapped it anew")
    row.cell_id = becomes


def _id_of(session: orm.Session, cell: str) -> int:
    found = session.scalar(_CELL_ID, {"name": cell})
    if found is None:
        raise NotFound(f"cell {cell} is unknown: droveway cell list shows the cells")
    return found
