"""Does what a cell owes of the flow under way, once that cell answers again and before the flow goes on.

The steps that come next look at both copies: one that stands as a step that was left out has left it would bar them.
"""

from __future__ import annotations

from collections.abc import Collection

from droveway.flows import registry
from droveway.flows.run import Context
from droveway.persistence.journal import debts


def pay(ctx: Context, cells: Collection[str]) -> None:
    """Pay what these cells owe of the flow's present alternate; what else they owe is paid once the flow is over.

    Repeated: the same.  Raises what the steps raise whose work is owed.
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
        with run.write() as session:
            debts.settle(session, debt.id)
