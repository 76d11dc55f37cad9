"""Decides what becomes of a step of a move between cells that has lost a database."""

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


_ARRIVES: Final = "copy_disks"
"""The step from whose end on all that a forward move needs of its source stands on its destination."""


def heed(run: Run, graph: Graph, step: str, direction: Direction, sequence: int) -> Ends | None:
    """Decide how the step ends; None where it is entered again.

    Meanwhile the move says for which cell it waits.  What is owed instead is recorded: ``sequence`` is the number of
    the step's row in the history.  Raises what the driver does where more than that cell is away.
    """
    away = _away(run)
    if not away:
        if not catalog.api_answers(run.api):
            with run.write() as session:
                cell_waits.note_api(session, moves.get(session, run.move_id, lock=True))
        return None
    home = run.home_cell()
    # Of two of which one is declared down the flow can only wait for the other.
    lost = [each for each in away if not run.cells.is_down(each)] if len(away) > 1 else away
    cell = home if home in lost else lost[0]
    down, target = run.cells.is_down(cell), cell == run.row.dest_cell
    found = verdict(graph, step, direction, target=target, home=cell == home, down=down)
    if len(away) > 1:
        found = Verdict.WAITS  # of which of them the step has lost nobody knows
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
        return Ends(None)
    return Ends(_failure(run, cell, found, waited), parks=found in (Verdict.PARKS, Verdict.RESTS))


def _action(graph: Graph, step: str, direction: Direction) -> str:
    """Name what the cell owes of the step, or of its undo."""
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
    """Record what the cell owes: this action, as the step of the flow does it in that direction."""
    owed = Owed(flow=flow, step=step, sequence=sequence, details={}, deadline=0.0, direction=direction)
    debts.owe_rows(session, move_id=move_id, cell=cell, action=action, details=msgspec.to_builtins(owed))


def _away(run: Run) -> list[str]:
    """Name the cells of a move between cells whose databases do not answer; for a delete those that are gone.

    A delete waits for a cell that is merely away, as a flow within one does.
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
        f"{what}, and since the server's mapping was switched others may have met both copies of it: start it, or, if "
        f'it is gone for good, say droveway cell down {cell} --i-made-sure "how you know", then '
        f"droveway move retry {short}",
        code="cell-away",
    )


def nowhere(move_id: str, down: list[str]) -> str:
    """Say why nothing can be done for a move none of whose cells is left."""
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
    """Name the cell whose rows count, of a server that is mapped to ``mapped``: mostly that one.

    For a cell that is declared down the other one stands in: the source's for a move on its way there or back, until
    an unshelve has started its guest there, and the target's for a forward move once its copy has arrived whole.
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
    """Tell whether the copy stood whole on the destination before the flow was to be undone."""
    back = any(
        each.direction == "revert" and (each.flow_uuid, each.attempt) == (run.flow_uuid, run.row.attempt)
        for each in run.step_runs()
    )
    return not back and not run.is_behind() and _was_done(run, _ARRIVES)


def _was_done(run: Run, step: str) -> bool:
    """Tell whether this flow did the step on its alternate."""
    done = (run.flow_uuid, run.row.attempt, step, "execute")
    return any(
        (each.flow_uuid, each.attempt, each.step, each.direction) == done
        and each.ended_at is not None
        and each.error is None
        for each in run.step_runs()
    )


def is_declared_down(cells: Cells, move: Move, kind: str, host: str) -> bool:
    """Tell whether somebody said that the move's host is off; in a cell that is away nobody did."""
    cell = (host == move.dest_host and move.dest_cell) or move.source_cell
    try:
        return cells.is_declared_down(cell, host)
    except Exception as error:
        if absence(error) is None or not kinds.of(kind).crosses_cells:
            raise
        return False
