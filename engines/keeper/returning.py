"""What a debt is compared with before it is paid: the server's rows as they are by then, and the other host's disks.

A host that was declared down may be back after weeks.  By then the server may live there again, and what was owed for
a move of long ago would take its guest or its disks: such a debt is void.
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
"""Debts that give a server back what it had on the host; all others take away what it has there no more."""

_TAKES_BACK: Final = ("restore_disks", "revert")

_AFTER_DELETION: Final = frozenset({("set_aside", "revert")})
"""Of those the ones that a deletion rests on: it removes what they bring back."""


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a server lives by its rows."""

    host: str
    """Empty when it is on no host."""
    gone: bool
    """Whether it was deleted."""


FindHome = Callable[["Move"], Home]
"""Where the move's server lives now; raises as its cell's database does."""


def homes(api: Database, cells: Cells) -> FindHome:
    """What reads it from the cells' databases."""

    def find(move: Move) -> Home:
        cell = mappings.home_cell(api, move.server, move.source_cell, move.dest_cell)
        with cells.database(cell).read() as session:
            row = session.execute(_ROW, {"server": move.server}).first()
        return Home("", gone=True) if row is None else Home(row.host or "", gone=bool(row.deleted))

    return find


def why_void(home: Home, move: Move, host: str, action: str, direction: Direction) -> str:
    """Why nothing is owed any more; empty when the debt stands."""
    what = (action, direction)
    # In a directory that both share a revert's undo gives the destination its copy back.
    takes_back = what == _TAKES_BACK and host == move.dest_host != move.source_host
    # The mark of a confirmed copy ends where the server lives.
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
