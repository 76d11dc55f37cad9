"""What the conductor of the move does: it enters a step, notes its end, turns back, waits, and lets cells owe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.protocol_cells.effects import Acting, Effect, act, carried, needs, removed
from support.protocol_cells.state import (
    NO_RETURN,
    STEPS,
    Copy,
    Journal,
    S,
    Sleeper,
    State,
    T,
    World,
    cells_of,
    with_copy,
    with_owed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def conductor(world: World, state: State) -> Iterator[tuple[str, State]]:
    """The step that the journal has, in all that may become of it."""
    journal = state.journal
    if journal.parked or state.old:
        return
    if journal.flow == "leaving":
        yield from _leave(world, state)
        return
    if journal.flow not in STEPS:
        return
    if owed := list(paying(world, state)):
        yield from owed
        return
    mapped = state.copies[state.mapped]
    if mapped is not None and mapped.evacuated and not journal.evacuated and state.cells[state.mapped] == "up":
        yield "finds that Nova has the server", _evacuated(state)
        return
    step = STEPS[journal.flow][journal.step]
    name = f"{journal.flow} {step}{' undo' if journal.undoes else ''}"
    down = [cell for cell in needs(journal.flow, step, undoes=journal.undoes) if state.cells[cell] == "down"]
    away = [cell for cell in needs(journal.flow, step, undoes=journal.undoes) if state.cells[cell] == "away"]
    if away:
        yield from _without(state, step, name, away[0])
        return
    if down and _lacks(journal, step, down):
        yield from _when_gone(state, step, name, down[0])
        return
    if journal.adopted and _is_overtaken(state):
        yield f"{name}: overtaken", _park(state)
        return
    found = act(Acting(world, journal.flow, step, journal.undoes, journal.known), state)
    if found.outcome == "done" and state.left.kills and found.state != state:
        left = state.left._replace(kills=state.left.kills - 1)
        yield f"{name}: killed behind its write", claim(found.state._replace(left=left))
    if state.left.sleeps and state.sleeper is None:
        left = state.left._replace(sleeps=state.left.sleeps - 1)
        sleeper = Sleeper(journal.flow, step, journal.undoes, journal.known)
        yield f"{name}: sleeps before its write", claim(state._replace(left=left, sleeper=sleeper))
    if state.left.failures and not journal.undoes and may_turn_back(state):
        left = state.left._replace(failures=state.left.failures - 1)
        yield f"{name}: fails", _turn_back(state._replace(left=left))
    yield f"{name}: {found.outcome}", _after(state, found)


def _is_overtaken(state: State) -> bool:
    """Tell whether a journal that was put back takes a guest for stopped that was started again since."""
    journal = state.journal
    stopped = STEPS["forward"].index("stop_guest") < journal.step and not journal.undoes
    return journal.flow == "forward" and stopped and state.guests[S]


def paying(world: World, state: State) -> Iterator[tuple[str, State]]:
    """What cells do that answer again and owe something, unless the mapping names them by now."""
    journal = state.journal
    if state.cells != ("up", "up"):
        return
    for cell in (S, T):
        what, copy = journal.owes[cell], state.copies[cell]
        if not what:
            continue
        paid = state._replace(journal=with_owed(journal, cell, ""))
        if copy is None or (state.mapped == cell and what in ("hide", "remove")):
            yield f"cell {cell} owes nothing any more", paid
        elif what in ("close", "finish"):
            ended = paid if what == "close" else with_copy(paid, cell, copy._replace(status="finished"))
            yield f"cell {cell} ends what it knows of the move", ended
        elif what == "show":
            yield f"cell {cell} shows its copy", with_copy(paid, cell, copy._replace(hidden=False))
        elif what == "hide":
            after, known = carried(world, paid, cell, 1 - cell, journal.known)
            hidden = with_copy(after, cell, copy._replace(hidden=True))
            yield f"cell {cell} hides its copy", hidden._replace(journal=paid.journal._replace(known=known))
        else:
            owed = with_copy(paid, cell, copy._replace(hidden=True))
            flow = "confirm" if cell == S else "revert"
            found = removed(Acting(world, flow, "remove_records", undoes=False, known=journal.known), owed, cell)
            if found.outcome == "done":
                yield f"cell {cell} removes its copy", found.state


def claim(state: State) -> State:
    """Another conductor has the move: it raises its fence in every cell that answers."""
    for cell in (S, T):
        copy = state.copies[cell]
        if copy is not None:
            state = with_copy(state, cell, copy._replace(fenced=state.cells[cell] == "up"))
    return state


def may_turn_back(state: State) -> bool:
    """Tell whether the flow is before its point of no return: a guest that was to start is shown to be off."""
    journal = state.journal
    last, host = STEPS[journal.flow].index(NO_RETURN[journal.flow]), cells_of(journal.flow)[1]
    may_run = journal.step == last or (journal.adopted and state.mapped == host and journal.step < last)
    if state.mapped == host and state.copies[1 - host] is None:
        # A journal that was put back does not know that the way back is gone.
        return False
    if journal.flow == "confirm" or not may_run:
        return journal.step <= last
    return state.hosts[host] != "dead" and not state.guests[host]


def turned_back(journal: Journal) -> Journal:
    """Return the journal from which everything that may be done is undone."""
    last = STEPS[journal.flow].index(NO_RETURN[journal.flow]) - 1
    step = last if journal.adopted else min(journal.step, last)
    return journal._replace(undoes=True, step=step, parked=False)


def _turn_back(state: State) -> State:
    return state._replace(journal=turned_back(state.journal))


def _after(state: State, found: Effect) -> State:
    journal = state.journal
    if found.outcome == "done":
        return _next(found.state._replace(journal=journal._replace(known=found.known)))
    if found.outcome == "evacuated":
        return _evacuated(state)
    if found.outcome == "deleted":
        met = state._replace(journal=journal._replace(deleted=True))
        return _turn_back(met) if may_turn_back(state) and not journal.undoes else _park(met)
    if found.outcome == "failed" and not journal.undoes and may_turn_back(state):
        return _turn_back(state)
    return _park(state)


def _park(state: State) -> State:
    return state._replace(journal=state.journal._replace(parked=True))


def _evacuated(state: State) -> State:
    """Nova has the server: the flow leads to the copy that says so, and what is left is the other one."""
    journal, mapped = state.journal, state.copies[state.mapped]
    met = journal._replace(evacuated=True)
    if mapped is not None and mapped.evacuated and (journal.flow, state.mapped) != ("forward", S):
        return state._replace(journal=journal._replace(flow="leaving", step=0, undoes=False))
    if journal.undoes:
        return state._replace(journal=met)
    return _turn_back(state._replace(journal=met)) if may_turn_back(state) else _park(state)


def _next(state: State) -> State:
    """Note the step's end in the journal, and go on."""
    journal = state.journal
    if journal.undoes:
        if journal.step:
            return state._replace(journal=journal._replace(step=journal.step - 1))
        ends = "ended" if journal.flow == "forward" else "verifying"
        return state._replace(journal=_rest(journal, ends))
    if journal.step + 1 < len(STEPS[journal.flow]):
        ahead = journal.step + 1
        peak = max(journal.peak, ahead) if journal.flow == "forward" else journal.peak
        return state._replace(journal=journal._replace(step=ahead, peak=peak))
    return state._replace(journal=_rest(journal, "verifying" if journal.flow == "forward" else "ended"))


def _rest(journal: Journal, state: str) -> Journal:
    return journal._replace(flow=state, step=0, undoes=False, evacuated=False, adopted=False)


def _leave(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Clear up behind Nova: the copy that the mapping does not name is hidden, and goes."""
    other = 1 - state.mapped
    if state.cells != ("up", "up"):
        return
    copy = state.copies[other]
    hidden = state if copy is None else with_copy(state, other, copy._replace(hidden=True))
    who = Acting(
        world, "confirm" if other == S else "revert", "remove_records", undoes=False, known=state.journal.known
    )
    found = removed(who, hidden, other)
    if found.outcome == "done":
        yield "leaves the server to Nova", found.state._replace(journal=_rest(state.journal, "ended"))


def _without(state: State, step: str, name: str, cell: int) -> Iterator[tuple[str, State]]:
    """The step needs a cell that is away: it waits, is undone, parks, or the cell owes it."""
    journal = state.journal
    mapped = state.mapped == cell
    debt = _DEBTS.get(step, "")
    if journal.undoes:
        if debt and not mapped:
            yield f"{name}: cell {cell} owes it", _next(state._replace(journal=with_owed(journal, cell, debt)))
        return
    if not may_turn_back(state):
        if step == "remove_records" and not mapped:
            yield f"{name}: cell {cell} owes it", _next(state._replace(journal=with_owed(journal, cell, debt)))
        elif step == "finish_source_records" and not mapped:
            yield f"{name}: cell {cell} owes it", _next(state)
        return
    steps = STEPS[journal.flow]
    if "switch_mapping" in steps and journal.step >= steps.index("switch_mapping"):
        yield f"{name}: parks without cell {cell}", _park(state)
    else:
        yield f"{name}: is undone without cell {cell}", _turn_back(state)


_DEBTS = {"copy_records": "remove", "show": "hide", "remove_records": "remove"}
_DEBTS_WHEN_GONE = {**_DEBTS, "hide": "hide", "finish_source_records": "close", "finish_records": "finish"}
"""These wait for a cell that is merely away."""


def _lacks(journal: Journal, step: str, down: list[int]) -> bool:
    """Tell whether the step cannot be carried out by the other copy alone."""
    if step in ("start_guest", "carry_late_writes", "show", "finish_source_records"):
        return _writes(journal, step) in down
    return True


def _writes(journal: Journal, step: str) -> int:
    """Return the cell that the step writes."""
    left, reached = cells_of(journal.flow)
    if step == "finish_source_records":
        return S
    if step == "carry_late_writes":
        return left if journal.undoes else reached
    return reached


def _when_gone(state: State, step: str, name: str, cell: int) -> Iterator[tuple[str, State]]:
    """A person declared the cell down: the flow ends by the rows that are left, or rests."""
    journal, home = state.journal, _home(state) == cell
    ends = journal.flow in ("confirm", "revert")
    if journal.undoes:
        debt = "show" if (journal.flow, step) == ("revert", "hide") else _DEBTS.get(step, "")
        if (home and journal.flow != "confirm") or not (debt or (cell == T and ends)):
            return
        yield f"{name}: cell {cell} is gone", _next(_owing(state, cell, debt))
        return
    debt = _DEBTS_WHEN_GONE.get(step, "")
    if home:
        if journal.flow == "confirm" and may_turn_back(state):
            yield f"{name}: is undone without cell {cell}", _turn_back(state)
    elif not may_turn_back(state):
        if debt:
            yield f"{name}: cell {cell} is gone", _next(_owing(state, cell, debt))
    elif (journal.flow, cell) in (("forward", T), ("revert", S)):
        yield f"{name}: is undone without cell {cell}", _turn_back(state)
    elif step in ("hand_over", "mark_reverting", "check_source_records"):
        yield f"{name}: cell {cell} is gone", _next(state)
    elif journal.flow == "confirm":
        yield f"{name}: is undone without cell {cell}", _turn_back(state)
    elif debt:
        yield f"{name}: cell {cell} is gone", _next(_owing(state, cell, debt))


def _owing(state: State, cell: int, debt: str) -> State:
    return state._replace(journal=with_owed(state.journal, cell, debt)) if debt else state


def _home(state: State) -> int:
    """Return the cell whose rows count: for one that is gone the other one stands in, where its copy is whole."""
    if state.cells[state.mapped] != "down" or state.journal.flow == "confirm":
        return state.mapped
    if state.mapped == T:
        return S
    arrived = state.journal.flow == "forward" and state.journal.step > STEPS["forward"].index("stop_guest")
    return T if arrived else S


def recovered(world: World, state: State) -> State:
    """Begin a claim of a journal that was put back: the rows say how far the move has come."""
    journal = state.journal
    if journal.undoes or not world.keeps("claims compare the copies"):
        return state
    source, target = state.copies
    shown = _by_rows(state.mapped, source, target)
    if shown is not None:
        flow, step = shown
        if flow not in STEPS:
            return state._replace(journal=_rest(journal, flow))
        journal = journal._replace(flow=flow, step=STEPS[flow].index(step))
    if journal.flow == "forward" and journal.step > (furthest := _furthest(state)):
        # What the journal takes for done was taken back since: the flow was on its way back.
        journal = journal._replace(step=furthest, undoes=True)
    return state._replace(journal=journal)


def _furthest(state: State) -> int:
    """Return the furthest step of a forward flow that may come next, as the rows stand."""
    source, target = state.copies
    if state.mapped == T:
        after = "hide" if source is not None and not source.hidden else "start_guest"
    elif target is None:
        after = "copy_records"
    else:
        after = "show" if target.hidden else "switch_mapping"
    return STEPS["forward"].index(after)


def _by_rows(mapped: int, source: Copy | None, target: Copy | None) -> tuple[str, str] | None:
    """Return the flow and the step at which the rows show the move to be, or its rest; None where they show nothing."""
    if mapped == T and target is not None:
        if target.status == "finished" and source is not None and source.hidden:
            return "verifying", ""
        if target.status == "confirmed" and source is None:
            return "ended", ""
        if target.status in ("confirming", "reverting"):
            flow = "confirm" if target.status == "confirming" else "revert"
            return flow, STEPS[flow][0]
        return "forward", "carry_late_writes"
    if mapped == S and source is not None:
        if source.status == "reverted" and target is None:
            return "ended", ""
        if source.status == "reverting":
            return "revert", "carry_late_writes"
    return None
