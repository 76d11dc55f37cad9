"""Decides what becomes of a step when a database of a move between cells does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from droveway.engines.conductor import story
from droveway.engines.conductor.owed import Owed
from droveway.errors import DestinationFault, StepError
from droveway.flows.away import AT_ONCE, LATE, OWED, Verdict, verdict
from droveway.flows.run import Ends
from droveway.persistence.database import absence
from droveway.persistence.journal import cell_waits, debts, kinds, moves
from droveway.persistence.nova import catalog
from droveway.printable import SHORT

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.flows.graph import Graph
    from droveway.flows.run import Run
    from droveway.persistence.journal.tables import Move
    from droveway.persistence.nova.cells import Cells
    from droveway.wire.values import Direction


_COPIES_DISKS: Final = "copy_disks"
"""The step that copies the disks.  After it a forward move needs nothing more of its source."""


def heed(run: Run, graph: Graph, step: str, direction: Direction, sequence: int) -> Ends | None:
    """Decide how the step ends whose cell's database is away; None if the step is to be tried again.

    While the step is tried again, the move's row names the cell that the step waits for.  If the cell is to owe the
    step, the debt is recorded with ``sequence``, the number of the step's row in the history.  Raises what the
    database's driver raises when another database is away too.
    """
    away = _away(run)
    if not away:
        if not catalog.api_answers(run.api):
            with run.write() as session:
                cell_waits.note_api(session, moves.get(session, run.move_id, lock=True))
        return None
    home = run.home_cell()
    # When both cells are away and one is declared down, the flow can only wait for the other.
    lost = [each for each in away if not run.cells.is_down(each)] if len(away) > 1 else away
    cell = home if home in lost else lost[0]
    down, target = run.cells.is_down(cell), cell == run.row.dest_cell
    found = verdict(graph, step, direction, target=target, home=cell == home, down=down)
    if len(away) > 1:
        found = Verdict.WAITS  # nobody knows which of the two the step needed
    with run.write() as session:
        row = moves.get(session, run.move_id, lock=True)
        waited = cell_waits.note(session, row, cell).total_seconds()
        late = found in LATE and (down or waited >= run.options.step_deadline)
        if not (late or found in AT_ONCE):
            return None
        cell_waits.end(row)
        action = _action(graph, step, direction) if found in OWED else ""
        if action:
            owe(session, run.move_id, cell, action, run.flow_uuid, step, sequence, direction)
    if action:
        story.tell_debt(run.move_id, f"cell {cell}", action, step, direction)
    if found in OWED or found is Verdict.SKIPPED:
        return Ends(None, owed=bool(action))
    return Ends(_failure(run, cell, found, waited), parks=found in (Verdict.PARKS, Verdict.RESTS))


def _action(graph: Graph, step: str, direction: Direction) -> str:
    """Name the action that the cell owes for the step, or for its undo."""
    of = graph.by_name[step]
    return of.cell_debt or (of.debt_when_gone if direction == "execute" else of.undo_debt_when_gone)


def owe(
    session: orm.Session,
    move_id: str,
    cell: str,
    action: str,
    flow: str,
    step: str,
    sequence: int,
    direction: Direction,
) -> None:
    """Record that the cell owes this action, which is part of the flow's step in that direction."""
    owed = Owed(flow=flow, step=step, sequence=sequence, details={}, deadline=0.0, direction=direction)
    debts.owe_rows(session, move_id=move_id, cell=cell, action=action, details=msgspec.to_builtins(owed))


def _away(run: Run) -> list[str]:
    """Name the cells of a move between cells whose databases do not answer; none for a move within one cell.

    For a delete, name those that are declared down.  It waits for a cell that is merely away, as a flow within one
    cell does.
    """
    row = run.row
    if row.dest_cell in (None, row.source_cell):
        return []
    cells = [row.source_cell, str(row.dest_cell)]
    if not kinds.of(run.kind).crosses_cells:
        return [cell for cell in cells if run.cells.is_down(cell)]
    return run.cells.away(cells)


def _failure(run: Run, cell: str, found: Verdict, waited: float) -> StepError:
    down, short = run.cells.is_down(cell), run.move_id[:SHORT]
    what = f"the database of cell {cell} has not answered for {waited:.0f} s"
    if found is Verdict.FAULT:
        why = f"cell {cell} is declared down" if down else f"the database of cell {cell} does not answer"
        return DestinationFault(why, code="cell-away", host=run.row.dest_host or "")
    if found is Verdict.UNDONE:
        what = f"cell {cell} is declared down" if down else f"{what}: start it, then ask again"
        return StepError(what, code="cell-away")
    if found is Verdict.RESTS:
        return StepError(
            f"cell {cell} is declared down, and what the move of this server needs of it, to go on or back, is nowhere "
            f"else: bring the cell back, say droveway cell up {cell}, then droveway move retry {short}",
            code="cell-away",
        )
    return StepError(
        f"{what}, and users may have seen and written both copies of the server since its mapping was switched: start "
        f'that database, or, if it is gone for good, say droveway cell down {cell} --i-made-sure "how you know", then '
        f"droveway move retry {short}",
        code="cell-away",
    )


def nowhere(move_id: str, down: list[str]) -> str:
    """Say why a move can go neither on nor back when all its cells are declared down."""
    again = f"droveway move retry {move_id[:SHORT]}"
    if len(down) == 1:
        cell = down[0]
        return (
            f"cell {cell} is declared down, and all of the server is there, so that its move goes neither on nor back: "
            f"bring the cell back, say droveway cell up {cell}, then {again}"
        )
    return (
        f"cells {' and '.join(down)} are both declared down, and the server is in no other, so that its move goes "
        f"neither on nor back: bring one of them back, say droveway cell up {down[0]} or {down[1]}, then {again}"
    )


def lives_in(run: Run, graph: Graph, mapped: str) -> str:
    """Name the cell whose rows of the server count: usually ``mapped``, the one that the server is mapped to.

    The rows in the other cell of the move can only count if the mapped cell alone is declared down, and the flow is
    neither a confirm nor a delete.  Then these rules hold:

    - If the server is mapped to the target cell, the rows in the source cell count.  There is one exception: after an
      unshelve has started the guest in the target cell, the rows in the target cell count.
    - If the server is mapped to the source cell, the rows in the source cell count.  There is one exception: after a
      forward move has copied all disks, the rows in the target cell count.  No unshelve has this exception.
    """
    row, record = run.row, graph.kind_record
    other = row.source_cell if mapped == row.dest_cell else row.dest_cell
    if other in (None, mapped) or not run.cells.is_down(mapped) or run.cells.is_down(str(other)):
        return mapped
    if record.carries is kinds.Carries.NOWHERE:
        return mapped
    if mapped == row.dest_cell:
        started = record.begins_offloaded and _was_done(run, graph.no_return.step_name())
        return mapped if started else row.source_cell
    arrived = record.carries is kinds.Carries.TO_DESTINATION and not record.begins_offloaded and _has_arrived(run)
    return str(other) if arrived else mapped


def _has_arrived(run: Run) -> bool:
    """Tell whether the destination had the whole copy, and no step of the flow has begun its undo."""
    back = any(
        each.direction == "revert" and (each.flow_uuid, each.attempt) == (run.flow_uuid, run.row.attempt)
        for each in run.step_runs()
    )
    return not back and not run.is_behind() and _was_done(run, _COPIES_DISKS)


def _was_done(run: Run, step: str) -> bool:
    """Tell whether this flow did the step on its current alternate."""
    done = (run.flow_uuid, run.row.attempt, step, "execute")
    return any(
        (each.flow_uuid, each.attempt, each.step, each.direction) == done
        and each.ended_at is not None
        and each.error is None
        for each in run.step_runs()
    )


def is_declared_down(cells: Cells, move: Move, kind: str, host: str) -> bool:
    """Tell whether a person declared the move's host down.

    If the host's cell is away, a flow whose kind crosses cells gets False.  For a flow of any other kind, this raises
    what the driver raises.
    """
    cell = (host == move.dest_host and move.dest_cell) or move.source_cell
    try:
        return cells.is_declared_down(cell, host)
    except Exception as error:
        if absence(error) is None or not kinds.of(kind).crosses_cells:
            raise
        return False
