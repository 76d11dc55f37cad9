"""Checks whether a move that waits for verification may end by a confirm or a revert now."""

from __future__ import annotations

import contextlib

from droveway.engines.keeper import outcomes
from droveway.engines.operations import end_facts
from droveway.engines.site.site import Parts
from droveway.errors import NotFound, Refused
from droveway.persistence.journal import cells_down, kinds, moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move
from droveway.printable import SHORT
from droveway.scheduler import preconditions


def require_end(site: Parts, move: Move, kind: str) -> bool:
    """Raise `droveway.errors.Refused` naming the first rule that a confirm or revert (``kind``) of the move breaks.

    It is called before a person's request and before a policy's.  If the move does not wait for verification, or its
    server is gone, nothing is raised here: `move_requests.end`, which files the request next, handles these cases.
    Returns whether this end had begun before an older copy of the journal was put back.
    """
    if move.state != State.VERIFYING:
        return False
    require_cells(site, move, kind)
    if lost_its_target(site, move, kind):
        _require_source(site, move)
        return False
    begun = outcomes.begun_before(site.journal, site.cell_databases, move)
    if begun == kind:
        return True
    if begun is not None:
        raise Refused(
            f"the {begun} of move {move.id[:SHORT]} had begun before its journal was put back: go on with  "
            f"droveway move {begun} {move.id[:SHORT]}"
        )
    try:
        with contextlib.suppress(NotFound):
            preconditions.check_end(kind, end_facts.of_end(site, move))
    except Refused:
        # What was found may be the first writes of a confirm or revert that somebody else has asked for meanwhile.
        with site.journal.read() as session:
            now = moves.get(session, move.id)
        if now.state == State.VERIFYING:
            raise
    return False


def barred(site: Parts, move: Move) -> dict[str, str]:
    """Return ``confirm`` or ``revert`` → why the move may not end by it now; an end that is possible is left out."""
    why: dict[str, str] = {}
    for kind in kinds.Way:
        try:
            require_end(site, move, kind)
        except Refused as error:
            why[kind] = str(error)
    return why


def goes_elsewhere(site: Parts, move: Move) -> bool:
    """Tell whether a revert brings the server to another host of the source's cell: the source is declared down."""
    return kinds.of(move.kind).crosses_cells and end_facts.is_gone(
        site, move.source_host, site.away(), cell=move.source_cell
    )


def lost_its_target(site: Parts, move: Move, kind: str) -> bool:
    """Tell whether this is a revert of a move whose target cell is declared down: the source's rows count then."""
    if kind != preconditions.REVERT or move.dest_cell in (None, move.source_cell):
        return False
    with site.journal.read() as session:
        down = cells_down.find(session)
    return move.dest_cell in down and move.source_cell not in down


def require_cells(site: Parts, move: Move, kind: str) -> None:
    """Raise `droveway.errors.Refused` if a confirm or revert needs a cell that does not answer or is declared down.

    Of a move between cells a confirm and a revert both need both cells, except for a cell that is declared down.  But a
    confirm always needs the target cell, and a revert always needs the source cell.
    """
    cells = {move.source_cell, move.dest_cell or move.source_cell}
    away = site.cells.away(sorted(cells))
    if len(cells) == 1:
        if away:
            raise Refused(
                f"a {kind} of move {move.id[:SHORT]} needs cell {away[0]}, whose database does not answer: start it"
            )
        return
    with site.journal.read() as session:
        down = cells_down.find(session)
    for cell in away:
        if cell not in down:
            raise Refused(
                f"a {kind} of move {move.id[:SHORT]} needs cell {cell}, whose database does not answer: start it, or, "
                f'if it is gone for good, droveway cell down {cell} --i-made-sure "how you know"'
            )
    for cell in sorted(cells & down.keys()):
        if cell == (move.source_cell if kind == preconditions.REVERT else move.dest_cell):
            raise Refused(
                f"a {kind} of move {move.id[:SHORT]} needs cell {cell}, which is {down[cell]}: bring it back and say "
                f"droveway cell up {cell}"
            )


def _require_source(site: Parts, move: Move) -> None:
    """Raise Refused while no host can take the server back: its target cell is gone, and its source is away."""
    if move.source_host in site.away() and not goes_elsewhere(site, move):
        raise Refused(
            f"a revert of move {move.id[:SHORT]} needs the disks on host {move.source_host}, whose worker is down: "
            f"start it, then droveway move revert {move.id[:SHORT]}"
        )
