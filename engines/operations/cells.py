"""Records that a person declares a cell down, or up again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from droveway.errors import Refused
from droveway.persistence.database import DatabaseAway
from droveway.persistence.journal import cells_down
from droveway.persistence.nova import catalog

if TYPE_CHECKING:
    from droveway.engines.site.site import Site


def declare_down(site: Site, name: str, *, reason: str, who: str) -> str:
    """Record that a person made sure that a cell is gone, with its hosts and its database; return the cell's name.

    Raises `droveway.errors.NotFound` for an unknown cell, `Refused` without a reason or while a worker of it may be up.
    """
    cell = catalog.find_cell(site.api, name).name
    if not reason.strip():
        raise Refused("a cell is declared down with a reason: say with --i-made-sure how you know that it is gone")
    site.require_all_away(catalog.hosts_of(site.api, cell))
    with site.journal.write() as session:
        cells_down.declare(session, cell, reason=reason.strip(), who=who)
    return cell


def declare_up(site: Site, name: str) -> str:
    """Record that the cell is back; return its name.

    Raises `droveway.errors.NotFound` for an unknown cell, `Refused` while its database does not answer.
    """
    cell = catalog.find_cell(site.api, name).name
    try:
        site.known_cells[cell].require(f"of cell {cell}")
    except DatabaseAway as error:
        raise Refused(f"cell {cell} is not back yet: {error}") from None
    with site.journal.write() as session:
        if not cells_down.lift(session, cell):
            raise Refused(f"nobody has declared cell {cell} down: droveway cell list shows the cells")
    return cell
