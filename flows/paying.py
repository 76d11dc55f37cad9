"""Does what a cell owes of the flow under way, once that cell answers again and before the flow goes on.

The next steps compare both copies of the rows.  They would refuse to go on with a copy in which an earlier step was
left out.
"""

from __future__ import annotations

from collections.abc import Collection

from droveway.flows import registry
from droveway.flows.run import Context
from droveway.persistence.journal import debts


def pay(ctx: Context, cells: Collection[str]) -> None:
    """Do the steps that these cells owe of the flow's present alternate; the keeper sees to the rest after the flow.

    May be repeated.  Raises what those steps raise.
    """
    run = ctx.run
    mine = {each.seq for each in run.step_runs() if (each.flow_uuid, each.attempt) == (run.flow_uuid, ctx.move.attempt)}
    away = {*run.cells.away(cells)}
    with run.journal.read() as session:
        owed = [each for each in debts.of_copies(session, run.move_id) if each.cell not in away]
    for debt in owed:
        name, direction = debt.details["step"], debt.details["direction"]
        step = registry.step(run.kind, name)
        if debt.details["sequence"] not in mine or step is None:
            continue
        again = Context(run, name, direction, ctx.move, ctx.attempt, {}, None, must_go_on=True)
        if direction == "revert":
            step(run).undo(again)
        elif ctx.cell != debt.cell:
            step(run).perform(again)
        # Else the server lives in that cell again, and its copy there is to be neither hidden nor removed.
        with run.write() as session:
            debts.settle(session, debt.id)
