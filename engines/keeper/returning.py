"""Compares the debt of a host that comes back with the server's rows before the debt is paid.

A host that was declared down may come back after weeks.  By then the server may live there again.  To pay a debt of a
move of long ago would then stop the server's guest or remove its disks.  Such a debt is *void*: it is never paid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.persistence.nova import mappings
from droveway.persistence.nova.cell import Instance

if TYPE_CHECKING:
    from droveway.persistence.database import Database
    from droveway.persistence.journal.tables import Move
    from droveway.persistence.nova.cells import Cells
    from droveway.wire.values import Direction

_ROW: Final = sa.select(Instance.host, Instance.deleted).where(Instance.uuid == sa.bindparam("server"))

_BRINGS_BACK: Final = frozenset({("set_aside", "revert"), ("disconnect", "revert"), ("stop_guest", "revert")})
"""Debts that give a server back what it had on the host, which is the source in most cases.

Each is the undo of a step that goes forward.  Most other debts remove what the server no longer has on the host.
"""

_BRINGS_DESTINATION_BACK: Final = ("restore_disks", "revert")
"""The debt that gives the destination its disks back, after a revert was undone.

The revert's step ``restore_disks`` renames the destination's disks if both hosts share a directory.
"""

_AFTER_DELETION: Final = frozenset({("set_aside", "revert")})
"""Those of `_BRINGS_BACK` that are paid although the server is deleted: the deletion removes what they bring back."""


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a server lives by its rows."""

    host: str
    """Empty when it is on no host."""
    gone: bool
    """Whether it was deleted, or has no row."""
    shown_deleted: bool = False
    """Whether its row is there and says that it was deleted.  A row may be missing since a database was put back."""


FindHome = Callable[["Move"], Home]
"""Finds where the move's server lives now; raises as its cell's database does."""


def homes(api: Database, cells: Cells) -> FindHome:
    """Return a function that finds the server's home in the databases of the cells."""

    def find(move: Move) -> Home:
        cell = mappings.home_cell(api, move.server, move.source_cell, move.dest_cell)
        with cells.database(cell).read() as session:
            row = session.execute(_ROW, {"server": move.server}).first()
        if row is None:
            return Home("", gone=True)
        return Home(row.host or "", gone=bool(row.deleted), shown_deleted=bool(row.deleted))

    return find


def why_void(home: Home, move: Move, host: str, action: str, direction: Direction) -> str:
    """Say why the host no longer owes this action; empty when the debt stands."""
    what = (action, direction)
    # If both hosts share a directory, this undo gives the destination its copy back.
    takes_back = what == _BRINGS_DESTINATION_BACK and host == move.dest_host != move.source_host
    # keep_copy takes the move's mark off the disks and the guest of a confirmed move.  So it is owed only by the
    # host where the server lives.
    if takes_back or what in _BRINGS_BACK or action.partition("@")[0] == "keep_copy":
        if home.gone:
            stands = takes_back or what in _AFTER_DELETION
            return "" if stands else f"server {move.server_name} was deleted, so it needs nothing back"
        if home.host == host:
            return ""
        return f"server {move.server_name} lives on {home.host or 'no host'} by now, so it needs nothing back on {host}"
    if home.gone or home.host != host or move.dest_host == move.source_host:
        return ""
    return f"server {move.server_name} lives on {host} by now, and what lies there is its own"
