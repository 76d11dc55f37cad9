"""The instance mapping: the one authority for the cell that a server lives in."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Conflict, NotFound, ServerDeleted
from droveway.persistence.database import Database
from droveway.persistence.nova.api import CellMapping, InstanceMapping

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_CELL: Final = (
    sa.select(CellMapping.name)
    .join(InstanceMapping, InstanceMapping.cell_id == CellMapping.id)
    .where(InstanceMapping.instance_uuid == _SERVER)
)
_MAPPING: Final = sa.select(InstanceMapping).where(InstanceMapping.instance_uuid == _SERVER).with_for_update()
_CELL_ID: Final = sa.select(CellMapping.id).where(CellMapping.name == sa.bindparam("name"))


def cell_of(session: orm.Session, server: str) -> str | None:
    """Name the cell that the server is mapped to; None for one without a mapping, or with one to no cell."""
    return session.scalar(_CELL, {"server": server})


def home_cell(api: Database, server: str, source: str, destination: str | None) -> str:
    """Name the cell that the server of a move lives in; only of one between two cells the mapping is read.

    A server without a mapping is looked for where it was.
    """
    if destination in (None, source):
        return source
    with api.read() as session:
        return destination if cell_of(session, server) == destination else source


def stands(session: orm.Session, server: str) -> bool:
    """Tell whether the server has a mapping, and nobody asked for its delete."""
    row = session.scalar(sa.select(InstanceMapping).where(InstanceMapping.instance_uuid == server))
    return row is not None and not row.queued_for_delete


def switch(session: orm.Session, server: str, old: str, new: str, *, deleting: bool = False) -> None:
    """Map the server to cell ``new`` instead of ``old``; done when it is mapped so.

    Raises ServerDeleted for a server that has no mapping any more, or whose delete was asked for, unless ``deleting``;
    NotFound for an unknown cell, and Conflict for a server that is mapped to a third cell.
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
