"""A step of a move between cells has lost a database: whether it waits for its cell, and what it comes to else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from droveway.errors import DestinationFault, StepError
from droveway.flows.away import Verdict, verdict
from droveway.persistence.journal import cell_waits, kinds, moves
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.flows.graph import Graph
    from droveway.flows.run import Run
    from droveway.wire.values import Direction


def heed(run: Run, graph: Graph, step: str, direction: Direction) -> tuple[StepError, bool] | None:
    """What the step comes to: its failure, and whether the move parks with it; None where it is entered again.

    Meanwhile the move says for which cell it waits.  Raises what the driver does where more than that cell is away.
    """
    cell = _away(run)
    if cell is None:
        return None
    found = _judge(run, graph, step, direction, cell)
    with run.write() as session:
        row = moves.get(session, run.move_id, lock=True)
        waited = cell_waits.note(session, row, cell).total_seconds()
        late = waited >= run.options.step_deadline
        ends = found is Verdict.FAULT or (late and found in (Verdict.UNDONE, Verdict.PARKS))
        if ends:
            cell_waits.end(row)
    return (_failure(run, cell, found, waited), found is Verdict.PARKS) if ends else None


def _away(run: Run) -> str | None:
    """Name the cell of a move between cells whose database does not answer."""
    row = run.row
    if not kinds.of(run.kind).crosses_cells or row.dest_cell is None:
        return None
    return next(iter(run.cells.away([row.source_cell, row.dest_cell])), None)


def _judge(run: Run, graph: Graph, step: str, direction: Direction, cell: str) -> Verdict:
    return verdict(graph, step, direction, target=cell == run.row.dest_cell, home=cell == run.home_cell())


def _failure(run: Run, cell: str, found: Verdict, waited: float) -> StepError:
    if found is Verdict.FAULT:
        return DestinationFault(
            f"the database of cell {cell} does not answer", code="cell-away", host=run.row.dest_host or ""
        )
    what = f"the database of cell {cell} has not answered for {waited:.0f} s"
    if found is Verdict.UNDONE:
        return StepError(f"{what}: start it, then ask again", code="cell-away")
    return StepError(
        f"{what}, and since the server's mapping was switched others may have met both copies of it: start it, then "
        f"droveway move retry {run.move_id[:SHORT]}",
        code="cell-away",
    )
